.DEFAULT_GOAL := help
.PHONY: help setup demo serve ui test screenshots simulate chaos bench bench-quick

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install what the tests need and is missing
	scripts/setup

.PHONY: tools
tools:
	@scripts/setup --build

ui: ## build the dashboard that goes into the binary
	scripts/ui build

demo: tools ui ## watch tasks fail and come back, on temporary data
	cargo run --release -p comeback -- demo

serve: tools ui ## run the server on ./comeback.db
	cargo run --release -p comeback -- serve

screenshots: setup ui ## pictures of every screen, light, dark and phone, into ui/screenshots
	cargo build -p comeback
	cd ui && npm run screenshots

test: setup ui ## everything, on both databases, as on a fresh machine
	scripts/with-postgres scripts/test format lint build core store engine server contract ui simulation chaos

SEEDS ?= 20000
simulate: ## many more simulated worlds than the tests run (SEEDS=20000)
	COMEBACK_SEEDS=$(SEEDS) cargo test --release -p comeback-engine --test simulation -- --nocapture

KILLS ?= 10000
CHAOS_SECONDS ?= 1800
chaos: setup ## kill -9 under load: servers, workers and PostgreSQL for CHAOS_SECONDS=1800, then SQLite KILLS=10000 times
	COMEBACK_CHAOS_SECONDS=$(CHAOS_SECONDS) cargo test --release -p comeback --test chaos -- --nocapture --ignored the_promises
	COMEBACK_CHAOS_CONTROLS=all cargo test --release -p comeback --test chaos -- --ignored control::
	COMEBACK_KILLS=$(KILLS) cargo test --release -p comeback --test binary -- --nocapture after_every_kill
	COMEBACK_EVERY_COMMIT=1 scripts/with-postgres cargo test --release -p comeback-engine --test stories kills

bench: setup ## the full measurement beside the rivals, medians of five (about 25 minutes)
	bench/compare

bench-quick: setup ## the same measurement, small (five minutes)
	bench/compare --quick

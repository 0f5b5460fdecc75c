.DEFAULT_GOAL := help
.PHONY: help setup demo serve ui test screenshots simulate chaos storm fairness bench bench-quick

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

.PHONY: release
release: tools ui ## the binary without debug symbols, and the symbols beside it: target/dist
	scripts/release

screenshots: setup ui ## pictures of every screen, light, dark and phone, into ui/screenshots
	cargo build -p comeback
	cd ui && npm run screenshots

.PHONY: ui-budgets test-all
ui-budgets: setup ui ## what the dashboard may weigh and how long it may take, with a million tasks in a real Chromium
	cargo build --release -p comeback
	cd ui && COMEBACK_BINARY=../target/release/comeback npm run budgets

test: setup ## everything, on both databases, as on a fresh machine
	scripts/with-postgres scripts/test format deny ui lint build core store engine server contract+browser simulation chaos

test-all: setup ## the same with what takes long: long stories and a death at every commit on PostgreSQL too, the suite in memory, all 120 ways to smuggle in a script
	ALL=1 COMEBACK_EVERY_COMMIT=1 XSS=all scripts/with-postgres scripts/test format deny ui lint build core store engine server contract+browser simulation chaos

.PHONY: sbom test-busy
sbom: ## what the binary is made of, as CycloneDX: target/comeback.cdx.json
	mkdir -p target && scripts/deny --sbom target/comeback.cdx.json

BUSY_RUNS ?= 5
test-busy: setup ## the whole suite again and again with both cores loaded by something else, and at odd times (BUSY_RUNS=5)
	scripts/test-busy $(BUSY_RUNS)

EXPRESSIONS ?= 1000000
.PHONY: fuzz-expressions
fuzz-expressions: ## random expressions and templates: no panic, 16 MiB and 50 ms at most each (EXPRESSIONS=1000000)
	COMEBACK_EXPRESSIONS=$(EXPRESSIONS) cargo test --release -p comeback-core --test expressions -- --nocapture

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

.PHONY: panics
panics: setup ## a panic at every one of its points under load, in a release build: back within 500 ms, nothing lost
	COMEBACK_PANICS=all scripts/with-postgres --durable scripts/panics

storm: ## what retries do to a service in trouble, four ways side by side (four minutes; STORM=full for half an hour)
	cargo run --release -p comeback-engine --example storm

fairness: setup ## what one tenant's million tasks do to another's ten, on both databases (five minutes)
	scripts/with-postgres --durable cargo run --release -p comeback-engine --example fairness

TENANTS_SECONDS ?= 60
.PHONY: tenants
tenants: setup tools ui ## what one hostile tenant does to an honest one: every attack, on both databases (TENANTS_SECONDS=60 for each)
	cargo build --release -p comeback -p comeback-bench
	target/release/comeback-tenants --seconds $(TENANTS_SECONDS)
	scripts/with-postgres --durable sh -c 'target/release/comeback-tenants --seconds $(TENANTS_SECONDS) --postgres "$$COMEBACK_TEST_POSTGRES"'

bench: setup ## the full measurement beside the rivals, medians of five (about 25 minutes)
	bench/compare

bench-quick: setup ## the same measurement, small (five minutes)
	bench/compare --quick

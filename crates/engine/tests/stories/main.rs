//! The engine as its callers meet it, on both databases: stories, races and long times.

mod alerts;
mod backtest;
mod bad_input;
#[path = "../common/between.rs"]
mod between;
mod bulk;
mod calls;
mod dependencies;
mod executors;
mod fairness;
mod flow;
mod hooks;
mod kills;
mod lanes;
mod lively;
mod long;
mod numbers;
mod operators;
#[path = "../common/plain.rs"]
mod plain;
mod races;
mod repairs;
mod rules;
mod schedules;
mod secrets;
#[path = "../common/shapes.rs"]
mod shapes;
mod shares;
mod sizes;
mod subscriptions;
mod tasks;
mod triggers;
mod world;

use libtest_mimic::{Arguments, Trial};
use world::{Backend, Place};

/// One story: its name is the sentence that it proves.
pub struct Story {
    pub name: &'static str,
    pub run: fn(Place) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! stories {
    ($($(#[$doc:meta])* fn $name:ident($place:ident) $body:block)+) => {
        $($(#[$doc])* async fn $name($place: $crate::world::Place) $body)+

        pub const STORIES: &[$crate::Story] = &[$($crate::Story {
            name: stringify!($name),
            run: |place| Box::pin($name(place)),
        }),+];
    };
}
pub(crate) use stories;

fn main() {
    let rooms = [
        ("tasks", tasks::STORIES),
        ("hooks", hooks::STORIES),
        ("calls", calls::STORIES),
        ("flow", flow::STORIES),
        ("repairs", repairs::STORIES),
        ("kills", kills::STORIES),
        ("sizes", sizes::STORIES),
        ("schedules", schedules::STORIES),
        ("triggers", triggers::STORIES),
        ("subscriptions", subscriptions::STORIES),
        ("secrets", secrets::STORIES),
        ("alerts", alerts::STORIES),
        ("races", races::STORIES),
        ("rules", rules::STORIES),
        ("dependencies", dependencies::STORIES),
        ("operators", operators::STORIES),
        ("numbers", numbers::STORIES),
        ("backtest", backtest::STORIES),
        ("fairness", fairness::STORIES),
        ("bulk", bulk::STORIES),
        ("long", long::STORIES),
        ("lively", lively::STORIES),
        ("executors", executors::STORIES),
        ("lanes", lanes::STORIES),
        ("bad_input", bad_input::STORIES),
        ("shares", shares::STORIES),
    ];
    let mut trials = Vec::new();
    for (room, stories) in rooms {
        for story in stories {
            for backend in [Backend::Sqlite, Backend::Postgres] {
                let run = story.run;
                let name = format!("{}::{room}::{}", backend.word(), story.name);
                trials.push(Trial::test(name, move || {
                    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                    runtime.block_on(async {
                        let place = Place::new(backend).await;
                        run(place.clone()).await;
                        place.leave().await;
                    });
                    Ok(())
                }));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

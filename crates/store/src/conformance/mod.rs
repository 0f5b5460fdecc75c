//! What a store means, case by case. Both databases run every case; a case's name is the sentence that it proves.

mod accounts;
mod apply;
mod audit;
mod claim;
mod control;
mod count;
mod dependencies;
mod describe;
mod documents;
mod due;
mod execution;
mod feed;
mod flow;
mod followers;
mod heartbeat;
mod history;
mod lanes;
mod list;
pub mod migration;
mod once;
mod operations;
mod pages;
mod payloads;
pub mod postgres;
mod promote;
mod prune;
mod read;
mod rules;
mod secrets;
mod shared;
mod stats;
mod submit;
mod world;

use std::future::Future;
use std::pin::Pin;

pub use world::World;

/// One sentence and its proof.
#[derive(Clone, Copy)]
pub struct Case {
    pub room: &'static str,
    pub name: &'static str,
    pub run: fn(World) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Everything, in the order of the rooms.
pub fn all() -> Vec<Case> {
    [
        submit::CASES,
        claim::CASES,
        apply::CASES,
        count::CASES,
        heartbeat::CASES,
        promote::CASES,
        due::CASES,
        execution::CASES,
        read::CASES,
        list::CASES,
        pages::CASES,
        history::CASES,
        feed::CASES,
        prune::CASES,
        control::CASES,
        once::CASES,
        documents::CASES,
        flow::CASES,
        followers::CASES,
        secrets::CASES,
        rules::CASES,
        lanes::CASES,
        audit::CASES,
        payloads::CASES,
        describe::CASES,
        accounts::CASES,
        dependencies::CASES,
        stats::CASES,
        operations::CASES,
        shared::CASES,
    ]
    .concat()
}

/// Whatever a case did, what it leaves behind holds together.
#[allow(clippy::expect_used, clippy::panic)]
pub async fn holds_together(place: &crate::Place) {
    let report = place.check(&mut |_| ()).await.expect("it can be checked");
    assert!(report.is_clean(), "{report:#?}");
}

/// Declares the cases of one room.
macro_rules! cases {
    ($room:literal; $($(#[$doc:meta])* fn $name:ident($world:ident) $body:block)+) => {
        $($(#[$doc])* async fn $name($world: $crate::conformance::World) $body)+

        pub const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            room: $room,
            name: stringify!($name),
            run: |world| Box::pin($name(world)),
        }),+];
    };
}

pub(crate) use cases;

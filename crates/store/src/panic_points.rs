//! Places at which a test can make the process panic. Built in with the feature `panic-points` only; without it a point is nothing.
//!
//! `COMEBACK_PANIC_AT=name:3` panics when the point `name` is passed for the third time.

/// Panics here when a test has asked for it.
#[macro_export]
macro_rules! panic_point {
    ($name:literal) => {
        $crate::panic_points::pass($name)
    };
}

#[cfg(not(feature = "panic-points"))]
#[inline(always)]
pub fn pass(_name: &'static str) {}

#[cfg(feature = "panic-points")]
pub use armed::pass;

#[cfg(feature = "panic-points")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Armed {
        name: String,
        passes: AtomicU64,
        at: u64,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let text = std::env::var("COMEBACK_PANIC_AT").ok()?;
        let (name, at) = text.split_once(':').unwrap_or((&text, "1"));
        Some(Armed { name: name.to_owned(), passes: AtomicU64::new(0), at: at.parse().unwrap_or(1) })
    });

    #[track_caller]
    pub fn pass(name: &'static str) {
        if let Some(armed) = &*ARMED
            && armed.name == name
            && armed.passes.fetch_add(1, Ordering::Relaxed) + 1 == armed.at
        {
            panic!("panic point {name}");
        }
    }
}

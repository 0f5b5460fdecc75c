//! Addresses that stay free while nobody listens there: below those that connections are given.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;

/// A port of the range that no system gives to outgoing connections by itself.
pub fn free_port() -> u16 {
    loop {
        let drawn = RandomState::new().build_hasher().finish();
        let port = 12_000 + u16::try_from(drawn % 18_000).expect("small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

//! Connection limits: open connections, which of them are authenticated, and which is closed to make room for another.
//!
//! A connection is keyless until a request on it is authenticated. When a limit is reached, the oldest keyless
//! connection is closed, preferably one of the same address, so that a new connection always has time to send its key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// All connections of this process.
#[derive(Default)]
pub struct Connections {
    state: Mutex<ConnectionTable>,
    closed: AtomicU64,
}

#[derive(Default)]
struct ConnectionTable {
    most: usize,
    per_address: usize,
    next: u64,
    /// By number: the first is the oldest.
    keyless: BTreeMap<u64, Arc<ConnectionEntry>>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    /// Connections with a good key, by namespace.
    keyed: HashMap<Arc<str>, usize>,
    keyed_total: usize,
}

struct ConnectionEntry {
    number: u64,
    peer: IpAddr,
    is_keyed: AtomicBool,
    /// Namespace that the connection counts for, once it is authenticated.
    namespace: Mutex<Option<Arc<str>>>,
    must_close: Notify,
}

/// A connection, as an extension of its requests.
#[derive(Clone)]
pub struct ClientConnection {
    all: Arc<Connections>,
    entry: Arc<ConnectionEntry>,
}

/// An open connection; dropping it closes the entry.
pub struct ConnectionGuard {
    connection: ClientConnection,
}

impl Connections {
    /// Sets the limits: connections in total, and keyless ones per address.
    pub fn limit(&self, most: usize, per_address: usize) {
        let mut state = self.state.lock();
        state.most = most.max(1);
        state.per_address = per_address.max(1);
    }

    /// Admits a new connection, closing the oldest keyless one if necessary. `None` if all connections are
    /// authenticated.
    pub fn admit(self: &Arc<Connections>, peer: IpAddr) -> Option<ConnectionGuard> {
        let mut state = self.state.lock();
        let of_address = state.by_address.get(&peer);
        if let Some(oldest) =
            of_address.filter(|all| all.len() >= state.per_address).and_then(|all| all.first().copied())
        {
            self.close(&mut state, oldest);
        }
        // A tenth is kept for connections with good keys, as far as there are so many.
        let keyless_most = (state.most - state.most / 10).max(1);
        while state.keyless.len() >= keyless_most || state.total() >= state.most {
            let Some(oldest) = state.keyless.keys().next().copied() else {
                self.closed.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            self.close(&mut state, oldest);
        }
        let number = state.next;
        state.next += 1;
        let entry = Arc::new(ConnectionEntry {
            number,
            peer,
            is_keyed: AtomicBool::new(false),
            namespace: Mutex::default(),
            must_close: Notify::new(),
        });
        state.keyless.insert(number, entry.clone());
        state.by_address.entry(peer).or_default().insert(number);
        drop(state);
        Some(ConnectionGuard { connection: ClientConnection { all: self.clone(), entry } })
    }

    /// Closes the oldest keyless connection: the process is out of file descriptors.
    pub fn close_oldest(&self) {
        let mut state = self.state.lock();
        if let Some(oldest) = state.keyless.keys().next().copied() {
            self.close(&mut state, oldest);
        }
    }

    /// Number of open connections: authenticated, keyless.
    pub fn open_counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.keyed_total, state.keyless.len())
    }

    /// Number of connections closed or refused to stay within the limits.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    fn close(&self, state: &mut ConnectionTable, number: u64) {
        if let Some(entry) = state.remove_keyless(number) {
            entry.must_close.notify_one();
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ConnectionTable {
    fn total(&self) -> usize {
        self.keyless.len() + self.keyed_total
    }

    fn remove_keyless(&mut self, number: u64) -> Option<Arc<ConnectionEntry>> {
        let entry = self.keyless.remove(&number)?;
        if let Some(of_address) = self.by_address.get_mut(&entry.peer) {
            of_address.remove(&number);
            if of_address.is_empty() {
                self.by_address.remove(&entry.peer);
            }
        }
        Some(entry)
    }
}

impl ClientConnection {
    /// Peer address.
    pub fn peer(&self) -> IpAddr {
        self.entry.peer
    }

    /// Marks the connection as authenticated: it is no longer closed to make room. One namespace gets at most half of
    /// all connections; further ones stay keyless.
    pub fn authenticated(&self, namespace: &str) {
        if self.entry.is_keyed.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.all.state.lock();
        let of_namespace = state.keyed.get(namespace).copied().unwrap_or(0);
        if of_namespace >= (state.most / 2).max(1) || state.remove_keyless(self.entry.number).is_none() {
            return;
        }
        let name = match state.keyed.get_key_value(namespace) {
            Some((name, _)) => name.clone(),
            None => Arc::from(namespace),
        };
        *self.entry.namespace.lock() = Some(name.clone());
        *state.keyed.entry(name).or_default() += 1;
        state.keyed_total += 1;
        self.entry.is_keyed.store(true, Ordering::Relaxed);
    }

    /// Whether to close the connection after this response: it is keyless, and four fifths of all connections are used.
    pub fn ends_after_answer(&self) -> bool {
        if self.entry.is_keyed.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.all.state.lock();
        state.total() * 5 > state.most * 4
    }
}

impl ConnectionGuard {
    /// The connection, for the extensions of its requests.
    pub fn connection(&self) -> ClientConnection {
        self.connection.clone()
    }

    /// Waits until the connection must be closed to make room.
    pub async fn must_close(&self) {
        self.connection.entry.must_close.notified().await;
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let ClientConnection { all, entry } = &self.connection;
        let mut state = all.state.lock();
        if let Some(namespace) = entry.namespace.lock().take() {
            state.keyed_total = state.keyed_total.saturating_sub(1);
            if let Some(count) = state.keyed.get_mut(&namespace) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    state.keyed.remove(&namespace);
                }
            }
        } else {
            state.remove_keyless(entry.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn limited(most: usize, per_address: usize) -> Arc<Connections> {
        let all = Arc::new(Connections::default());
        all.limit(most, per_address);
        all
    }

    fn is_closing(open: &ConnectionGuard) -> bool {
        let mut waits = std::pin::pin!(open.must_close());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        waits.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn a_new_connection_takes_the_place_of_the_oldest_keyless_one_of_its_address() {
        let all = limited(100, 3);
        let open: Vec<ConnectionGuard> = (0..4).map(|_| all.admit(address(1)).expect("room")).collect();
        let other = all.admit(address(2)).expect("room");
        assert_eq!(open.iter().map(is_closing).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(!is_closing(&other));
        assert_eq!((all.open_counts(), all.closed()), ((0, 4), 1));
        drop((open, other));
        assert_eq!(all.open_counts(), (0, 0));
        assert!(all.state.lock().by_address.is_empty());
    }

    #[test]
    fn connections_with_a_good_key_stay_and_a_flood_without_one_does_not_keep_others_out() {
        let all = limited(20, 1_000);
        let blue = all.admit(address(1)).expect("room");
        blue.connection().authenticated("blue");
        let flood: Vec<ConnectionGuard> = (0..200).map(|_| all.admit(address(1)).expect("room")).collect();
        assert!(!is_closing(&blue), "it has a good key");
        assert_eq!(all.open_counts(), (1, 18), "a tenth is kept for good keys");
        let new = all.admit(address(1)).expect("room");
        assert!(new.connection().ends_after_answer(), "until it has shown its key");
        new.connection().authenticated("blue");
        assert!(!new.connection().ends_after_answer() && !is_closing(&new));
        drop((flood, blue, new));
        assert_eq!(all.open_counts(), (0, 0));
    }

    #[test]
    fn one_namespace_has_half_of_the_connections_at_most() {
        let all = limited(10, 1_000);
        let red: Vec<ConnectionGuard> = (0..9).map(|_| all.admit(address(1)).expect("room")).collect();
        red.iter().for_each(|it| it.connection().authenticated("red"));
        assert_eq!(all.open_counts(), (5, 4));
        let blue: Vec<ConnectionGuard> = (0..5)
            .map(|_| {
                let open = all.admit(address(2)).expect("room");
                open.connection().authenticated("blue");
                open
            })
            .collect();
        assert_eq!(all.open_counts(), (10, 0));
        assert!(all.admit(address(3)).is_none(), "all have good keys");
        drop((red, blue));
        assert!(all.state.lock().keyed.is_empty());
    }
}

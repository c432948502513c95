//! The deployments that the conformance suite runs on.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Builder, Client, MemoryNode, Moment, Name};

use crate::{RedisServer, TempDir, setup, unix_us};

/// A future that a [`Deployment`] returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One set of nodes, new for every case of the suite.
///
/// To test an implementation of [`Node`](leasehold::node::Node), implement this trait for it and
/// call [`conformance!`](crate::conformance!).
pub trait Deployment: Send + Sync {
    /// A builder for clients of these nodes. The nodes must vote at once.
    fn builder(&self) -> Builder;

    /// Sets a lock on every node, as a program in another language would: a value of any bytes,
    /// with or without a TTL.
    fn set_foreign(&self, name: &[u8], value: &[u8], ttl: Option<Duration>);

    /// The value of the lock on each node, where there is one.
    fn values(&self, name: &[u8]) -> Vec<Option<Vec<u8>>>;

    /// Makes every node lose its data, as a restart without persistence does.
    fn forget(&self) -> BoxFuture<'_, ()>;
}

/// One node in memory.
pub struct Memory(MemoryNode);

impl Memory {
    /// Creates a node.
    #[must_use]
    #[allow(clippy::new_without_default)] // it creates nodes
    pub fn new() -> Self {
        Self(MemoryNode::new("memory"))
    }
}

impl Deployment for Memory {
    fn builder(&self) -> Builder {
        Client::builder().custom_node(self.0.clone())
    }

    fn set_foreign(&self, name: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.0.set(&Name::new(name).expect("a name"), value, ttl);
    }

    fn values(&self, name: &[u8]) -> Vec<Option<Vec<u8>>> {
        vec![self.0.get(&Name::new(name).expect("a name"))]
    }

    fn forget(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.0.forget() })
    }
}

/// An embedded store in a temporary file, which is removed when dropped.
pub struct Local(TempDir);

impl Local {
    /// Creates a store.
    #[must_use]
    #[allow(clippy::new_without_default)] // it creates nodes
    pub fn new() -> Self {
        Self(TempDir::new())
    }

    /// The path of the store.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    /// `local:/path`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("local:{}", self.path().display())
    }

    fn sql(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path()).expect("the store");
        let patience = Duration::from_secs(30);
        connection.busy_timeout(patience).expect("a timeout");
        connection
    }
}

impl Deployment for Local {
    fn builder(&self) -> Builder {
        Client::builder().node(self.url())
    }

    fn set_foreign(&self, name: &[u8], value: &[u8], ttl: Option<Duration>) {
        let expires = ttl.map(|ttl| {
            let at = u128::from(unix_us()) + ttl.as_micros();
            i64::try_from(at).expect("a date")
        });
        let changed = self.sql().execute(
            "INSERT INTO names (name, owner, expires_unix_us) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET owner = ?2, expires_unix_us = ?3, clock = NULL,
                                              holders = NULL",
            rusqlite::params![name, value, expires],
        );
        assert_eq!(changed, Ok(1));
    }

    fn values(&self, name: &[u8]) -> Vec<Option<Vec<u8>>> {
        let now = Moment::now().saturating_duration_since(Moment::from_origin(Duration::ZERO));
        // By the boot clock, like the store itself: tests run within one boot.
        let value = self.sql().query_row(
            "SELECT owner FROM names WHERE name = ? AND
             (expires_boot_ns IS NULL OR clock IS NULL OR expires_boot_ns > ?)",
            rusqlite::params![name, i64::try_from(now.as_nanos()).expect("a boot")],
            |row| row.get(0),
        );
        match value {
            Ok(owner) => vec![owner],
            Err(rusqlite::Error::QueryReturnedNoRows) => vec![None],
            Err(error) => panic!("{error}"),
        }
    }

    fn forget(&self) -> BoxFuture<'_, ()> {
        for end in ["", "-wal", "-shm"] {
            let file = format!("{}{end}", self.path().display());
            // A missing file has nothing to forget.
            let _ = std::fs::remove_file(file);
        }
        Box::pin(async {})
    }
}

/// Real Redis servers.
pub struct Redis(Mutex<Vec<RedisServer>>);

impl Redis {
    /// Starts `count` servers.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self(Mutex::new(RedisServer::start_many(count)))
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Vec<RedisServer>> {
        self.0.lock().expect("no case panics while it holds this")
    }
}

impl Deployment for Redis {
    fn builder(&self) -> Builder {
        setup::fresh(&self.servers())
    }

    fn set_foreign(&self, name: &[u8], value: &[u8], ttl: Option<Duration>) {
        let ms = ttl.map(|ttl| ttl.as_millis().to_string());
        for server in self.servers().iter() {
            let mut command = vec![&b"SET"[..], name, value];
            if let Some(ms) = &ms {
                command.extend([&b"PX"[..], ms.as_bytes()]);
            }
            assert_eq!(server.command(&command), "+OK\r\n");
        }
    }

    fn values(&self, name: &[u8]) -> Vec<Option<Vec<u8>>> {
        let get = |server: &RedisServer| server.get(name);
        self.servers().iter().map(get).collect()
    }

    fn forget(&self) -> BoxFuture<'_, ()> {
        for server in self.servers().iter_mut() {
            server.kill();
        }
        for server in self.servers().iter_mut() {
            server.restart();
        }
        Box::pin(async {})
    }
}

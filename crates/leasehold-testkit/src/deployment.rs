//! What the conformance suite runs on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Builder, Client, MemoryNode, Name};

use crate::RedisServer;

/// A future that a [`Deployment`] returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One set of nodes, new for every case of the suite.
///
/// Whoever writes a [`Node`](leasehold::node::Node) implements this for it and calls
/// [`conformance!`](crate::conformance!).
pub trait Deployment: Send + Sync {
    /// A builder of clients of these nodes, which votes at once.
    fn builder(&self) -> Builder;

    /// Puts a lock on every node, as a program in another language would: a value of any
    /// bytes, with or without a TTL.
    fn set_foreign(&self, name: &[u8], value: &[u8], ttl: Option<Duration>);

    /// The value of the lock on each node, where there is one.
    fn values(&self, name: &[u8]) -> Vec<Option<Vec<u8>>>;

    /// Makes every node forget everything, as a restart without persistence does.
    fn forget(&self) -> BoxFuture<'_, ()>;
}

/// One node in memory.
pub struct Memory(MemoryNode);

impl Memory {
    /// A new one.
    #[must_use]
    #[allow(clippy::new_without_default)] // a deployment is made, not defaulted
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

/// Real Redis servers.
pub struct Redis(Mutex<Vec<RedisServer>>);

impl Redis {
    /// Starts so many.
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
        let urls: Vec<_> = self.servers().iter().map(RedisServer::url).collect();
        Client::builder()
            .nodes(urls)
            .connect_timeout(Duration::from_secs(10))
            .assume_fresh()
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

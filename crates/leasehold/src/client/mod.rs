//! The entry point: a client of one node or of several.

#[cfg(feature = "blocking")]
pub mod blocking;
pub(crate) mod builder;
pub(crate) mod core;
pub(crate) mod inspect;
pub(crate) mod options;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, Invalid};
use crate::base::name::Name;
use crate::client::builder::Builder;
use crate::client::core::{Core, Parts};
use crate::mutex::Mutex;
use crate::node::NodeError;
use crate::quorum::round::Round;
use crate::{MemoryNode, Story};

/// How long [`Client::ready`] waits for the other nodes once a majority works.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// A client of one node or of several. Cheap to clone; clones share everything.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Client;
///
/// // One server, or Redlock over a majority of independent ones:
/// let client = Client::builder()
///     .node("redis://10.0.0.1")
///     .node("redis://10.0.0.2")
///     .node("redis://10.0.0.3")
///     .connect()
///     .await?;
/// let lease = client.mutex("orders/42").lock().await?;
/// // … use lease.token() …
/// lease.release().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// Starts to describe a client.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client of a new in-memory node of its own: with nothing installed, for tests
    /// and for programs of one process.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder()
            .custom_node(MemoryNode::new("memory"))
            .build()
            .expect("one node with default options is valid")
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        Self {
            core: Arc::new(Core::new(parts)),
        }
    }

    /// The lock of this name. A name that is not 1 to 1024 bytes long is an error of
    /// the calls that follow.
    ///
    /// Names are given, and returned by leases, inspections and errors, without the client's
    /// [prefix](Builder::prefix). The key on the nodes is the prefix followed by the name:
    /// [`Lease::key`](crate::Lease::key), [`Inspection::key`](crate::Inspection::key).
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        let name = self.key_of(name.as_ref());
        Mutex::new(Arc::clone(&self.core), name)
    }

    /// The key on the nodes: the prefix and the name.
    pub(crate) fn key_of(&self, name: &[u8]) -> Result<Name, Invalid> {
        let name = Name::new(name)?;
        match &*self.core.prefix {
            [] => Ok(name),
            prefix => name.prefixed(prefix),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Waits until a majority of nodes is known to work, at most `timeout`. The other nodes get
    /// another 100 ms to report an error that has to be corrected, so a silent minority costs no
    /// more than that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a node refuses this client for good (a wrong password, the
    /// same server twice, …), [`Error::NoMajority`] if no majority can be asked yet.
    /// The client stays usable either way, and goes on trying to connect.
    /// [`Error::RuntimeEnded`] if the runtime that the client was created on has shut down.
    ///
    /// Cancel safety: leaves nothing behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use std::time::Duration;
    /// let client = leasehold::Client::in_memory();
    /// client.ready(Duration::from_secs(1)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn ready(&self, timeout: Duration) -> Result<(), Error> {
        self.core.check_runtime()?;
        let majority = Round::majority(self.core.nodes.len());
        let mut deadline = self.core.clock.now() + timeout;
        for node in self.core.nodes.iter() {
            node.connect();
        }
        loop {
            let statuses: Vec<_> = self.core.nodes.iter().map(|node| node.status()).collect();
            let undecided = statuses.iter().any(Option::is_none);
            let now = self.core.clock.now();
            if !undecided || now >= deadline {
                return self.assess(statuses);
            }
            let working = statuses.iter().flatten().filter(|status| status.is_ok());
            if working.count() >= majority {
                deadline = deadline.min(now + STRAGGLERS);
            }
            self.core.clock.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether a node frees the locks of dead processes before their TTL is over (the
    /// embedded store does): then [`Lease::bind_to_processes`](crate::Lease::bind_to_processes)
    /// makes a difference.
    #[must_use]
    pub fn frees_the_locks_of_the_dead(&self) -> bool {
        let mut nodes = self.core.nodes.iter();
        nodes.any(|node| node.frees_the_locks_of_the_dead())
    }

    /// Takes no more leases, and waits until all that were given back are confirmed
    /// free on every node, at most `grace`. Returns how many releases were still
    /// unconfirmed; their locks end with their TTL. Leases that are still held stay
    /// held, and are renewed, until they are dropped.
    ///
    /// Cancel safety: the client stays shut down; may be called again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("x").lock().await?;
    /// drop(lease);
    /// assert_eq!(client.shutdown(Duration::from_secs(5)).await, 0);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> usize {
        self.core.shut_down();
        tokio::select! {
            biased;
            () = self.core.settled() => {}
            () = self.core.clock.sleep(grace) => {}
        }
        self.core.janitor.owed()
    }

    /// Whether leases can be had from nodes in these states.
    fn assess(&self, statuses: Vec<Option<Result<(), NodeError>>>) -> Result<(), Error> {
        let working = statuses
            .iter()
            .filter(|s| matches!(s, Some(Ok(()))))
            .count();
        for (node, status) in self.core.nodes.iter().zip(&statuses) {
            if let Some(Err(error)) = status
                && error.is_permanent()
            {
                let (node, error) = (node.label().to_owned(), error.clone());
                return Err(Invalid::Node { node, error }.into());
            }
        }
        if working >= Round::majority(self.core.nodes.len()) {
            return Ok(());
        }
        let stories = statuses.into_iter().map(|status| match status {
            None => Story::Pending,
            Some(Ok(())) => Story::Connected,
            Some(Err(error)) => Story::Failed(error),
        });
        let refusal = self.core.refusal(None, stories);
        Err(Error::NoMajority(Box::new(refusal)))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.core.nodes.iter().map(|node| node.label()).collect();
        f.debug_struct("Client")
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}

//! The entry point: a client of one node or of several.

#[cfg(feature = "blocking")]
pub mod blocking;
pub(crate) mod builder;
pub(crate) mod core;
#[cfg(feature = "doctor")]
mod doctor;
pub(crate) mod history;
pub(crate) mod inspect;
pub(crate) mod options;
pub(crate) mod shared_runs;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Handle;
use crate::base::error::{Error, Invalid};
use crate::base::name::Name;
use crate::client::builder::Builder;
use crate::client::core::{Core, Parts};
use crate::election::Election;
use crate::latch::Latch;
use crate::mutex::Mutex;
use crate::mutexes::Mutexes;
use crate::node::{NodeError, majority};
use crate::observe::Stats;
use crate::once::Once;
use crate::rw_lock::RwLock;
use crate::semaphore::Semaphore;
use crate::{MemoryNode, NodeOutcome};

/// How long [`Client::ready`] waits for the other nodes after a majority is connected.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// A client of one node or of several. Clones are cheap and share everything.
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
///
/// A process that was forked must create clients of its own. A client that it inherits shares its
/// connections and its secrets with that of the parent, so both could hold the same lock.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// Returns a builder, which configures a client.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Creates a client with a new in-memory node. It needs no server, and is for tests and for
    /// programs of one process.
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

    /// Returns the lock with this name. If the name is not 1 to 1024 bytes long, later calls return
    /// an error.
    ///
    /// Names never contain the client's [prefix](Builder::prefix), neither here nor in leases,
    /// inspections and errors. The key on the nodes is the prefix followed by the name:
    /// [`Lease::key`](crate::Lease::key), [`Inspection::key`](crate::Inspection::key).
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        Mutex::new(self.handle(name.as_ref()))
    }

    /// Returns the locks with these names, to be acquired together. If there are none, more than 64,
    /// or one of them is invalid or there twice, later calls return an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let both = client.mutexes(["accounts/1", "accounts/2"]).lock().await?;
    /// assert!(both.token("accounts/1").is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn mutexes<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Mutexes {
        let keys = names.into_iter().map(|name| self.key_of(name.as_ref()));
        Mutexes::new(Arc::clone(&self.core), keys.collect())
    }

    /// Returns work that is done once per `period`, under this name. If the name or the period is
    /// invalid, later calls return an error. A name is used either for this or for a
    /// [`mutex`](Self::mutex): while a result is stored, the lock of the name cannot be acquired.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::in_memory();
    /// let daily = client.once("report", std::time::Duration::from_secs(24 * 3600));
    /// let done = daily.run(async |_| Ok::<_, std::io::Error>(b"sent".to_vec())).await?;
    /// println!("done at {:?}, token {}", done.at, done.token);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        Once::new(self.handle(name.as_ref()), period)
    }

    /// Returns the election of this name. If the name is invalid, later calls return an error. The
    /// leader is the holder of the lock of the same name.
    #[must_use]
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election::new(self.handle(name.as_ref()))
    }

    /// Returns the read-write lock with this name: several readers, or one writer. A writer is a
    /// holder of the [mutex](Client::mutex) of the same name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let (one, two) = (catalog.read().await?, catalog.read().await?);
    /// assert!(client.mutex("catalog").try_lock().await?.is_none());
    /// # drop((one, two)); Ok(()) }
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self.handle(name.as_ref()))
    }

    /// Returns the semaphore with this name and this many permits, 1 to 1024. All clients must use the
    /// same number. If the name or the number is invalid, later calls return an error. A semaphore has
    /// nothing to do with a [mutex](Client::mutex) of the same name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// // At most ten exports at a time, on all machines together:
    /// let permit = client.semaphore("exports", 10).acquire().await?;
    /// # drop(permit); Ok(()) }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: u32) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref()), permits)
    }

    /// Returns the latch with this name, which opens when all these parties have arrived. If there are
    /// none, more than 64, or one of them is invalid or there twice, later calls return an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let ready = client.latch("deploy/17", ["web-1", "web-2"]);
    /// ready.arrive("web-1").await?;
    /// assert_eq!(ready.missing().await?[0].to_string(), "web-2");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn latch<N: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parties: impl IntoIterator<Item = N>,
    ) -> Latch {
        let parties = parties.into_iter().map(Name::new).collect();
        Latch::new(self.handle(name.as_ref()), parties)
    }

    fn handle(&self, name: &[u8]) -> Handle {
        Handle::new(Arc::clone(&self.core), self.key_of(name))
    }

    /// Returns the key on the nodes: the prefix followed by the name.
    pub(crate) fn key_of(&self, name: &[u8]) -> Result<Name, Invalid> {
        self.core.key_of(name)
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Waits until a majority of nodes is connected, at most `timeout`. The other nodes then get
    /// another 100 ms to report an error that needs a change of the configuration, so a silent
    /// minority costs no more than that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a node refuses this client permanently (a wrong password, the same
    /// server twice, …), [`Error::NoMajority`] if no majority is connected yet. In both cases the
    /// client stays usable and keeps trying to connect. [`Error::RuntimeEnded`] if the runtime on
    /// which the client was created has shut down.
    ///
    /// Cancel safety: dropping the future has no effect.
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
        let majority = majority(self.core.nodes.len());
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

    /// Whether a node frees the locks of dead processes before their TTL is over, as the embedded
    /// store does. Then [`Lease::bind_to_processes`](crate::Lease::bind_to_processes) has an
    /// effect.
    #[must_use]
    pub fn frees_the_locks_of_the_dead(&self) -> bool {
        let mut nodes = self.core.nodes.iter();
        nodes.any(|node| node.frees_the_locks_of_the_dead())
    }

    /// Returns what this client has counted since it was created, and the state of its nodes. Local,
    /// without I/O. Clones of a client count together.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("orders/42").lock().await?;
    /// assert_eq!(client.stats().leases_held, 1);
    /// lease.release().await;
    /// assert_eq!(client.stats().ended.released, 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.sight().stats(&self.core.nodes)
    }

    /// Stops acquiring leases, and waits until every node has confirmed all releases, at most
    /// `grace`. Returns how many releases are still unconfirmed; those locks expire after their
    /// TTL. Leases that are still held stay held, and are renewed, until they are dropped.
    ///
    /// Cancel safety: if the future is dropped, the client stays shut down. The call can be
    /// repeated.
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
            () = self.core.finish_releases() => {}
            () = self.core.clock.sleep(grace) => {}
        }
        self.core.janitor.owed()
    }

    /// Returns an error if a node refuses this client permanently, or if no majority is connected.
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
        if working >= majority(self.core.nodes.len()) {
            return Ok(());
        }
        let outcomes = statuses.into_iter().map(|status| match status {
            None => NodeOutcome::Pending,
            Some(Ok(())) => NodeOutcome::Connected,
            Some(Err(error)) => NodeOutcome::Failed(error),
        });
        let refusal = self.core.refusal(None, outcomes);
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

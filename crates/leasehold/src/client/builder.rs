//! The builder of clients.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{Clock, TimeSource};
use crate::base::error::{Error, Invalid};
use crate::base::name::shown;
use crate::client::Client;
use crate::client::core::Parts;
#[cfg(feature = "doctor")]
use crate::client::doctor::Examined;
use crate::client::options::{MAX_TTL, MIN_TTL, Options, between};
use crate::node::{Constants, Node, NodeSettings, Replicas, Shortfall, Tls, VERIFY_AFTER};
use crate::observe::{Observer, Sight};
use crate::quorum::NodeSet;

/// Configures a client: its nodes, the constants that all clients of these nodes must agree on, and
/// the defaults of its leases. Created by [`Client::builder`].
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Options};
/// use std::time::Duration;
///
/// let client = Client::builder()
///     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .prefix("billing/")
///     .options(Options::default().ttl(Duration::from_secs(30)).label("billing"))
///     .connect()
///     .await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Default)]
pub struct Builder {
    nodes: Vec<Spec>,
    options: Options,
    skew: Option<Duration>,
    fence_retention: Option<Duration>,
    guard: Guard,
    assume_fresh: bool,
    connect_timeout: Option<Duration>,
    prefix: Vec<u8>,
    clock: Clock,
    seed: Option<u64>,
    history: bool,
    tls: Tls,
    replicas: Option<Replicas>,
    observers: Vec<Arc<dyn Observer>>,
    warn_slow_acquire: WarnSlow,
}

/// When to warn of a call that waits.
#[derive(Clone, Copy, Default)]
enum WarnSlow {
    #[default]
    Default,
    Never,
    After(Duration),
}

impl fmt::Debug for Builder {
    /// Omits the URLs, which may contain passwords, and the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("nodes", &self.nodes.len())
            .field("prefix", &shown(&self.prefix))
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg_attr(not(feature = "redis"), allow(dead_code))]
enum Spec {
    Url(String),
    Custom(Arc<dyn Node>),
}

#[derive(Clone, Copy, Default)]
enum Guard {
    #[default]
    Default,
    Off,
    For(Duration),
}

impl Builder {
    /// Adds a Redis or Valkey server: `redis://[user:pass@]host[:port][/db]`, `rediss://…` (with
    /// the `tls` feature), or `redis+unix:///path[?db=n&user=…&pass=…]`. The schemes `valkey://`,
    /// `valkeys://` and `valkey+unix://` mean the same.
    ///
    /// The master of a service that sentinels watch is one node, too:
    /// `redis+sentinel://[user:pass@]host[:port],…/service[/db]`, or `rediss+sentinel://…`. The user,
    /// the password and the database are those of the master. The sentinels' own login is
    /// `?sentinel_user=…&sentinel_pass=…`, and `sentinel_tls=yes` or `no` says whether they use TLS
    /// (default: as the master does). The client asks the sentinels for each connection that it opens,
    /// and so follows failovers. A failover may lose locks: see [`restart_guard`](Self::restart_guard).
    ///
    /// With the `local` feature, also the embedded store of this machine: `local:` (a file in the
    /// user's state directory) or `local:/path/to/file.db`. It is for the processes of one machine
    /// and must be the only node. It frees the lock of a process that has died at once (on Linux).
    ///
    /// Each node must be an independent server: not a replica, not a member of a cluster, and not
    /// the same server under another name. All clients that share locks must use the same nodes.
    /// Use an odd number of nodes: four nodes survive no more failures than three.
    #[must_use]
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(Spec::Url(url.into()));
        self
    }

    /// Adds several servers; see [`node`](Self::node).
    #[must_use]
    pub fn nodes<U: Into<String>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        urls.into_iter().fold(self, Self::node)
    }

    /// Adds a node of another kind: a [`MemoryNode`](crate::MemoryNode), or your own implementation.
    #[must_use]
    pub fn custom_node(mut self, node: impl Node) -> Self {
        self.nodes.push(Spec::Custom(Arc::new(node)));
        self
    }

    /// Sets the defaults of this client's leases.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the prefix of every name, at most 1024 bytes. Default: empty.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets the restart guard: a restarted node does not vote until it has been up for this time,
    /// because it may have lost locks that are still valid. No TTL may be longer than the guard.
    /// Must be the same for all clients of the nodes. Default: 60 s with three nodes or more, off
    /// with one or two.
    #[must_use]
    pub fn restart_guard(mut self, guard: Duration) -> Self {
        self.guard = Guard::For(guard);
        self
    }

    /// Turns the restart guard off, for nodes that never lose data (`appendfsync always`). Must be
    /// the same for all clients of the nodes.
    #[must_use]
    pub fn without_restart_guard(mut self) -> Self {
        self.guard = Guard::Off;
        self
    }

    /// Lets nodes that restarted recently vote at once: for tests, and for the first start of a
    /// deployment, when there were no locks to lose. Default: off.
    #[must_use]
    pub fn assume_fresh(mut self) -> Self {
        self.assume_fresh = true;
        self
    }

    /// Sets how far a token may be ahead of a node's clock. It must be more than the clocks of the
    /// nodes differ, and the same for all clients of the nodes. Default: 10 s, and 100 ms for the
    /// embedded store.
    #[must_use]
    pub fn skew(mut self, skew: impl Into<Option<Duration>>) -> Self {
        self.skew = skew.into();
        self
    }

    /// Sets how long the nodes remember the last token of an unused name. Must be the same for all
    /// clients of the nodes. Default: 24 h.
    #[must_use]
    pub fn fence_retention(mut self, retention: impl Into<Option<Duration>>) -> Self {
        self.fence_retention = retention.into();
        self
    }

    /// Sets how long connecting to a node may take. Default: 1 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.connect_timeout = timeout.into();
        self
    }

    /// Sets the source of time. Default: the system's clocks.
    #[must_use]
    pub fn time_source(mut self, source: impl TimeSource) -> Self {
        self.clock = Clock::from_source(Arc::new(source));
        self
    }

    /// Sets the seed of the jitter of all pauses between retries, for reproducible tests. Default:
    /// random.
    #[must_use]
    pub fn jitter_seed(mut self, seed: impl Into<Option<u64>>) -> Self {
        self.seed = seed.into();
        self
    }

    /// Adds an observer, which receives [events](crate::observe::Event) of this client's locks and
    /// nodes. Default: none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::observe::{Event, Outcome};
    /// use leasehold::{Client, MemoryNode};
    ///
    /// let client = Client::builder()
    ///     .custom_node(MemoryNode::new("memory"))
    ///     .observer(|event: &Event| {
    ///         if let Event::Acquire(call) = event
    ///             && call.outcome != Outcome::Granted
    ///         {
    ///             eprintln!("{}: {:?} after {:?}", call.name, call.outcome, call.waited);
    ///         }
    ///     })
    ///     .build()?;
    /// # drop(client); Ok(()) }
    /// ```
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Sets after which time a call that still waits for a lock logs a warning, once, with the holder
    /// of the lock if a node named one. `None`: never. Default: 10 s.
    ///
    /// A call for several locks ([`Client::mutexes`]) or permits
    /// ([`Semaphore::acquire_many`](crate::Semaphore::acquire_many)) acquires them in parts. Each part
    /// logs its own warning, and its time starts when the part does. No warning is logged for the
    /// candidates of an [`Election`](crate::Election), which are meant to stand by, nor for tasks that
    /// wait for the [`Once`](crate::Once) of another task of this client.
    #[must_use]
    pub fn warn_slow_acquire(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.warn_slow_acquire = after.into().map_or(WarnSlow::Never, WarnSlow::After);
        self
    }

    /// Records the leases of this client in the history of their names, which
    /// [`Client::history`] shows: who held the lock with which token, from when to when, and how the
    /// lease ended. Default: off.
    ///
    /// This costs one write to each node for each lease, and two if the lease is held for longer than a
    /// second. They are sent in the background, over a connection of their own. Locks do not depend on
    /// them: [`Client::history_errors`] says what could not be written. Nodes keep the last 100 to 200
    /// leases of a name, for 7 days after the last one.
    #[must_use]
    pub fn history(mut self) -> Self {
        self.history = true;
        self
    }

    /// Sets how many replicas of a server must have a lock before the server's vote counts. A vote that
    /// too few replicas acknowledge within [`Options::node_timeout`] is an error
    /// ([`NodeError::NotReplicated`](crate::node::NodeError::NotReplicated)), and the lock is released
    /// again. Default: 0, which means that votes count at once.
    ///
    /// A replica that is promoted then has the locks, if it is one that has acknowledged them. That is
    /// certain if the number is that of all replicas. The same holds for renewals and results
    /// ([`Once`](crate::Once)), but not for names that are kept after a release
    /// ([`Options::min_hold`]): that release is reported as done in any case. Each request takes a round trip
    /// more, over a connection of its own, and one that hands a lock over to a waiter takes two more.
    ///
    /// This is for servers with a URL; custom nodes ignore it. The embedded store has no replicas.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::builder()
    ///     .node("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/locks")
    ///     .replicas(2)
    ///     .build()?;
    /// # drop(client); Ok(()) }
    /// ```
    #[must_use]
    pub fn replicas(self, number: u32) -> Self {
        self.replicated(number, Shortfall::Refuse)
    }

    /// As [`replicas`](Self::replicas), but a lock that too few replicas have counts, too. While
    /// replicas are missing, votes do not wait for them; a warning is logged when this begins, and a
    /// message at level INFO when it ends. Default: 0.
    #[must_use]
    pub fn prefer_replicas(self, number: u32) -> Self {
        self.replicated(number, Shortfall::Warn)
    }

    fn replicated(mut self, wanted: u32, otherwise: Shortfall) -> Self {
        self.replicas = Some(Replicas { wanted, otherwise });
        self
    }

    /// Sets the certificate authority (PEM) that signed the certificates of `rediss://` nodes.
    /// Default: Mozilla's root certificates.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.root = Some(pem.into());
        self
    }

    /// Sets the certificate and key (PEM) that the client presents to `rediss://` nodes that
    /// require one. Default: none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.client = Some((certificate.into(), key.into()));
        self
    }

    /// Creates the client. It connects in the background when a lock is first requested, or when
    /// [`Client::ready`] is called. A client that only inspects locks ([`Client::inspect`]) writes
    /// nothing to its nodes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for invalid nodes or options.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    pub fn build(self) -> Result<Client, Error> {
        let options = self.options.clone();
        let (prefix, history) = (self.prefix.clone(), self.history);
        let (settings, specs) = self.settings()?;
        options.validate(settings.constants.restart_guard)?;
        let nodes = open(parse(specs, &settings)?, &settings)?;
        Ok(client(nodes, settings, options, (prefix, history)))
    }

    /// Returns the settings of the nodes, the nodes, and the options of leases. Starts nothing.
    #[cfg(feature = "doctor")]
    pub(super) fn opened(self) -> Result<(NodeSettings, Vec<Examined>, Options), Error> {
        let options = self.options.clone();
        let (settings, specs) = self.settings()?;
        let opened = parse(specs, &settings)?;
        let nodes = opened.iter().map(Examined::of).collect();
        Ok((settings, nodes, options))
    }

    /// Creates a client that records no history, and returns its nodes, too.
    #[cfg(feature = "doctor")]
    pub(super) fn build_with_nodes(self) -> Result<(Client, NodeSettings, Vec<Examined>), Error> {
        let options = self.options.clone();
        let prefix = self.prefix.clone();
        let (settings, specs) = self.settings()?;
        options.validate(settings.constants.restart_guard)?;
        let opened = parse(specs, &settings)?;
        let nodes = opened.iter().map(Examined::of).collect();
        let node_tasks = open(opened, &settings)?;
        let client = client(node_tasks, settings.clone(), options, (prefix, false));
        Ok((client, settings, nodes))
    }

    /// Returns the settings of the nodes, and the nodes.
    fn settings(self) -> Result<(NodeSettings, Vec<Spec>), Invalid> {
        let constants = self.constants()?;
        self.tls.validate()?;
        self.check_replicas()?;
        let warn_slow_acquire = match self.warn_slow_acquire {
            WarnSlow::Default => Some(Duration::from_secs(10)),
            WarnSlow::Never => None,
            WarnSlow::After(after) => Some(after),
        };
        let (clock, nodes) = (self.clock.clone(), self.nodes.len());
        let sight = Sight::new(clock, nodes, self.observers, warn_slow_acquire);
        let connect_timeout = checked_connect_timeout(self.connect_timeout)?;
        let settings = NodeSettings {
            constants,
            assume_fresh: self.assume_fresh,
            prefix: self.prefix,
            connect_timeout,
            verify_after: VERIFY_AFTER,
            clock: self.clock,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            tls: self.tls,
            replicas: self.replicas.filter(|replicas| replicas.wanted > 0),
            sight: Arc::new(sight),
        };
        Ok((settings, self.nodes))
    }

    /// Creates the client and waits until a majority of its nodes is connected, at most the connect
    /// timeout. A minority that cannot be reached is not an error.
    ///
    /// # Errors
    /// Those of [`build`](Self::build) and of [`Client::ready`].
    ///
    /// Cancel safety: dropping the future drops the client, and has no other effect.
    pub async fn connect(self) -> Result<Client, Error> {
        let timeout = checked_connect_timeout(self.connect_timeout)?;
        let client = self.build()?;
        client.ready(timeout).await?;
        Ok(client)
    }

    /// Records the nodes of this client as a set on each of their servers, before the first client
    /// uses them. All servers must be reachable.
    ///
    /// Without this call, the first client that reaches its servers records the set. With it, new
    /// servers vote at once: the restart guard is for servers that may have lost locks, and the
    /// operator who sets up new servers knows that there were none. Call this once for a
    /// deployment, not after a restart. If the same set is already on record, nothing changes.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// for done in leasehold::Client::builder().nodes(nodes).init().await? {
    ///     println!("{}: {:?}", done.node, done.change);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and [`Error::Invalid`] with the node that could not be
    /// reached, or that has another set of nodes or other constants on record.
    ///
    /// Cancel safety: if the future is dropped, some servers may have the record and others may
    /// not. Call it again.
    #[cfg(feature = "redis")]
    pub async fn init(self) -> Result<Vec<crate::node::Initialized>, Error> {
        self.record(crate::node::redis::Existing::Refuse).await
    }

    /// Records the nodes of this client like [`init`](Self::init), and replaces other nodes or
    /// constants on record: to add nodes, to replace a server, or to change a constant.
    ///
    /// Within one second, the servers refuse clients of the earlier set, which then lose their
    /// leases. The nodes do not vote until none of those leases can be valid; see
    /// [`Initialized::votes_in`](crate::node::Initialized::votes_in).
    /// [`assume_fresh`](Self::assume_fresh) skips that wait, for when no client is running.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// // From one node to three.
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// leasehold::Client::builder().nodes(nodes).init_replacing().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`init`](Self::init), except for records that differ.
    ///
    /// Cancel safety: if the future is dropped, some servers may have the new record and others may
    /// not. Call it again.
    #[cfg(feature = "redis")]
    pub async fn init_replacing(self) -> Result<Vec<crate::node::Initialized>, Error> {
        self.record(crate::node::redis::Existing::Replace).await
    }

    #[cfg(feature = "redis")]
    async fn record(
        self,
        existing: crate::node::redis::Existing,
    ) -> Result<Vec<crate::node::Initialized>, Error> {
        let (settings, targets) = self.targets()?;
        crate::node::redis::init(targets, &settings, existing)
            .await
            .map_err(|(node, error)| Invalid::Node { node, error }.into())
    }

    /// Asks each server when it votes: zero if it does now. A server that restarted or was promoted
    /// recently does not vote until the [restart guard](Self::restart_guard) is over, and the nodes
    /// of a set that replaced another do not vote until all leases of the earlier set have expired.
    /// Records nothing. Nodes of other kinds always vote, and are left out.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// for (node, votes_in) in leasehold::Client::builder().node("redis://10.0.0.1").votes_in().await? {
    ///     println!("{node}: {votes_in:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid URL or option. The error of a server is in the list.
    ///
    /// Cancel safety: dropping the future has no effect.
    #[cfg(feature = "redis")]
    pub async fn votes_in(
        self,
    ) -> Result<Vec<(String, Result<Duration, crate::node::NodeError>)>, Error> {
        let (settings, targets) = self.targets()?;
        Ok(crate::node::redis::votes_in(targets, &settings).await)
    }

    /// The Redis servers among the nodes. Nodes of other kinds have no record.
    #[cfg(feature = "redis")]
    fn targets(self) -> Result<(NodeSettings, Vec<crate::node::redis::Target>), Invalid> {
        let (settings, specs) = self.settings()?;
        let mut targets = Vec::with_capacity(specs.len());
        for opened in parse(specs, &settings)? {
            if let Opened::Redis(target) = opened {
                targets.push(*target);
            }
        }
        Ok((settings, targets))
    }

    fn constants(&self) -> Result<Constants, Invalid> {
        if self.nodes.is_empty() {
            return Err(Invalid::NoNodes);
        }
        if self.nodes.len() > NodeSet::MAX {
            return Err(Invalid::Number {
                option: "the number of nodes",
                value: self.nodes.len() as u64,
                min: 1,
                max: NodeSet::MAX as u64,
            });
        }
        if self.prefix.len() > crate::Name::MAX_LEN {
            return Err(Invalid::Number {
                option: "the length of the prefix",
                value: self.prefix.len() as u64,
                min: 0,
                max: crate::Name::MAX_LEN as u64,
            });
        }
        let mut constants = Constants::for_nodes(self.nodes.len());
        #[cfg(all(feature = "local", unix))]
        if let [Spec::Url(url)] = &*self.nodes
            && url.starts_with("local:")
        {
            constants.skew = crate::node::local::SKEW;
        }
        if let Some(skew) = self.skew {
            between("skew", skew, Duration::from_millis(1), MAX_TTL)?;
            constants.skew = skew;
        }
        if let Some(retention) = self.fence_retention {
            // If the retention were shorter than the skew, a missing fence would read as too high.
            let most = Duration::from_secs(366 * 24 * 3600);
            between("fence_retention", retention, Duration::from_secs(60), most)?;
            constants.fence_retention = retention;
        }
        match self.guard {
            Guard::Default => {}
            Guard::Off => constants.restart_guard = None,
            Guard::For(guard) => {
                between("restart_guard", guard, MIN_TTL, MAX_TTL)?;
                constants.restart_guard = Some(guard);
            }
        }
        Ok(constants)
    }

    fn check_replicas(&self) -> Result<(), Invalid> {
        let Some(Replicas { wanted, .. }) = self.replicas else {
            return Ok(());
        };
        if wanted > MAX_REPLICAS {
            return Err(Invalid::Number {
                option: "the number of replicas",
                value: wanted.into(),
                min: 0,
                max: MAX_REPLICAS.into(),
            });
        }
        let is_local = |spec: &Spec| matches!(spec, Spec::Url(url) if url.starts_with("local:"));
        match self.nodes.iter().position(is_local).filter(|_| wanted > 0) {
            None => Ok(()),
            Some(index) => Err(Invalid::NodeUrl {
                index: index + 1,
                why: "the embedded store has no replicas; leave `replicas` out, or use a server"
                    .into(),
            }),
        }
    }
}

/// More replicas than this make no sense for one server.
const MAX_REPLICAS: u32 = 64;

fn checked_connect_timeout(timeout: Option<Duration>) -> Result<Duration, Invalid> {
    let timeout = timeout.unwrap_or(Duration::from_secs(1));
    let least = Duration::from_millis(1);
    between("connect_timeout", timeout, least, MAX_TTL)?;
    Ok(timeout)
}

/// A node that is checked but not started yet.
pub(super) enum Opened {
    Node(Arc<dyn Node>),
    #[cfg(all(feature = "local", unix))]
    Local(std::path::PathBuf),
    #[cfg(feature = "redis")]
    Redis(Box<crate::node::redis::Target>),
}

/// Parses all URLs, before the first connection is opened.
fn parse(specs: Vec<Spec>, settings: &NodeSettings) -> Result<Vec<Opened>, Invalid> {
    let nodes = specs.len();
    let mut opened = Vec::with_capacity(nodes);
    for (index, spec) in specs.into_iter().enumerate() {
        opened.push(match spec {
            Spec::Custom(node) => Opened::Node(node),
            Spec::Url(url) => read(&url, settings, nodes).map_err(|why| {
                let index = index + 1;
                Invalid::NodeUrl { index, why }
            })?,
        });
    }
    Ok(opened)
}

/// Creates a client of these nodes.
fn client(
    nodes: Vec<Arc<dyn Node>>,
    settings: NodeSettings,
    options: Options,
    (prefix, history): (Vec<u8>, bool),
) -> Client {
    Client::from_parts(Parts {
        nodes,
        clock: settings.clock,
        options,
        constants: settings.constants,
        prefix,
        seed: settings.seed,
        sight: settings.sight,
        history,
    })
}

/// Starts the nodes.
#[cfg_attr(
    not(any(feature = "redis", feature = "local")),
    allow(unused_variables)
)]
fn open(opened: Vec<Opened>, settings: &NodeSettings) -> Result<Vec<Arc<dyn Node>>, Invalid> {
    #[cfg(feature = "redis")]
    let roster = {
        let labels = opened.iter().filter_map(|opened| match opened {
            Opened::Redis(target) => Some(target.label().to_owned()),
            _ => None,
        });
        let (labels, clock) = (labels.collect(), settings.clock.clone());
        let roster = crate::node::redis::Roster::new(labels, opened.len(), clock);
        Arc::new(roster)
    };
    #[cfg(feature = "redis")]
    let mut places = 0..;
    let start = |(_index, opened)| {
        Ok(match opened {
            Opened::Node(node) => node,
            #[cfg(all(feature = "local", unix))]
            Opened::Local(path) => {
                crate::node::local::create_directory_of(&path).map_err(|why| {
                    let index = _index + 1;
                    Invalid::NodeUrl { index, why }
                })?;
                Arc::new(crate::node::local::LocalNode::start(&path, settings)) as Arc<dyn Node>
            }
            #[cfg(feature = "redis")]
            Opened::Redis(target) => Arc::new(crate::node::redis::RedisNode::start(
                *target,
                settings,
                Arc::clone(&roster),
                places.next().unwrap_or_default(),
                settings.sight.watch_node(_index),
            )),
        })
    };
    opened.into_iter().enumerate().map(start).collect()
}

/// Parses the URL of one of `nodes` nodes.
fn read(url: &str, settings: &NodeSettings, nodes: usize) -> Result<Opened, String> {
    if url.starts_with("local:") {
        if nodes > 1 {
            return Err("`local:` is a store of one machine and must be the only node".into());
        }
        return read_local(url);
    }
    read_redis(url, settings)
}

#[cfg(all(feature = "local", unix))]
fn read_local(url: &str) -> Result<Opened, String> {
    crate::node::local::path_of(url).map(Opened::Local)
}

#[cfg(not(all(feature = "local", unix)))]
fn read_local(_: &str) -> Result<Opened, String> {
    Err("`local:` requires the `local` feature of leasehold, and Unix".into())
}

#[cfg(feature = "redis")]
fn read_redis(url: &str, settings: &NodeSettings) -> Result<Opened, String> {
    crate::node::redis::Target::parse(url, settings).map(|target| Opened::Redis(Box::new(target)))
}

#[cfg(not(feature = "redis"))]
fn read_redis(_: &str, _: &NodeSettings) -> Result<Opened, String> {
    Err("the URL of a server requires the `redis` feature of leasehold".into())
}

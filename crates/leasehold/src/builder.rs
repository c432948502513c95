//! The description of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::clock::{Clock, TimeSource};
use crate::core::Parts;
use crate::error::{Error, Invalid};
use crate::node::rules::Constants;
use crate::node::{Node, NodeSettings, Tls};
use crate::options::{MAX_TTL, MIN_TTL, Options, between};
use crate::quorum::NodeSet;

/// Describes a client: its nodes, what all clients of these nodes must agree on, and
/// the defaults of its leases. Made by [`Client::builder`].
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
    tls: Tls,
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
    /// Adds a Redis or Valkey server: `redis://[user:pass@]host[:port][/db]`, `rediss://…`
    /// (with the `tls` feature), or `redis+unix:///path[?db=n&user=…&pass=…]`.
    /// `valkey://` and the like are the same.
    ///
    /// Or, with the `local` feature, the embedded store of this machine: `local:` (a file in
    /// the user's state directory) or `local:/path/to/file.db`. It is for the processes of
    /// one machine and must be the only node. The lock of a process that has died is free at
    /// once there.
    ///
    /// Each node must be a server of its own: not a replica, not a member of a cluster,
    /// not the same server under another name. All clients that share locks must name
    /// the same nodes. An odd number is best: a fourth node survives no more failures
    /// than three do.
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

    /// Adds a node of another kind: a [`MemoryNode`](crate::MemoryNode), or one of your own.
    #[must_use]
    pub fn custom_node(mut self, node: impl Node) -> Self {
        self.nodes.push(Spec::Custom(Arc::new(node)));
        self
    }

    /// The defaults of this client's leases.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Default empty. Put before every name. At most 1024 bytes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Default 60 s from three nodes on, off below. A restarted node does not vote until
    /// it has been up for so long, because it may have forgotten locks that still run.
    /// No TTL may be longer. The same for all clients of the nodes.
    #[must_use]
    pub fn restart_guard(mut self, guard: Duration) -> Self {
        self.guard = Guard::For(guard);
        self
    }

    /// Turns the restart guard off: for nodes that never forget (`appendfsync always`).
    /// The same for all clients of the nodes.
    #[must_use]
    pub fn without_restart_guard(mut self) -> Self {
        self.guard = Guard::Off;
        self
    }

    /// Default off. Nodes that restarted not long ago vote at once: for tests, and for
    /// the first start of a deployment, when there was nothing to forget.
    #[must_use]
    pub fn assume_fresh(mut self) -> Self {
        self.assume_fresh = true;
        self
    }

    /// Default 10 s. How far a token may be ahead of a node's clock; more than the
    /// nodes' clocks differ. The same for all clients of the nodes.
    #[must_use]
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = Some(skew);
        self
    }

    /// Default 24 h. How long the nodes remember the last token of a name that is not
    /// used. The same for all clients of the nodes.
    #[must_use]
    pub fn fence_retention(mut self, retention: Duration) -> Self {
        self.fence_retention = Some(retention);
        self
    }

    /// Default 1 s. How long connecting to a node may take.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Default the system's clocks.
    #[must_use]
    pub fn time_source(mut self, source: impl TimeSource) -> Self {
        self.clock = Clock::from_source(Arc::new(source));
        self
    }

    /// Default random. Seeds the jitter between attempts, for tests that replay.
    #[must_use]
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Default Mozilla's roots. The certificate authority (PEM) that signed the
    /// certificates of `rediss://` nodes.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.root = Some(pem.into());
        self
    }

    /// Default none. The certificate and key (PEM) to show to `rediss://` nodes that
    /// ask for one.
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

    /// Makes the client and starts to connect in the background. Leases can be asked
    /// for at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what cannot work.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    pub fn build(self) -> Result<Client, Error> {
        let constants = self.constants()?;
        self.options.validate(constants.restart_guard)?;
        let settings = NodeSettings {
            constants,
            assume_fresh: self.assume_fresh,
            connect_timeout: self.checked_connect_timeout()?,
            clock: self.clock.clone(),
            tls: self.tls,
        };
        Ok(Client::from_parts(Parts {
            nodes: open(self.nodes, &settings)?,
            clock: self.clock,
            options: self.options,
            constants,
            prefix: self.prefix,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
        }))
    }

    /// Makes the client and waits until its nodes have been reached, at most the
    /// connect timeout. A minority that cannot be reached is no error.
    ///
    /// # Errors
    /// Those of [`build`](Self::build) and of [`Client::ready`].
    ///
    /// Cancel safety: leaves nothing behind.
    pub async fn connect(self) -> Result<Client, Error> {
        let timeout = self.checked_connect_timeout()?;
        let client = self.build()?;
        client.ready(timeout).await?;
        Ok(client)
    }

    fn checked_connect_timeout(&self) -> Result<Duration, Invalid> {
        let timeout = self.connect_timeout.unwrap_or(Duration::from_secs(1));
        between(
            "connect_timeout",
            timeout,
            Duration::from_millis(1),
            MAX_TTL,
        )?;
        Ok(timeout)
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
            // Shorter than the skew, a missing fence would read as too high.
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
}

/// A node that is still to be started, once all are known to make sense.
enum Opened {
    Node(Arc<dyn Node>),
    #[cfg(all(feature = "local", unix))]
    Local(std::path::PathBuf),
    #[cfg(feature = "redis")]
    Redis(Box<crate::node::redis::Target>),
}

fn open(specs: Vec<Spec>, settings: &NodeSettings) -> Result<Vec<Arc<dyn Node>>, Invalid> {
    let several = specs.len() > 1;
    // All URLs are read before the first connection is opened.
    let mut opened = Vec::with_capacity(specs.len());
    for (index, spec) in specs.into_iter().enumerate() {
        opened.push(match spec {
            Spec::Custom(node) => Opened::Node(node),
            Spec::Url(url) => read(&url, settings, several).map_err(|why| {
                let index = index + 1;
                Invalid::NodeUrl { index, why }
            })?,
        });
    }
    #[cfg(feature = "redis")]
    let roster = Arc::new(crate::node::redis::Roster::default());
    let start = |opened| match opened {
        Opened::Node(node) => node,
        #[cfg(all(feature = "local", unix))]
        Opened::Local(path) => {
            Arc::new(crate::node::local::LocalNode::start(&path, settings)) as Arc<dyn Node>
        }
        #[cfg(feature = "redis")]
        Opened::Redis(target) => Arc::new(crate::node::redis::RedisNode::start(
            *target,
            settings,
            Arc::clone(&roster),
        )),
    };
    Ok(opened.into_iter().map(start).collect())
}

fn read(url: &str, settings: &NodeSettings, several: bool) -> Result<Opened, String> {
    if url.starts_with("local:") {
        if several {
            return Err("a local store serves one machine and must be the only node".into());
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
    Err("`local:` needs the `local` feature of leasehold, and Unix".into())
}

#[cfg(feature = "redis")]
fn read_redis(url: &str, settings: &NodeSettings) -> Result<Opened, String> {
    crate::node::redis::Target::parse(url, settings).map(|target| Opened::Redis(Box::new(target)))
}

#[cfg(not(feature = "redis"))]
fn read_redis(_: &str, _: &NodeSettings) -> Result<Opened, String> {
    Err("servers by URL need the `redis` feature of leasehold".into())
}

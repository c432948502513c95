//! A node on a Redis or Valkey server. Only this module uses the `redis` crate.

mod bells;
mod connection;
#[cfg(feature = "doctor")]
pub(crate) mod examine;
mod identity;
mod init;
mod reply;
mod request;
mod resp;
mod roster;
mod scripts;
mod session;
mod set;
mod stream;
mod survey;
mod template;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};

use super::link::Link;
use super::{Call, Claim, Node, NodeError, Notifier, Survey, Watch};
use crate::base::name::Name;
use crate::node::NodeSettings;
use bells::Bells;
use connection::Connection;
use reply::connection_error;
use tls::TlsClient;

pub use init::{Change, Initialized};
pub(crate) use init::{Existing, init, votes_in};
pub(crate) use roster::Roster;

/// A server, and how to connect to it.
#[derive(Clone)]
pub(crate) struct Target {
    info: ConnectionInfo,
    tls: TlsClient,
    label: String,
}

impl Target {
    /// Parses a URL. The error says what is wrong without showing the URL, which may contain a
    /// password.
    pub(crate) fn parse(url: &str, settings: &NodeSettings) -> Result<Self, String> {
        const FORMS: &str = "expected redis://[user:pass@]host[:port][/db], rediss://…, \
                             redis+unix:///path, or local: for the embedded store";
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("redis" | "rediss" | "valkey" | "valkeys") => {}
            Some("redis+unix" | "valkey+unix" | "unix") => {}
            _ => return Err(format!("not a URL of a known kind; {FORMS}")),
        }
        if matches!(scheme, Some("rediss" | "valkeys")) && !cfg!(feature = "tls") {
            return Err("TLS needs the `tls` feature of leasehold".into());
        }
        // Only the path of a socket has parameters, which say the database and the user. Elsewhere
        // they would be ignored.
        let is_socket = matches!(scheme, Some("redis+unix" | "valkey+unix" | "unix"));
        if !is_socket && url.contains('?') {
            return Err(format!(
                "it has parameters after a `?`, which are not supported; {FORMS} (in a password, \
                 write `?` as %3F)"
            ));
        }
        let info = url
            .into_connection_info()
            .map_err(|_| format!("its host, port or database cannot be read; {FORMS}"))?;
        let label = label(&info);
        let redis = info
            .redis_settings()
            .clone()
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(
                    "TLS without a check of the server's certificate is not supported".into(),
                );
            }
            ConnectionAddr::TcpTls { .. } => TlsClient::new(settings)?,
            _ => TlsClient::default(),
        };
        Ok(Self {
            info: info.set_redis_settings(redis),
            tls,
            label,
        })
    }

    /// Opens a connection. Waiters are notified of what the server pushes, if the protocol lets it.
    async fn open(
        &self,
        protocol: ProtocolVersion,
        bells: Weak<Bells>,
    ) -> Result<Connection, RedisError> {
        let settings = self.info.redis_settings().clone().set_protocol(protocol);
        let info = self.info.clone().set_redis_settings(settings);
        let stream = stream::open(&info, &self.tls).await?;
        Ok(Connection::new(stream, bells))
    }

    /// Opens a connection to inspect or set up a server, within a time limit.
    async fn open_within(&self, timeout: Duration) -> Result<Connection, NodeError> {
        let opening = self.open(ProtocolVersion::RESP2, Weak::new());
        match tokio::time::timeout(timeout, opening).await {
            Ok(opened) => opened.map_err(|error| connection_error(&error)),
            Err(_) => Err(NodeError::TimedOut { after: timeout }),
        }
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

/// Returns the label of a server, without credentials.
fn label(info: &ConnectionInfo) -> String {
    let address = match info.addr() {
        ConnectionAddr::Unix(path) => path.display().to_string(),
        address => address.to_string(),
    };
    match info.redis_settings().db() {
        0 => address,
        db => format!("{address}/{db}"),
    }
}

/// A node on a Redis or Valkey server.
pub(crate) struct RedisNode {
    link: Link,
    target: Target,
    timeout: Duration,
    bells: Arc<Bells>,
}

impl RedisNode {
    /// Starts a task that lives as long as this node. It connects when it is first needed.
    ///
    /// `place` is the index of the node in the roster.
    pub(crate) fn start(
        target: Target,
        settings: &NodeSettings,
        roster: Arc<Roster>,
        place: usize,
    ) -> Self {
        let bells = Arc::new(Bells::new());
        let connector = session::Connector::new(
            target.clone(),
            settings,
            (place, roster),
            Arc::clone(&bells),
        );
        let (clock, seed) = (settings.clock.clone(), settings.seed ^ place as u64);
        Self {
            link: Link::start(connector, clock, settings.verify_after, seed),
            target,
            timeout: settings.connect_timeout,
            bells,
        }
    }
}

impl Node for RedisNode {
    fn label(&self) -> &str {
        &self.target.label
    }

    fn submit(&self, call: Call) {
        self.link.submit(call);
    }

    fn connect(&self) {
        self.link.connect();
    }

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.link.status()
    }

    fn floor(&self) -> u64 {
        self.link.floor()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.bells.watch(claim, notifier))
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let (target, name) = (self.target.clone(), name.cloned());
        Box::pin(survey::survey(target, self.timeout, name))
    }
}

//! A node on a Redis or Valkey server. Only this module uses the `redis` crate.

mod bells;
mod identity;
mod init;
mod reply;
mod roster;
mod scripts;
mod session;
mod set;
mod survey;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::link::Link;
use super::{Call, Claim, Node, NodeError, Notifier, Survey, Watch};
use crate::base::name::Name;
use crate::node::NodeSettings;
use bells::Bells;

pub use init::{Change, Initialized};
pub(crate) use init::{Existing, init, votes_in};
pub(crate) use roster::Roster;

/// A server, and how to connect to it.
pub(crate) struct Target {
    client: redis::Client,
    /// The same server, for a connection on which it may push messages.
    pushing: redis::Client,
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
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let open = |protocol| {
            let redis = redis.clone().set_protocol(protocol);
            open(info.clone().set_redis_settings(redis), settings)
                .map_err(|error| error.category().to_owned())
        };
        Ok(Self {
            client: open(ProtocolVersion::RESP2)?,
            pushing: open(ProtocolVersion::RESP3)?,
            label,
        })
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

#[cfg(feature = "tls")]
fn open(info: ConnectionInfo, settings: &NodeSettings) -> redis::RedisResult<redis::Client> {
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return redis::Client::open(info);
    }
    // rustls needs a cryptography provider, unless the program has chosen one.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread was faster, its provider is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let certificates = redis::TlsCertificates {
        client_tls: settings
            .tls
            .client
            .clone()
            .map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
        root_cert: settings.tls.root.clone(),
    };
    redis::Client::build_with_tls(info, certificates)
}

#[cfg(not(feature = "tls"))]
fn open(info: ConnectionInfo, _: &NodeSettings) -> redis::RedisResult<redis::Client> {
    redis::Client::open(info)
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
    label: String,
    link: Link,
    client: redis::Client,
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
        let (label, client) = (target.label.clone(), target.client.clone());
        let bells = Arc::new(Bells::new());
        let connector =
            session::Connector::new(target, settings, (place, roster), Arc::clone(&bells));
        let (clock, seed) = (settings.clock.clone(), settings.seed ^ place as u64);
        Self {
            label,
            link: Link::start(connector, clock, settings.verify_after, seed),
            client,
            timeout: settings.connect_timeout,
            bells,
        }
    }
}

impl Node for RedisNode {
    fn label(&self) -> &str {
        &self.label
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
        let (client, name) = (self.client.clone(), name.cloned());
        Box::pin(survey::survey(client, self.timeout, name))
    }
}

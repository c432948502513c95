//! A node on a Redis or Valkey server. The only module that names the `redis` crate.

mod batch;
mod bells;
mod identity;
mod init;
mod link;
mod reply;
mod roster;
mod scripts;
mod serving;
mod session;
mod set;
mod survey;
mod template;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use tokio::sync::{Notify, mpsc};

use super::{Call, Claim, Node, NodeError, Notifier, Survey, Watch};
use crate::base::name::Name;
use crate::node::NodeSettings;
use bells::Bells;

pub use init::{Change, Initialized};
pub(crate) use init::{Existing, init};
pub(crate) use roster::Roster;

/// A server, and how to get there.
pub(crate) struct Target {
    client: redis::Client,
    /// The same, for a connection over which the server may push messages.
    pushing: redis::Client,
    label: String,
}

impl Target {
    /// Reads a URL. The error says what is wrong without showing the URL, which may
    /// hold a password.
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
    // rustls wants to be told which cryptography to use, unless the program has chosen.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody may have been quicker, which is as good.
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

/// The server without credentials.
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
    calls: mpsc::UnboundedSender<Call>,
    status: Arc<Status>,
    client: redis::Client,
    timeout: Duration,
    bells: Arc<Bells>,
}

/// What is known of the server, for those who do not ask it.
#[derive(Default)]
pub(super) struct Status {
    /// Whether it can be asked.
    state: Mutex<Option<Result<(), NodeError>>>,
    /// It cannot, and there is no reason to hope: calls need not wait to hear so.
    away: AtomicBool,
    floor: AtomicU64,
    /// The node is to connect, although there is no call yet.
    needed: Notify,
}

impl Status {
    fn get(&self) -> Option<Result<(), NodeError>> {
        self.state().clone()
    }

    fn set(&self, state: Result<(), NodeError>) {
        *self.state() = Some(state);
    }

    fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Release);
    }

    /// What to tell a call that is not sent.
    ///
    /// Errors that name a cause to mend are passed on as they are. Only a call that was
    /// not sent may be said to be `Unreachable`.
    fn excuse(&self) -> NodeError {
        match self.get() {
            Some(Err(error)) if error.is_permanent() || error.is_passing() => error,
            Some(Err(error @ (NodeError::Unreachable { .. } | NodeError::Protocol { .. }))) => {
                error
            }
            Some(Err(NodeError::Disconnected { why })) => NodeError::Unreachable { why },
            Some(Err(error)) => NodeError::Unreachable {
                why: error.to_string(),
            },
            _ => NodeError::Unreachable {
                why: "still connecting".into(),
            },
        }
    }

    fn set_floor(&self, floor: u64) {
        self.floor.store(floor, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, Option<Result<(), NodeError>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisNode {
    /// Starts a task that lives as long as this node. It connects when it is first needed.
    ///
    /// `place` is the node's place in the roster.
    pub(crate) fn start(
        target: Target,
        settings: &NodeSettings,
        roster: Arc<Roster>,
        place: usize,
    ) -> Self {
        let (calls, inbox) = mpsc::unbounded_channel();
        let status = Arc::new(Status::default());
        let (label, client) = (target.label.clone(), target.client.clone());
        let timeout = settings.connect_timeout;
        let bells = Arc::new(Bells::new());
        let connector =
            session::Connector::new(target, settings, (place, roster), Arc::clone(&bells));
        let link = link::Link::new(
            connector,
            settings.clock.clone(),
            Arc::clone(&status),
            inbox,
        );
        tokio::spawn(link.run());
        Self {
            label,
            calls,
            status,
            client,
            timeout,
            bells,
        }
    }
}

impl Node for RedisNode {
    fn label(&self) -> &str {
        &self.label
    }

    fn submit(&self, call: Call) {
        if self.status.away.load(Ordering::Acquire) {
            // Without a detour: a dead node costs next to nothing.
            return call.answer(Err(self.status.excuse()));
        }
        // If the link is gone with its runtime, the call is dropped: unanswered.
        let _ = self.calls.send(call);
    }

    fn connect(&self) {
        self.status.needed.notify_one();
    }

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.status.get()
    }

    fn floor(&self) -> u64 {
        self.status.floor.load(Ordering::Relaxed)
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.bells.watch(claim, notifier))
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let (client, name) = (self.client.clone(), name.cloned());
        Box::pin(survey::survey(client, self.timeout, name))
    }
}

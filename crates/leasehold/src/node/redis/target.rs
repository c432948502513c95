//! A server, and how to connect to it: at an address, or wherever the sentinels of a service say that
//! its master is.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError,
};

use super::bells::Bells;
use super::connection::Connection;
use super::reply::connection_error;
use super::sentinel::Service;
use super::stream;
use super::tls::TlsClient;
use crate::node::{NodeError, NodeSettings};

const FORMS: &str = "expected redis://[user:pass@]host[:port][/db], rediss://…, redis+unix:///path, \
                     redis+sentinel://[user:pass@]host[:port],…/service[/db], or local: for the \
                     embedded store";

/// A server, and how to connect to it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(super) place: Place,
    pub(super) tls: TlsClient,
    pub(super) label: String,
}

/// Where a server is.
#[derive(Clone)]
pub(super) enum Place {
    /// At this address.
    Fixed(Box<ConnectionInfo>),
    /// Where the sentinels say. It is asked for again for each connection.
    Service(Arc<Service>),
    /// Where the sentinels said once.
    Found(Box<ConnectionInfo>, Arc<Service>),
}

/// What a server can send over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushes {
    Possible,
    /// The server, or a proxy in front of it, does not support RESP3.
    Never,
}

impl Target {
    /// Parses a URL. The error says what is wrong without showing the URL, which may contain a
    /// password.
    pub(crate) fn parse(url: &str, settings: &NodeSettings) -> Result<Self, String> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        let uses_tls = match scheme {
            Some("redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix") => false,
            Some("redis+sentinel" | "valkey+sentinel") => false,
            Some("rediss" | "valkeys" | "rediss+sentinel" | "valkeys+sentinel") => true,
            Some("redis+cluster" | "rediss+cluster" | "valkey+cluster" | "valkeys+cluster") => {
                return Err(
                    "a Redis Cluster cannot be a node, because its members hand names over to each \
                     other; use a server with `cluster-enabled no`, a single-shard instance of your \
                     provider, or Sentinel (redis+sentinel://)"
                        .into(),
                );
            }
            _ => return Err(format!("not a URL of a known kind; {FORMS}")),
        };
        if uses_tls && !cfg!(feature = "tls") {
            return Err("TLS needs the `tls` feature of leasehold".into());
        }
        if scheme.is_some_and(|scheme| scheme.ends_with("+sentinel")) {
            let service = Service::parse(url, settings.connect_timeout)?;
            return Ok(Self {
                label: service.label(),
                tls: match service.uses_tls() {
                    true => TlsClient::new(settings)?,
                    false => TlsClient::default(),
                },
                place: Place::Service(Arc::new(service)),
            });
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
            label: label(&info),
            place: Place::Fixed(Box::new(named(info))),
            tls,
        })
    }

    /// Opens a connection on which the server can push messages, if it is able to. Waiters are
    /// notified of them.
    pub(super) async fn open_pushing(
        &self,
        bells: Weak<Bells>,
    ) -> Result<(Connection, Pushes), NodeError> {
        let info = self.find().await?;
        let opened = self.connect(&info, ProtocolVersion::RESP3, bells.clone());
        let opened = match opened.await {
            Err(error) if error.kind() == ErrorKind::RESP3NotSupported => {
                let opened = self.connect(&info, ProtocolVersion::RESP2, bells);
                opened.await.map(|connection| (connection, Pushes::Never))
            }
            opened => opened.map(|connection| (connection, Pushes::Possible)),
        };
        let (connection, pushes) = opened.map_err(|error| self.failed(&info, &error))?;
        self.verify(&info, &connection).await?;
        Ok((connection, pushes))
    }

    /// Opens a connection on which the server only answers.
    pub(super) async fn open(&self) -> Result<Connection, NodeError> {
        let info = self.find().await?;
        let opened = self.connect(&info, ProtocolVersion::RESP2, Weak::new());
        let connection = opened.await.map_err(|error| self.failed(&info, &error))?;
        self.verify(&info, &connection).await?;
        Ok(connection)
    }

    /// Opens a connection to inspect or set up a server, within a time limit.
    pub(super) async fn open_within(&self, timeout: Duration) -> Result<Connection, NodeError> {
        let opened = tokio::time::timeout(timeout, self.open()).await;
        opened.unwrap_or(Err(NodeError::TimedOut { after: timeout }))
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// Whether another server may answer later, after a failover.
    pub(super) fn follows_failovers(&self) -> bool {
        !matches!(self.place, Place::Fixed(_))
    }

    /// The server that the sentinels name now, also after a failover: several connections then lead to
    /// the same server.
    pub(super) async fn found(&self) -> Result<Self, NodeError> {
        let mut found = self.clone();
        if let Place::Service(service) = &self.place {
            let master = self.find().await?.into_owned();
            found.place = Place::Found(Box::new(master), Arc::clone(service));
        }
        Ok(found)
    }

    /// Whether the sentinels name another server than this one, which they have named once.
    pub(super) async fn is_replaced(&self) -> Result<bool, NodeError> {
        match &self.place {
            Place::Found(info, service) => {
                let master = service.find_master(&self.tls).await?;
                Ok(master.addr() != info.addr())
            }
            Place::Fixed(_) | Place::Service(_) => Ok(false),
        }
    }

    /// What the sentinels say. `None` without sentinels.
    #[cfg(feature = "doctor")]
    pub(super) async fn sentinels(&self) -> Option<crate::doctor::facts::Sentinels> {
        match &self.place {
            Place::Fixed(_) => None,
            Place::Service(service) | Place::Found(_, service) => {
                Some(service.survey(&self.tls).await)
            }
        }
    }

    /// Where the server is now.
    pub(super) async fn find(&self) -> Result<Cow<'_, ConnectionInfo>, NodeError> {
        match &self.place {
            Place::Fixed(info) => Ok(Cow::Borrowed(info)),
            Place::Service(service) => {
                let master = service.find_master(&self.tls).await?;
                Ok(Cow::Owned(master))
            }
            Place::Found(info, _) => Ok(Cow::Borrowed(info)),
        }
    }

    async fn connect(
        &self,
        info: &ConnectionInfo,
        protocol: ProtocolVersion,
        bells: Weak<Bells>,
    ) -> Result<Connection, RedisError> {
        let settings = info.redis_settings().clone().set_protocol(protocol);
        let info = info.clone().set_redis_settings(settings);
        let stream = stream::open(&info, &self.tls).await?;
        Ok(Connection::new(stream, bells))
    }

    /// Rule: sentinels may name a server that is a replica by now, or not a master yet. Nothing else
    /// is done with it.
    async fn verify(
        &self,
        info: &ConnectionInfo,
        connection: &Connection,
    ) -> Result<(), NodeError> {
        match &self.place {
            Place::Fixed(_) => Ok(()),
            Place::Service(service) => service.verify(info.addr(), connection).await,
            Place::Found(_, service) => service.verify(info.addr(), connection).await,
        }
    }

    /// The error of a connection that could not be opened. With sentinels it names the address,
    /// which is not part of the label.
    fn failed(&self, info: &ConnectionInfo, error: &RedisError) -> NodeError {
        match connection_error(error) {
            NodeError::Unreachable { why } if self.follows_failovers() => NodeError::Unreachable {
                why: format!("the master {}: {why}", address(info.addr())),
            },
            error => error,
        }
    }
}

/// Names this library to the server.
pub(super) fn named(info: ConnectionInfo) -> ConnectionInfo {
    let redis = info.redis_settings().clone();
    info.set_redis_settings(redis.set_lib_name("leasehold", env!("CARGO_PKG_VERSION")))
}

/// Returns the label of a server, without credentials.
fn label(info: &ConnectionInfo) -> String {
    let address = address(info.addr());
    match info.redis_settings().db() {
        0 => address,
        db => format!("{address}/{db}"),
    }
}

/// The address as in a URL.
pub(super) fn address(addr: &ConnectionAddr) -> String {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if host.contains(':') =>
        {
            format!("[{host}]:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        addr => addr.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_written_like_urls() {
        for (url, shown) in [
            ("redis://u:p@host/2", "host:6379/2"),
            ("redis://[::1]:23004", "[::1]:23004"),
            ("redis://[fe80::1]/3", "[fe80::1]:6379/3"),
            ("redis://127.0.0.1", "127.0.0.1:6379"),
            ("redis+unix:///run/a.sock", "/run/a.sock"),
        ] {
            let info = url.into_connection_info().expect("a URL");
            assert_eq!(label(&info), shown, "{url}");
        }
    }
}

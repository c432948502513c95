//! The URL of a service: `redis+sentinel://[user:pass@]host[:port],…/service[/db]`. The user, the
//! password and the database are those of the master. The parameters `sentinel_user`, `sentinel_pass`
//! and `sentinel_tls` are for the sentinels.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::super::target::{address, named};
use super::Service;

const FORM: &str = "expected redis+sentinel://[user:pass@]host[:port],…/service[/db]\
                    [?sentinel_user=…&sentinel_pass=…&sentinel_tls=yes|no]";
/// The port of sentinels, unless the URL names another.
const PORT: u16 = 26379;

/// What is said about the sentinels after the `?`, still encoded.
#[derive(Default)]
struct Parameters<'a> {
    user: &'a str,
    pass: Option<&'a str>,
    tls: Option<bool>,
}

impl Service {
    /// Parses a URL. The error contains no part of it that may be secret.
    pub(in super::super) fn parse(url: &str, timeout: Duration) -> Result<Self, String> {
        let wrong = |what: &str| format!("{what}; {FORM}");
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let tls = matches!(scheme, "rediss+sentinel" | "valkeys+sentinel");
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(wrong("the name of the service is missing"));
        }
        // What `sentinel monitor` accepts.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if !name.bytes().all(plain) {
            return Err(wrong(
                "the name of the service may contain only letters, digits, `.`, `-` and `_`",
            ));
        }
        if !db.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong("the database after the service is not a number"));
        }
        let parameters = Parameters::parse(query)?;
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let login = match parameters {
            Parameters { user, pass, .. } if pass.is_some() => {
                format!("{user}:{}@", pass.unwrap_or_default())
            }
            _ => String::new(),
        };
        let sentinels_tls = parameters.tls.unwrap_or(tls);
        let mut sentinels = Vec::new();
        for host in hosts.split(',') {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']'));
            let address = match has_port {
                true => host.to_owned(),
                false => format!("{host}:{PORT}"),
            };
            if host.is_empty() {
                return Err(wrong("the address of a sentinel is missing"));
            }
            let info = read(&format!("redis://{login}{address}"))
                .ok_or_else(|| wrong("the address or the password of a sentinel cannot be read"))?;
            sentinels.push(with_tls(info, sentinels_tls));
        }
        if sentinels_tls && !cfg!(feature = "tls") {
            return Err("TLS needs the `tls` feature of leasehold".into());
        }
        // So that clients that name the same sentinels in another order name the same node.
        sentinels.sort_by_key(|sentinel| sentinel.addr().to_string());
        sentinels.dedup_by_key(|sentinel| sentinel.addr().to_string());
        let master = read(&format!("redis://{user}localhost/{db}"))
            .ok_or_else(|| wrong("the user, the password or the database cannot be read"))?;
        Ok(Self {
            name: name.to_owned(),
            sentinels,
            master: named(master),
            tls,
            timeout: timeout / 2,
        })
    }

    /// What the service is called in errors and records: `service@host:port,…[/db]`.
    pub(in super::super) fn label(&self) -> String {
        let addresses = self.sentinels.iter().map(|info| address(info.addr()));
        let addresses = addresses.collect::<Vec<_>>().join(",");
        match self.master.redis_settings().db() {
            0 => format!("{}@{addresses}", self.name),
            db => format!("{}@{addresses}/{db}", self.name),
        }
    }

    /// Whether the master or the sentinels use TLS.
    pub(in super::super) fn uses_tls(&self) -> bool {
        let is_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        self.tls || self.sentinels.iter().any(is_tls)
    }
}

impl<'a> Parameters<'a> {
    fn parse(query: &'a str) -> Result<Self, String> {
        let mut parameters = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("sentinel_user", user)) => parameters.user = user,
                Some(("sentinel_pass", pass)) => parameters.pass = Some(pass),
                Some(("sentinel_tls", "yes")) => parameters.tls = Some(true),
                Some(("sentinel_tls", "no")) => parameters.tls = Some(false),
                Some(("sentinel_tls", _)) => {
                    return Err(format!("sentinel_tls must be yes or no; {FORM}"));
                }
                _ => {
                    return Err(format!(
                        "it has a parameter after the `?` that is not known; {FORM} (in a password, \
                         write `?` as %3F and `&` as %26)"
                    ));
                }
            }
        }
        if !parameters.user.is_empty() && parameters.pass.is_none() {
            return Err(format!("sentinel_user needs sentinel_pass; {FORM}"));
        }
        Ok(parameters)
    }
}

fn read(url: &str) -> Option<ConnectionInfo> {
    url.into_connection_info().ok()
}

fn with_tls(info: ConnectionInfo, tls: bool) -> ConnectionInfo {
    match info.addr().clone() {
        ConnectionAddr::Tcp(host, port) if tls => info.set_addr(ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }),
        _ => info,
    }
}

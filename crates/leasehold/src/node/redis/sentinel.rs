//! Finds the master of a service that sentinels watch.
//!
//! All sentinels are asked at once, for each connection that is opened. Rule: a server is the master
//! if a majority of **all** sentinels of the URL names it, and no other sentinel names another one with
//! a configuration that is as new. (The epoch of a configuration grows with each failover.) Two clients
//! with the same URL could otherwise use two servers at the same time: a sentinel may belong to another
//! deployment with a service of the same name, and one that a network partition has cut off may have
//! missed a failover.
//!
//! Once a majority has named the same master, silent sentinels cost nothing; until then, a connection
//! waits for them for up to half of the connect timeout. A master that the sentinels take to be down is
//! not used.
//!
//! Nothing here subscribes to the events of sentinels. A failover breaks the connections to the old
//! master, or makes it answer READONLY, or shows in the identity that links ask for every second; each
//! of these leads to a new connection, and so here. With that identity, the sentinels are asked, too,
//! whether the master is another one by now (`Session::look_out`).

mod url;

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, Pipeline, ProtocolVersion, Value};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::identity;
use super::reply::{bytes, connection_error, server_error};
use super::stream;
use super::target::address;
use super::tls::TlsClient;
use crate::base::name::shown;
#[cfg(feature = "doctor")]
use crate::doctor::facts::{Failover, SentinelView, Sentinels};
use crate::node::{NodeError, majority};

/// When a majority of the sentinels has named a master, the others have this long left.
const STRAGGLERS: Duration = Duration::from_millis(20);

/// A service, and the sentinels that watch it.
pub(super) struct Service {
    name: String,
    sentinels: Vec<ConnectionInfo>,
    /// How to connect to the master. The address is that of the first sentinel, and not used.
    master: ConnectionInfo,
    /// Whether the master uses TLS.
    tls: bool,
    /// How long the sentinels may take.
    timeout: Duration,
}

/// What one sentinel said about the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    host: String,
    port: u16,
    /// The epoch of the sentinel's configuration, which grows with each failover.
    epoch: u64,
    /// Whether the sentinel takes this master to be down.
    down: bool,
    /// How many other sentinels it knows.
    others: Option<usize>,
}

impl Opinion {
    fn names_as(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

/// The answer of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Knows(Opinion),
    /// It does not know the service.
    Unknown,
    Failed(NodeError),
}

impl Answer {
    fn opinion(&self) -> Option<&Opinion> {
        match self {
            Self::Knows(opinion) => Some(opinion),
            Self::Unknown | Self::Failed(_) => None,
        }
    }

    /// The sentinel works, and names no master to this client.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Unknown | Self::Failed(NodeError::WrongPassword | NodeError::NoPermission { .. })
        )
    }

    /// The sentinel could not be asked, and may be later.
    fn may_change(&self) -> bool {
        match self {
            Self::Failed(NodeError::Refused { .. } | NodeError::Protocol { .. }) => false,
            Self::Failed(error) => !error.is_permanent(),
            Self::Knows(_) | Self::Unknown => false,
        }
    }
}

impl Service {
    /// Where the master is, and how to connect to it.
    ///
    /// Cancel safety: dropping the future closes its connections.
    pub(super) async fn find_master(&self, tls: &TlsClient) -> Result<ConnectionInfo, NodeError> {
        let answers = self.ask(tls).await;
        let opinions: Vec<_> = answers
            .iter()
            .filter_map(|(_, answer)| answer.opinion())
            .collect();
        match agreed(&opinions, answers.len()) {
            Some(master) if !master.down => Ok(self.at(master)),
            Some(master) => Err(NodeError::Unreachable {
                why: format!(
                    "the sentinels take the master of `{}`, {}:{}, to be down; a failover may be \
                     under way",
                    self.name, master.host, master.port
                ),
            }),
            None => Err(self.not_found(&answers)),
        }
    }

    /// Checks that the server that the sentinels named is a master.
    pub(super) async fn verify(
        &self,
        addr: &ConnectionAddr,
        connection: &Connection,
    ) -> Result<(), NodeError> {
        let mut ask = Pipeline::new();
        identity::ask_role(&mut ask);
        let replies = connection.exchange(&ask).await?;
        match identity::read_role(&replies)? {
            identity::Role::Replica => Err(NodeError::Unreachable {
                why: format!(
                    "the sentinels name {addr} as the master of `{}`, but it is a replica; a failover \
                     may be under way",
                    self.name
                ),
            }),
            identity::Role::Master => Ok(()),
        }
    }

    /// What each sentinel says about the service. Waits for all of them.
    #[cfg(feature = "doctor")]
    pub(super) async fn survey(&self, tls: &TlsClient) -> Sentinels {
        let mut survey = Sentinels::default();
        let answers = self.ask_all(tls, self.timeout).await;
        for ((at, answer), sentinel) in answers.into_iter().zip(&self.sentinels) {
            let view = match answer {
                Answer::Knows(Opinion {
                    host, port, others, ..
                }) => {
                    let (failover, id) = self.failover(sentinel, tls).await;
                    Ok(SentinelView {
                        master: format!("{host}:{port}"),
                        failover,
                        others,
                        id,
                    })
                }
                Answer::Unknown => Err("it does not know the service".to_owned()),
                Answer::Failed(error) => Err(error.to_string()),
            };
            survey.answers.push((at, view));
        }
        survey
    }

    /// Whether a sentinel takes a failover to be possible, and its id.
    #[cfg(feature = "doctor")]
    async fn failover(
        &self,
        sentinel: &ConnectionInfo,
        tls: &TlsClient,
    ) -> (Failover, Option<String>) {
        let mut ask = Pipeline::new();
        ask.cmd("SENTINEL").arg("CKQUORUM").arg(&self.name);
        ask.cmd("SENTINEL").arg("MYID");
        let asking = tokio::time::timeout(self.timeout, exchange(sentinel, tls, &ask));
        let silent = NodeError::TimedOut {
            after: self.timeout,
        };
        let replies = match asking.await.unwrap_or(Err(silent)) {
            Ok(replies) => replies,
            Err(error) => return (Failover::Unknown(error.to_string()), None),
        };
        let failover = match replies.first() {
            Some(Value::ServerError(error)) if error.code() == "NOQUORUM" => {
                Failover::Impossible(shown(error.details().unwrap_or_default().as_bytes()))
            }
            Some(Value::ServerError(error)) => Failover::Unknown(server_error(error).to_string()),
            _ => Failover::Possible,
        };
        let id = replies.get(1).and_then(text);
        (failover, id.map(str::to_owned))
    }

    /// The answers of the sentinels, and their addresses.
    async fn ask(&self, tls: &TlsClient) -> Vec<(String, Answer)> {
        self.ask_all(tls, STRAGGLERS).await
    }

    /// The answers of all sentinels. When a majority has named a master, the others have `stragglers` left.
    async fn ask_all(&self, tls: &TlsClient, stragglers: Duration) -> Vec<(String, Answer)> {
        let mut asked = JoinSet::new();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let (sentinel, name, tls) = (sentinel.clone(), self.name.clone(), tls.clone());
            asked.spawn(async move { (index, ask_one(&sentinel, &name, &tls).await) });
        }
        let silent = NodeError::TimedOut {
            after: self.timeout,
        };
        let address =
            |info: &ConnectionInfo| (address(info.addr()), Answer::Failed(silent.clone()));
        let mut answers: Vec<_> = self.sentinels.iter().map(address).collect();
        let mut end = tokio::time::Instant::now() + self.timeout;
        // A task that panicked counts as silent.
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, asked.join_next()).await {
            let Ok((index, answer)) = answer else {
                continue;
            };
            answers[index].1 = answer;
            let opinions: Vec<_> = answers
                .iter()
                .filter_map(|(_, answer)| answer.opinion())
                .collect();
            if by_majority(&opinions, answers.len()).is_some() {
                end = end.min(tokio::time::Instant::now() + stragglers);
            }
        }
        answers
    }

    fn at(&self, master: &Opinion) -> ConnectionInfo {
        let Opinion { host, port, .. } = master;
        let (host, port) = (host.clone(), *port);
        let addr = match self.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        self.master.clone().set_addr(addr)
    }

    /// Why there is no master by the rule. A retry does not help if most of the sentinels do not know the
    /// service or refuse this client, or if none of the others may answer later. A sentinel that a
    /// network partition has cut off, or that has lost its configuration, says little.
    fn not_found(&self, answers: &[(String, Answer)]) -> NodeError {
        let refusals = answers.iter().filter(|(_, answer)| answer.is_refusal());
        let refusals = refusals.count();
        let may_change = answers.iter().any(|(_, answer)| answer.may_change());
        let says = |(at, answer): &(String, Answer)| match answer {
            Answer::Unknown => format!("{at}: it does not know the service"),
            Answer::Failed(error) => format!("{at}: {error}"),
            Answer::Knows(Opinion {
                host, port, epoch, ..
            }) => {
                format!("{at}: it is {host}:{port}, by configuration {epoch}")
            }
        };
        let all = answers.iter().map(says).collect::<Vec<_>>().join("; ");
        let is_known = answers.iter().any(|(_, answer)| answer.opinion().is_some());
        if refusals == 0 || (may_change || is_known) && refusals < majority(answers.len()) {
            let why = match is_known {
                false => format!("no sentinel names the master of `{}` ({all})", self.name),
                true => format!(
                    "no majority of the sentinels agrees on the master of `{}` ({all}); a failover may be \
                     under way",
                    self.name
                ),
            };
            return NodeError::Unreachable { why };
        }
        let unknown = answers
            .iter()
            .filter(|(_, answer)| *answer == Answer::Unknown);
        let unknown: Vec<_> = unknown.map(|(at, _)| &**at).collect();
        let why = match unknown.is_empty() {
            true => format!(
                "the sentinels refuse this client ({all}); their own user and password are \
                 `?sentinel_user=…&sentinel_pass=…` in the URL"
            ),
            false => format!(
                "the sentinels ({}) do not know a service called `{}`; check its name: it is the one \
                 in `sentinel monitor`",
                unknown.join(", "),
                self.name
            ),
        };
        NodeError::Unusable { why }
    }
}

/// The newest opinion of a majority of all sentinels that name the same master.
fn by_majority<'a>(opinions: &[&'a Opinion], sentinels: usize) -> Option<&'a Opinion> {
    let agree = |one: &Opinion| opinions.iter().filter(|other| one.names_as(other)).count();
    let most = opinions
        .iter()
        .filter(|one| agree(one) >= majority(sentinels));
    most.max_by_key(|one| (one.epoch, !one.down)).copied()
}

/// The opinion that counts, by the rule of this module.
fn agreed<'a>(opinions: &[&'a Opinion], sentinels: usize) -> Option<&'a Opinion> {
    let agreed = by_majority(opinions, sentinels)?;
    let as_new = |other: &&Opinion| !agreed.names_as(other) && other.epoch >= agreed.epoch;
    (!opinions.iter().any(as_new)).then_some(agreed)
}

/// Sends requests over a connection of their own.
async fn exchange(
    sentinel: &ConnectionInfo,
    tls: &TlsClient,
    ask: &Pipeline,
) -> Result<Vec<Value>, NodeError> {
    let settings = sentinel.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP2);
    let sentinel = sentinel.clone().set_redis_settings(settings);
    let stream = stream::open(&sentinel, tls).await;
    let stream = stream.map_err(|error| connection_error(&error))?;
    Connection::new(stream, std::sync::Weak::new())
        .exchange(ask)
        .await
}

async fn ask_one(sentinel: &ConnectionInfo, name: &str, tls: &TlsClient) -> Answer {
    let mut ask = Pipeline::new();
    ask.cmd("SENTINEL").arg("MASTER").arg(name);
    // During a failover, this is the promoted replica, sooner than in the reply to the other.
    ask.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    match exchange(sentinel, tls, &ask).await {
        Ok(replies) => read(&replies),
        Err(error) => Answer::Failed(error),
    }
}

fn read(replies: &[Value]) -> Answer {
    let [master, address] = replies else {
        let why = "not what a sentinel says".into();
        return Answer::Failed(NodeError::Protocol { why });
    };
    let (host, port) = match address {
        Value::Nil => return Answer::Unknown,
        Value::ServerError(error) => return Answer::Failed(refusal(error)),
        Value::Array(address) => match address.as_slice() {
            [host, port] => (text(host), text(port).and_then(|port| port.parse().ok())),
            _ => (None, None),
        },
        _ => (None, None),
    };
    let (Some(host), Some(port)) = (host, port) else {
        let why = "the address of the master cannot be read".into();
        return Answer::Failed(NodeError::Protocol { why });
    };
    // A user without permission for this command can do without it.
    let fields: &[Value] = match master {
        Value::Array(fields) => fields,
        _ => &[],
    };
    let field = |name: &str| {
        let mut pairs = fields.chunks_exact(2);
        let value = pairs.find_map(|pair| (text(&pair[0])? == name).then(|| text(&pair[1])));
        value.flatten()
    };
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    let flags = field("flags").unwrap_or_default();
    let down = flags
        .split(',')
        .any(|flag| matches!(flag, "s_down" | "o_down"));
    // The flags are those of the configured master, not of a replica that is being promoted.
    let is_configured = field("ip") == Some(host) && number("port") == Some(u64::from(port));
    Answer::Knows(Opinion {
        host: shown(host.as_bytes()),
        port,
        epoch: number("config-epoch").unwrap_or(0),
        down: down && is_configured,
        others: field("num-other-sentinels").and_then(|others| others.parse().ok()),
    })
}

/// The error of a server that is not a sentinel says so.
fn refusal(error: &redis::ServerError) -> NodeError {
    match server_error(error) {
        NodeError::Refused { why } if why.to_lowercase().contains("unknown command") => {
            let why = "not a sentinel".into();
            NodeError::Refused { why }
        }
        error => error,
    }
}

fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

#[cfg(test)]
mod tests;

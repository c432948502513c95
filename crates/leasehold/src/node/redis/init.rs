//! Records a set of nodes on its servers, before any client uses them or to replace another set. See
//! [`super::set`].

use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::identity::{self, ServerInfo};
use super::reply::{EpochRecord, bytes, read_hello, server_error};
use super::session::{Keys, read_set};
use super::set::{Set, sorted};
use super::{Target, scripts, survey};
use crate::base::name::shown;
use crate::node::rules::Constants;
use crate::node::{NodeError, NodeSettings, majority};

/// How long leases of a replaced set may stay valid, if that set has no restart guard.
const LEASES_OF_OTHERS: Duration = Duration::from_secs(60);
/// How long the servers may take that answer last, if a majority has answered.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// What to do with the records of another set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Refuse,
    Replace,
}

/// What was done to the records of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Nothing: the set was on record already.
    Unchanged,
    /// The server had no record of a set.
    Recorded,
    /// The server had another set, or other constants, on record.
    Replaced,
}

/// What [`Builder::init`](crate::Builder::init) did at one server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Initialized {
    /// The node's label.
    pub node: String,
    /// What was done there.
    pub change: Change,
    /// When the node votes. Zero: at once.
    pub votes_in: Duration,
}

/// A server and what it has on record.
struct Server {
    label: String,
    target: Target,
    connection: Connection,
    timeout: Duration,
    info: ServerInfo,
    set: Option<Set>,
    /// Another program has overwritten the epoch record.
    #[cfg(feature = "doctor")]
    foreign_epoch: bool,
    /// The constants on record, if the record is of this run.
    constants: Option<String>,
    /// It is on record that this run had nothing to forget when it began.
    fresh: bool,
    /// How old the epoch of this run is. Zero if none is on record.
    epoch_age: Duration,
    /// S of the epoch on record, of any run.
    earlier_skew: Duration,
    now_us: u64,
}

/// The error of one node.
pub(crate) type Failed = (String, NodeError);

/// Records the set of these servers on each of them. All must be reachable.
pub(crate) async fn init(
    targets: Vec<Target>,
    settings: &NodeSettings,
    existing: Existing,
) -> Result<Vec<Initialized>, Failed> {
    let (keys, nodes) = (Keys::new(&settings.prefix), targets.len());
    let labels: Vec<_> = targets.iter().map(|target| target.label.clone()).collect();
    let mut servers = Vec::with_capacity(nodes);
    for target in targets {
        let label = target.label.clone();
        let server = Server::reach(target, settings, &keys).await;
        servers.push(server.map_err(|error| (label, error))?);
    }
    same_server(&servers)?;
    let ours = scripts::describe(&settings.constants);
    let (set, change) = match conflict(&servers, &labels, &ours) {
        None => match servers.iter().find_map(|server| server.set.clone()) {
            Some(set) => (set, Change::Recorded),
            None => (Set::new(labels, nodes, 0), Change::Recorded),
        },
        Some(conflict) if existing == Existing::Refuse => return Err(conflict),
        Some(_) => (Set::new(labels, nodes, 0), Change::Replaced),
    };
    let blank = servers.iter().all(|server| server.set.is_none());
    // The operator who runs `init` on servers without a record says that they are new.
    let fresh = settings.assume_fresh || blank && change == Change::Recorded;
    let mut record = Record {
        keys: &keys,
        set: &set,
        constants: &settings.constants,
        fresh,
        assume_fresh: settings.assume_fresh,
        guard: Duration::ZERO,
        change,
    };
    if change == Change::Replaced && !settings.assume_fresh {
        record.guard = guard(&servers, &settings.constants);
    }
    let mut done = Vec::with_capacity(nodes);
    for server in &mut servers {
        let initialized = server.record(&record).await;
        done.push(initialized.map_err(|error| (server.label.clone(), error))?);
    }
    if !record.guard.is_zero() {
        // Clients of the earlier set may acquire locks until they notice.
        settings.clock.sleep(settings.verify_after * 2).await;
        let longest = longest_lease(&mut servers, settings).await?;
        for (server, done) in servers.iter_mut().zip(&mut done) {
            if longest > done.votes_in {
                let later = server.vote_later(&keys, &set, longest).await;
                later.map_err(|error| (server.label.clone(), error))?;
                done.votes_in = longest;
            }
        }
    }
    for server in &mut servers {
        let on_record = server.set_on_record(&keys).await;
        let on_record = on_record.map_err(|error| (server.label.clone(), error))?;
        if !on_record.as_ref().is_some_and(|own| own.is_same(&set)) {
            let why = "another client recorded other nodes at the same time; run init again".into();
            return Err((server.label.clone(), NodeError::Refused { why }));
        }
    }
    Ok(done)
}

/// When each of these servers votes. Writes nothing. Once a majority has answered, the others have
/// [`STRAGGLERS`] left.
pub(crate) async fn votes_in(
    targets: Vec<Target>,
    settings: &NodeSettings,
) -> Vec<(String, Result<Duration, NodeError>)> {
    let label = |target: &Target| (target.label.clone(), Err(NodeError::Unanswered));
    let mut answers: Vec<_> = targets.iter().map(label).collect();
    let (needed, mut asked) = (majority(targets.len()), JoinSet::new());
    for (index, target) in targets.into_iter().enumerate() {
        let settings = settings.clone();
        asked.spawn(async move {
            let keys = Keys::new(&settings.prefix);
            let server = Server::reach(target, &settings, &keys).await;
            (index, server.map(|server| server.votes_in(&settings)))
        });
    }
    let mut answered = 0;
    loop {
        let answer = match answered < needed {
            true => asked.join_next().await,
            false => tokio::time::timeout(STRAGGLERS, asked.join_next())
                .await
                .unwrap_or(None),
        };
        let Some(answer) = answer else { break };
        // A task that panicked counts as unanswered.
        if let Ok((index, answer)) = answer {
            answered += usize::from(answer.is_ok());
            answers[index].1 = answer;
        }
    }
    answers
}

/// What a server has on record and, if there is an epoch of this run, how old that is. Writes nothing.
#[cfg(feature = "doctor")]
pub(super) async fn on_record(
    target: Target,
    settings: &NodeSettings,
) -> Result<(crate::doctor::facts::Record, Option<Duration>), NodeError> {
    use crate::doctor::facts::{Record, SetRecord};
    let keys = Keys::new(&settings.prefix);
    let server = Server::reach(target, settings, &keys).await?;
    let ours = scripts::describe(&settings.constants);
    let record = Record {
        votes_in: server.votes_in(settings),
        has_epoch: server.constants.is_some(),
        foreign: server.foreign_epoch.then(|| shown(&keys.epoch)),
        other_constants: server
            .constants
            .clone()
            .filter(|theirs| *theirs != ours)
            .map(|theirs| (shown(theirs.as_bytes()), ours)),
        set: server.set.as_ref().map(|set| SetRecord {
            id: set.id.clone(),
            nodes: set.nodes,
            labels: set.labels.clone(),
        }),
    };
    Ok((record, server.constants.as_ref().map(|_| server.epoch_age)))
}

/// Two nodes that are the same server.
fn same_server(servers: &[Server]) -> Result<(), Failed> {
    for (index, server) in servers.iter().enumerate() {
        let twin = |other: &&Server| {
            other.info.run_id.is_some() && other.info.run_id == server.info.run_id
        };
        if let Some(other) = servers[..index].iter().find(twin) {
            let (one, other) = (other.label.clone(), server.label.clone());
            return Err((other.clone(), NodeError::SameServer { one, other }));
        }
    }
    Ok(())
}

/// Returns an error if a server has another record than the one to be written.
fn conflict(servers: &[Server], labels: &[String], ours: &str) -> Option<Failed> {
    let known = servers.iter().find_map(|server| server.set.as_ref());
    let labels = sorted(labels.to_vec());
    for server in servers {
        let other_set = match (&server.set, known) {
            (Some(set), Some(known)) => set.nodes != labels.len() || !set.is_same(known),
            // It may join only if its address is on record.
            (None, Some(known)) => known.labels != labels,
            (_, None) => false,
        };
        let error = match &server.constants {
            _ if other_set => {
                let recorded = server.set.as_ref().or(known);
                let of = |other: &&Server| other.set.as_ref() == recorded;
                let node = servers.iter().find(of).unwrap_or(server);
                NodeError::OtherNodes {
                    node: node.label.clone(),
                    theirs: recorded
                        .map(|set| set.labels.join(", "))
                        .unwrap_or_default(),
                    ours: labels.join(", "),
                }
            }
            Some(theirs) if theirs != ours => NodeError::OtherConstants {
                theirs: theirs.clone(),
                ours: ours.to_owned(),
            },
            _ => continue,
        };
        return Some((server.label.clone(), error));
    }
    None
}

/// How long a lease of an earlier set may stay valid, according to the restart guards.
fn guard(servers: &[Server], ours: &Constants) -> Duration {
    let theirs = servers
        .iter()
        .filter_map(|server| guard_of(server.constants.as_ref()?));
    let longest = theirs.chain(ours.restart_guard).max();
    longest.unwrap_or(LEASES_OF_OTHERS)
}

/// How long a lease of an earlier set may still be valid. Its client cannot renew it once the
/// servers belong to another set. A name that is only kept does not count.
async fn longest_lease(
    servers: &mut [Server],
    settings: &NodeSettings,
) -> Result<Duration, Failed> {
    let mut longest = Duration::ZERO;
    for server in servers {
        let locks = survey::look_at_all(&server.connection, server.timeout).await;
        let locks = locks.map_err(|error| (server.label.clone(), error))?;
        for lock in locks {
            if lock.name.as_bytes().starts_with(&settings.prefix) && !lock.holder.kept {
                longest = longest.max(lock.remaining.unwrap_or_default());
            }
        }
    }
    Ok(longest)
}

/// The restart guard in the text of constants.
fn guard_of(constants: &str) -> Option<Duration> {
    constant_of(constants, "restart_guard=")
}

/// One of the constants in their text: `skew=10s fence_retention=86400s restart_guard=60s`.
fn constant_of(constants: &str, key: &str) -> Option<Duration> {
    let text = constants
        .split(' ')
        .find_map(|part| part.strip_prefix(key))?;
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds = number.parse::<f64>().ok()? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What to record.
struct Record<'a> {
    keys: &'a Keys,
    set: &'a Set,
    constants: &'a Constants,
    /// The servers had nothing to forget.
    fresh: bool,
    /// No lease of an earlier set can be valid.
    assume_fresh: bool,
    guard: Duration,
    change: Change,
}

impl Server {
    /// Connects, and reads what the server has on record. Writes nothing.
    async fn reach(
        target: Target,
        settings: &NodeSettings,
        keys: &Keys,
    ) -> Result<Self, NodeError> {
        let timeout = settings.connect_timeout;
        let connection = target.open_within(timeout).await?;
        let mut ask = Pipeline::new();
        identity::ask(&mut ask);
        ask.cmd("TIME");
        // Not MGET, for which a value of another type is the same as none.
        ask.cmd("GET").arg(&keys.epoch);
        ask.cmd("GET").arg(&keys.set);
        let replies = connection.exchange_within(&ask, timeout).await?;
        let (info, rest) = replies.split_at(identity::REQUESTS.min(replies.len()));
        let info = ServerInfo::read(info)?;
        if info.is_replica {
            return Err(NodeError::ReadOnly);
        }
        let (now_us, epoch, set) = match rest {
            [Value::Array(time), epoch, set] => {
                let epoch = of_type(epoch, &keys.epoch)?;
                let set = of_type(set, &keys.set)?;
                (
                    read_time(time),
                    bytes(epoch),
                    read_set(std::slice::from_ref(set))?,
                )
            }
            rest => {
                let errors = rest.iter().find_map(|reply| match reply {
                    Value::ServerError(error) => Some(server_error(error)),
                    _ => None,
                });
                let why = "its records could not be read".into();
                return Err(errors.unwrap_or(NodeError::Protocol { why }));
            }
        };
        let record = epoch.and_then(EpochRecord::parse);
        let skew = record
            .as_ref()
            .and_then(|record| constant_of(record.constants, "skew="));
        let is_of_this_run = |record: &EpochRecord<'_>| {
            let identity = &info.identity;
            identity.continues_recorded(record.identity)
        };
        #[cfg(feature = "doctor")]
        let foreign_epoch = record.is_none() && epoch.is_some();
        let of_this_run = record.filter(is_of_this_run);
        let began_us = of_this_run
            .as_ref()
            .map_or(now_us, |record| record.began_us);
        Ok(Self {
            label: target.label.clone(),
            target,
            connection,
            timeout,
            set,
            #[cfg(feature = "doctor")]
            foreign_epoch,
            fresh: of_this_run.as_ref().is_some_and(|record| record.fresh),
            epoch_age: Duration::from_micros(now_us.saturating_sub(began_us)),
            earlier_skew: skew.unwrap_or_default(),
            constants: of_this_run.map(|record| record.constants.to_owned()),
            info,
            now_us,
        })
    }

    /// When the server votes for a client with these settings, by what it has on record and by its
    /// uptime. Zero: now.
    fn votes_in(&self, settings: &NodeSettings) -> Duration {
        let guard = match &self.constants {
            Some(theirs) => guard_of(theirs),
            None => settings.constants.restart_guard,
        };
        let guard = guard.filter(|_| !self.fresh && !settings.assume_fresh);
        let restarted = self.guarded_for(guard, self.epoch_age);
        let votes_from = self.set.as_ref().map_or(0, |set| set.votes_from);
        restarted.max(Duration::from_micros(
            votes_from.saturating_sub(self.now_us),
        ))
    }

    /// How long the server does not vote because of this restart guard. The same as in the handshake
    /// of a client: `Connector::quarantine`.
    fn guarded_for(&self, guard: Option<Duration>, epoch_age: Duration) -> Duration {
        let age = self
            .info
            .memory_age(epoch_age, self.target.follows_failovers());
        guard.map_or(Duration::ZERO, |guard| {
            guard
                .saturating_add(Duration::from_secs(1))
                .saturating_sub(age)
        })
    }

    async fn record(&mut self, record: &Record<'_>) -> Result<Initialized, NodeError> {
        let Record { keys, set, .. } = *record;
        let own = self.set.as_ref().filter(|own| own.is_same(set));
        let own = own.filter(|_| record.change != Change::Replaced);
        let votes_from = match own {
            _ if record.assume_fresh => 0,
            Some(own) => own.votes_from,
            None => self.votes_from(record.guard),
        };
        let text = Set {
            votes_from,
            ..own.unwrap_or(set).clone()
        };
        let mut write = Pipeline::new();
        let set_record = write.cmd("SET").arg(&keys.set).arg(text.to_text());
        if record.change != Change::Replaced && own.is_none() {
            // What a client has recorded at the same time stays, and is found below.
            set_record.arg("NX");
        }
        let (constants, identity) = (record.constants, &self.info.identity);
        write.add_command(match record.change {
            Change::Replaced => {
                let excess = self.earlier_skew.saturating_sub(constants.skew);
                scripts::replace_epoch(&keys.epoch, constants, identity, record.fresh, excess)
            }
            _ => scripts::hello(&keys.epoch, constants, identity, record.fresh),
        });
        let replies = self
            .connection
            .exchange_within(&write, self.timeout)
            .await?;
        for reply in &replies {
            if let Value::ServerError(error) = reply {
                return Err(server_error(error));
            }
        }
        let hello = replies.last().unwrap_or(&Value::Nil);
        let hello = read_hello(hello, &scripts::describe(record.constants))?;
        let guard = record.constants.restart_guard.filter(|_| !hello.fresh);
        let epoch_age = Duration::from_micros(hello.now_us.saturating_sub(hello.began_us));
        let restarted = self.guarded_for(guard, epoch_age);
        let replaced = Duration::from_micros(votes_from.saturating_sub(self.now_us));
        Ok(Initialized {
            node: self.label.clone(),
            change: match own {
                Some(_) => Change::Unchanged,
                None => record.change,
            },
            votes_in: restarted.max(replaced),
        })
    }

    /// Returns when the server may vote if it must wait this long. Zero: at any time.
    fn votes_from(&self, guard: Duration) -> u64 {
        match u64::try_from(guard.as_micros()).unwrap_or(u64::MAX) {
            0 => 0,
            guard_us => self.now_us.saturating_add(guard_us),
        }
    }

    /// Keeps the server from voting for this long.
    async fn vote_later(
        &mut self,
        keys: &Keys,
        set: &Set,
        guard: Duration,
    ) -> Result<(), NodeError> {
        let mut ask = Pipeline::new();
        ask.cmd("TIME");
        self.now_us = match self
            .connection
            .exchange_within(&ask, self.timeout)
            .await?
            .first()
        {
            Some(Value::Array(time)) => read_time(time),
            _ => self.now_us,
        };
        let text = Set {
            votes_from: self.votes_from(guard),
            ..set.clone()
        };
        let mut write = Pipeline::new();
        write.cmd("SET").arg(&keys.set).arg(text.to_text());
        match self
            .connection
            .exchange_within(&write, self.timeout)
            .await?
            .first()
        {
            Some(Value::ServerError(error)) => Err(server_error(error)),
            _ => Ok(()),
        }
    }

    async fn set_on_record(&mut self, keys: &Keys) -> Result<Option<Set>, NodeError> {
        let mut ask = Pipeline::new();
        ask.cmd("GET").arg(&keys.set);
        read_set(&self.connection.exchange_within(&ask, self.timeout).await?)
    }
}

/// The reply to GET of a record.
fn of_type<'v>(reply: &'v Value, key: &[u8]) -> Result<&'v Value, NodeError> {
    match reply {
        Value::ServerError(error) => Err(match server_error(error) {
            NodeError::WrongType => {
                let key = shown(key);
                let why = format!("`{key}` contains a value of another type, and not a record");
                NodeError::Unusable { why }
            }
            error => error,
        }),
        reply => Ok(reply),
    }
}

/// The reply to TIME, in µs since 1970.
pub(super) fn read_time(time: &[Value]) -> u64 {
    let number = |value| std::str::from_utf8(bytes(value)?).ok()?.parse::<u64>().ok();
    match time {
        [s, us] => number(s)
            .unwrap_or(0)
            .saturating_mul(1_000_000)
            .saturating_add(number(us).unwrap_or(0)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may reply anything.
    #[test]
    fn an_absurd_time_does_not_overflow() {
        let time = |parts: [&str; 2]| {
            let part = |part: &str| Value::BulkString(part.as_bytes().to_vec());
            read_time(&parts.map(part))
        };
        assert_eq!(time(["7", "5"]), 7_000_005);
        assert_eq!(time(["18446744073709551615", "5"]), u64::MAX);
        assert_eq!(time(["-1", "x"]), 0);
    }

    #[test]
    fn the_guard_of_others_is_read() {
        let mut constants = Constants::for_nodes(3);
        for guard in [Some(60_000), Some(600_000), Some(1_500), None] {
            constants.restart_guard = guard.map(Duration::from_millis);
            let text = scripts::describe(&constants);
            assert_eq!(guard_of(&text), constants.restart_guard, "{text}");
        }
    }
}

//! Reads what [`doctor`](crate::doctor) wants to know of a server, over connections of its own. Changes
//! no key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ConnectionAddr, Pipeline, Value};

use super::bells::Bells;
use super::connection::Connection;
use super::reply::{bytes, server_error};
use super::session::Keys;
use super::set::scoped;
use super::target::{Pushes, Target};
use super::{init, replication, scripts, survey};
use crate::base::clock::Clock;
use crate::base::holder::Secrets;
use crate::base::name::{Name, shown};
use crate::doctor::facts::{
    Address, ClockSample, Commands, Glance, Locks, Record, ServerFacts, Slow, Unexamined,
};
use crate::doctor::{Info, NodeFacts, lacks_replicas, name_and_version};
use crate::node::{
    Claim, Listener, Mode, News, NodeError, NodeSettings, Notifier, Replicas, Shortfall,
};

/// The time between the two looks at counters and clocks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many round trips are timed, and for how long at most.
const ROUND_TRIPS: usize = 200;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_secs(3);
/// How often a clock is read for one sample.
const CLOCK_READS: usize = 5;
/// How long a listing of the locks may take.
const LISTING_WITHIN: Duration = Duration::from_secs(5);
/// How long a notification may take to arrive after it was sent.
const ARRIVES_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How far back entries of the slow log count.
const SLOW_WITHIN_S: u64 = 3600;
/// The settings to read. The names are those of Redis 5 and later.
const SETTINGS: [&str; 6] = [
    "timeout",
    "maxclients",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "slowlog-log-slower-than",
    "slowlog-max-len",
];
/// The permission that only `replicas` and `prefer_replicas` need.
const WAIT: &str = "+wait";
/// Stands for a key that does not exist, in the list of commands to try.
const ABSENT: &str = "(absent)";
/// A script that does nothing.
const NOTHING: &str = "return 1";

/// Whether a notification has arrived.
#[derive(Default)]
struct Heard(AtomicBool);

impl Listener for Heard {
    fn notified(&self, _: usize, _: News) {
        self.0.store(true, Ordering::Release);
    }
}

/// A connection to examine a server.
struct Probe<'t> {
    target: &'t Target,
    connection: Connection,
    pushes: Pushes,
    bells: Arc<Bells>,
    timeout: Duration,
    clock: Clock,
}

/// Reads everything. Takes a second or a little more.
pub(crate) async fn examine(
    target: &Target,
    settings: &NodeSettings,
) -> Result<ServerFacts, Unexamined> {
    // One report is about one server.
    let target = &target.found().await?;
    let address = target.address(settings).await?;
    let examined = examine_at(target, settings, address.clone()).await;
    examined.map_err(|error| Unexamined {
        error,
        address: Some(address),
    })
}

async fn examine_at(
    target: &Target,
    settings: &NodeSettings,
    address: Address,
) -> Result<ServerFacts, NodeError> {
    let probe = Probe::open(target, settings).await?;
    let started = probe.clock.now();
    let before = probe.info().await?;
    let first = probe.time().await;
    let config = probe.settings().await?;
    let user = probe.user().await?;
    let commands = probe.commands(settings).await?;
    let scripts = probe.scripts(&Keys::new(&settings.prefix)).await?;
    let push = probe.push(ARRIVES_WITHIN).await?;
    let slow = probe.slow().await?;
    let record = init::on_record(target.clone(), settings).await;
    let locks = probe.locks(settings).await;
    let latency = probe.round_trips(ROUND_TRIPS, ROUND_TRIPS_WITHIN).await?;
    let certificate = target.certificate(&address, probe.timeout).await;
    let sentinels = target.sentinels().await;
    probe.clock.sleep_until(started + INTERVAL).await;
    let after = probe.info().await?;
    let interval = probe.clock.now().saturating_duration_since(started);
    let clock = match (first, probe.time().await) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
    };
    Ok(ServerFacts {
        address,
        certificate,
        user,
        commands,
        before,
        after,
        interval,
        config,
        clock,
        latency,
        slow,
        push,
        scripts,
        record: record.map(|(record, _)| record),
        locks,
        sentinels,
    })
}

/// The state of a server at a glance.
pub(crate) async fn glance(target: &Target, settings: &NodeSettings) -> Result<Glance, NodeError> {
    let target = &target.found().await?;
    let probe = Probe::open(target, settings).await?;
    let info = probe.info().await?;
    let time = probe.time().await.ok();
    let record = init::on_record(target.clone(), settings).await;
    let is_replica = info.text("role") == Some("slave");
    let record = match record {
        Ok(record) => Some(record),
        Err(NodeError::ReadOnly) => None,
        Err(error) => return Err(error),
    };
    if let Some((record, _)) = &record {
        probe.refusal(record, settings).await?;
        lacks_replicas(&info, settings.replicas).map_or(Ok(()), Err)?;
    }
    let set = record.as_ref().and_then(|(record, _)| record.set.clone());
    let run_id = info.text("run_id").filter(|_| record.is_some());
    let run_id = run_id.map(str::to_owned);
    let facts = NodeFacts {
        role: info.text("role").map(|role| match role {
            "slave" => "replica".to_owned(),
            role => role.to_owned(),
        }),
        version: name_and_version(&info),
        up: info.number("uptime_in_seconds").map(Duration::from_secs),
        epoch_age: record.as_ref().and_then(|(_, age)| *age),
        votes_in: record
            .filter(|_| !is_replica)
            .map(|(record, _)| record.votes_in),
        clock_offset_us: time.map(|time| time.offset_us()),
        latency: time.map(|time| time.round_trip),
    };
    Ok(Glance { facts, run_id, set })
}

/// Times some round trips. Returns them sorted.
pub(crate) async fn round_trips(
    target: &Target,
    settings: &NodeSettings,
    count: usize,
) -> Result<Vec<Duration>, NodeError> {
    let probe = Probe::open(target, settings).await?;
    probe.round_trips(count, ROUND_TRIPS_WITHIN).await
}

/// Removes all that a server knows of names that nobody will use again.
pub(crate) async fn forget(
    target: &Target,
    settings: &NodeSettings,
    names: &[Name],
) -> Result<(), NodeError> {
    let probe = Probe::open(target, settings).await?;
    let mut delete = Pipeline::new();
    for name in names {
        // One key in each command: in a cluster or behind a proxy, keys may be apart.
        delete.cmd("DEL").arg(name.as_bytes());
        delete.cmd("DEL").arg(scripts::fence_key(name));
        delete.cmd("DEL").arg(scripts::since_key(name));
        delete.cmd("DEL").arg(scripts::line_key(name));
        delete.cmd("DEL").arg(scripts::readers_key(name));
    }
    let replies = probe.exchange(&delete).await?;
    let refused = replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(server_error(error)),
        _ => None,
    });
    refused.map_or(Ok(()), Err)
}

impl Target {
    /// Where the server is now.
    async fn address(&self, settings: &NodeSettings) -> Result<Address, NodeError> {
        let info = self.find().await?;
        Ok(match info.addr() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp {
                host: host.clone(),
                port: *port,
            },
            ConnectionAddr::TcpTls { host, port, .. } => Address::Tls {
                host: host.clone(),
                port: *port,
                files: settings.tls.files(),
            },
            address => Address::Socket(address.to_string()),
        })
    }

    /// How long the certificate of the server at this address is valid. `None` without TLS.
    async fn certificate(
        &self,
        address: &Address,
        timeout: Duration,
    ) -> Option<Result<Duration, String>> {
        let Address::Tls { host, port, .. } = address else {
            return None;
        };
        // The kernel accepts connections to a server that is stopped.
        let asking = tokio::time::timeout(timeout, self.tls.certificate_left(host, *port));
        let timed_out = NodeError::TimedOut { after: timeout };
        Some(asking.await.unwrap_or_else(|_| Err(timed_out.to_string())))
    }
}

impl<'t> Probe<'t> {
    async fn open(target: &'t Target, settings: &NodeSettings) -> Result<Self, NodeError> {
        let timeout = settings.connect_timeout;
        let bells = Arc::new(Bells::new());
        let opening = target.open_pushing(Arc::downgrade(&bells));
        let opening = tokio::time::timeout(timeout, opening).await;
        let timed_out = NodeError::TimedOut { after: timeout };
        let (connection, pushes) = opening.unwrap_or(Err(timed_out))?;
        Ok(Self {
            target,
            connection,
            pushes,
            bells,
            timeout,
            clock: settings.clock.clone(),
        })
    }

    async fn exchange(&self, pipeline: &Pipeline) -> Result<Vec<Value>, NodeError> {
        let replies = self
            .connection
            .exchange_within(pipeline, self.timeout)
            .await?;
        // Some commands work meanwhile, and nothing that matters can be examined.
        let loading =
            |reply: &Value| matches!(reply, Value::ServerError(e) if e.code() == "LOADING");
        match replies.iter().any(loading) {
            true => Err(NodeError::Loading),
            false => Ok(replies),
        }
    }

    /// Sends one command. An error of the server is a value.
    async fn ask(&self, words: &[&str]) -> Result<Value, NodeError> {
        let mut pipeline = Pipeline::new();
        let mut words = words.iter();
        let command = pipeline.cmd(words.next().copied().unwrap_or_default());
        for word in words {
            command.arg(*word);
        }
        let reply = self.exchange(&pipeline).await?.pop();
        Ok(reply.unwrap_or(Value::Nil))
    }

    /// INFO. Empty if this user may not read it; an error if the server cannot work now.
    async fn info(&self) -> Result<Info, NodeError> {
        let text = match self.ask(&["INFO"]).await? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            Value::ServerError(error) => match server_error(&error) {
                NodeError::NoPermission { .. } | NodeError::Refused { .. } => String::new(),
                error => return Err(error),
            },
            _ => String::new(),
        };
        Ok(Info::new(&text))
    }

    /// Reads the server's clock.
    async fn time(&self) -> Result<ClockSample, NodeError> {
        let mut best: Option<ClockSample> = None;
        for _ in 0..CLOCK_READS {
            let (start, wall) = (self.clock.now(), self.clock.unix_us());
            let reply = self.ask(&["TIME"]).await?;
            let round_trip = self.clock.now().saturating_duration_since(start);
            let server_us = match &reply {
                Value::ServerError(error) => return Err(server_error(error)),
                Value::Array(parts) => init::read_time(parts),
                _ => 0,
            };
            let half = round_trip.as_micros() as i64 / 2;
            let sample = ClockSample {
                local_us: (start.as_nanos() / 1000) as i64 + half,
                wall_us: wall as i64 + half,
                server_us: i64::try_from(server_us).unwrap_or(i64::MAX),
                round_trip,
            };
            if best.is_none_or(|best| round_trip < best.round_trip) {
                best = Some(sample);
            }
        }
        best.ok_or(NodeError::Unanswered)
    }

    /// The settings that this user may read.
    async fn settings(&self) -> Result<BTreeMap<String, String>, NodeError> {
        let mut ask = Pipeline::new();
        for setting in SETTINGS {
            ask.cmd("CONFIG").arg("GET").arg(setting);
        }
        let mut settings = BTreeMap::new();
        for (setting, reply) in SETTINGS.iter().zip(self.exchange(&ask).await?) {
            let value = match &reply {
                Value::Array(pair) => pair.get(1).and_then(bytes),
                Value::Map(pairs) => pairs.first().and_then(|(_, value)| bytes(value)),
                _ => None,
            };
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                settings.insert((*setting).to_owned(), shown(value));
            }
        }
        Ok(settings)
    }

    /// The name of the user. A server that does not say it knows the one of the URL.
    async fn user(&self) -> Result<String, NodeError> {
        let reply = self.ask(&["ACL", "WHOAMI"]).await?;
        if let Some(user) = bytes(&reply) {
            return Ok(shown(user));
        }
        let info = self.target.find().await?;
        let user = info.redis_settings().username().unwrap_or("default");
        Ok(shown(user.as_bytes()))
    }

    /// An error if the server refuses this client, apart from replicas.
    async fn refusal(&self, record: &Record, settings: &NodeSettings) -> Result<(), NodeError> {
        if let Some((theirs, ours)) = record.other_constants.clone() {
            return Err(NodeError::OtherConstants { theirs, ours });
        }
        let Commands {
            denied,
            unknown,
            refused,
            ..
        } = self.commands(settings).await?;
        if let Some(error) = refused {
            return Err(error);
        }
        if !unknown.is_empty() {
            let why = format!("the server does not know {}", unknown.join(", "));
            return Err(NodeError::Refused { why });
        }
        if !denied.is_empty() {
            let why = format!("this user may not use {}", denied.join(", "));
            return Err(NodeError::NoPermission { why });
        }
        let scripts = self.scripts(&Keys::new(&settings.prefix)).await?;
        scripts.map_err(|why| NodeError::Refused {
            why: format!("the server refuses scripts: {why}"),
        })
    }

    /// What becomes of the commands that locks need. Each is sent in a form that changes nothing: on a key
    /// that does not exist, or of another type. A server checks permissions, and whether it accepts writes,
    /// before it looks at keys.
    async fn commands(&self, settings: &NodeSettings) -> Result<Commands, NodeError> {
        let random = format!("{:016x}", fastrand::u64(..));
        // A member of a cluster must serve this key, as it must the records.
        let absent = scoped(&format!("leasehold:doctor:{random}"), &settings.prefix);
        let mut probes: Vec<(&str, Vec<&str>)> = vec![
            ("+info", vec!["INFO", "server"]),
            ("+time", vec!["TIME"]),
            ("+get", vec!["GET", ABSENT]),
            ("+set", vec!["SET", ABSENT, "x", "XX"]),
            ("+setrange", vec!["SETRANGE", ABSENT, "0", ""]),
            ("+del", vec!["DEL", ABSENT]),
            ("+exists", vec!["EXISTS", ABSENT]),
            ("+pexpire", vec!["PEXPIRE", ABSENT, "1"]),
            ("+pttl", vec!["PTTL", ABSENT]),
            ("+zadd", vec!["ZADD", ABSENT, "XX", "1", "x"]),
            ("+zrem", vec!["ZREM", ABSENT, "x"]),
            ("+zrange", vec!["ZRANGE", ABSENT, "0", "0"]),
            ("+zrangebyscore", vec!["ZRANGEBYSCORE", ABSENT, "0", "0"]),
            (
                "+zremrangebyscore",
                vec!["ZREMRANGEBYSCORE", ABSENT, "0", "0"],
            ),
            ("+zscore", vec!["ZSCORE", ABSENT, "x"]),
            ("+zrank", vec!["ZRANK", ABSENT, "x"]),
            ("+zcard", vec!["ZCARD", ABSENT]),
            ("+hget", vec!["HGET", ABSENT, "x"]),
            ("+hdel", vec!["HDEL", ABSENT, "x"]),
            ("+eval", vec!["EVAL", NOTHING, "0"]),
            // No script has this digest.
            ("+evalsha", vec!["EVALSHA", ABSENT, "0"]),
        ];
        if settings.replicas.is_some() {
            // For no replica, so this waits for none.
            probes.push((WAIT, vec!["WAIT", "0", "1"]));
        }
        let prefers = |replicas: Replicas| replicas.otherwise == Shortfall::Warn;
        if settings.replicas.is_some_and(|replicas| !prefers(replicas)) {
            probes.push(("+exists", vec!["EXISTS", replication::MARKER_KEY]));
        }
        let mut pipeline = Pipeline::new();
        for (_, words) in &probes {
            let command = pipeline.cmd(words[0]);
            for word in &words[1..] {
                match *word {
                    ABSENT => command.arg(&absent),
                    word => command.arg(word),
                };
            }
        }
        let mut probes: Vec<_> = probes
            .iter()
            .map(|(what, words)| (*what, words[0]))
            .collect();
        let Keys { epoch, set } = &Keys::new(&settings.prefix);
        // As in each handshake. A cluster refuses it if the keys are in different slots, and serves all
        // names with this prefix if they are in one: then the prefix has a hash tag.
        pipeline.cmd("MGET").arg(epoch).arg(set);
        probes.push(("+mget", "MGET"));
        let mut exists = Pipeline::new();
        exists.cmd("EXISTS").arg(epoch);
        if let [Value::Int(1)] = self.exchange(&exists).await?[..] {
            // The record is text, so these are refused to every user.
            pipeline.cmd("INCR").arg(epoch);
            pipeline.cmd("HSET").arg(epoch).arg("x").arg("x");
            probes.extend([("+incr", "INCR"), ("+hset", "HSET")]);
        }
        let keys = format!("~{}*", shown(&settings.prefix));
        if !settings.prefix.is_empty() {
            let name = [
                &settings.prefix,
                b"leasehold-doctor/" as &[u8],
                random.as_bytes(),
            ];
            let command = pipeline.cmd("SET").arg(name.concat());
            command.arg("x").arg("XX");
            probes.push((&keys, "SET"));
        }
        let replies = self.exchange(&pipeline).await?;
        let mut commands = Commands::default();
        let is_optional = |what: &str| what == WAIT && settings.replicas.is_some_and(prefers);
        let add = |to: &mut Vec<String>, what: &str| {
            if !to.iter().any(|known| known == what) {
                to.push(what.to_owned());
            }
        };
        for ((what, command), reply) in probes.into_iter().zip(replies) {
            let Value::ServerError(error) = reply else {
                continue;
            };
            match server_error(&error) {
                _ if is_optional(what) => commands.no_wait = true,
                NodeError::NoPermission { why } => {
                    // The texts of Redis 6, 7 and later. A user may have any name.
                    let keys = ["access one of the keys", "access a key", "access the '"];
                    let is_key = keys.iter().any(|text| why.contains(text));
                    let is_key = is_key && what.starts_with('+');
                    add(
                        &mut commands.denied,
                        if is_key { "~leasehold:*" } else { what },
                    );
                }
                NodeError::Refused { why } if why.contains("unknown command") => {
                    add(&mut commands.unknown, command);
                }
                // Not the errors of these commands, and not those of a replica, which has its own check.
                error @ (NodeError::Clustered { .. }
                | NodeError::Unavailable { .. }
                | NodeError::OutOfMemory
                | NodeError::CannotPersist { .. }) => {
                    commands.refused.get_or_insert(error);
                }
                _ => {}
            }
        }
        Ok(commands)
    }

    /// Whether the server runs scripts, as text and by their digest.
    async fn scripts(&self, keys: &Keys) -> Result<Result<(), String>, NodeError> {
        let mut ask = Pipeline::new();
        ask.cmd("EVAL")
            .arg("return redis.call('EXISTS', KEYS[1])")
            .arg(1)
            .arg(&keys.epoch);
        ask.cmd("EVAL").arg(NOTHING).arg(0);
        ask.cmd("EVALSHA").arg(digest()).arg(0);
        for reply in self.exchange(&ask).await? {
            if let Value::ServerError(error) = reply {
                return Ok(Err(said(&error)));
            }
        }
        Ok(Ok(()))
    }

    /// Whether a notification arrives: subscribes as a waiter does, and publishes to itself.
    async fn push(&self, within: Duration) -> Result<Result<(), String>, NodeError> {
        if self.pushes == Pushes::Never {
            return Ok(Err("the server does not speak RESP3".into()));
        }
        let channel = self.bells.channel();
        let subscribing = self.connection.subscribe(&channel);
        let subscribed = tokio::time::timeout(self.timeout, subscribing).await;
        match subscribed.map_err(|_| NodeError::TimedOut {
            after: self.timeout,
        })?? {
            Some(Value::ServerError(error)) => {
                return Ok(Err(format!("SUBSCRIBE is refused: {}", said(&error))));
            }
            Some(_) => return Ok(Err("SUBSCRIBE is not answered as expected".into())),
            None => {}
        }
        let name = Name::new("leasehold-doctor").map_err(|_| NodeError::Unanswered)?;
        let owner = Secrets::default().new_owner(Mode::Exclusive, 1, "");
        let claim = Claim::new(name, owner, 1, within);
        let heard = Arc::new(Heard::default());
        let notifier = Notifier::new(Arc::clone(&heard) as Arc<dyn Listener>, 0);
        let _watch = self.bells.watch(&claim, &notifier);
        let mut publish = Pipeline::new();
        let command = publish.cmd("PUBLISH").arg(&channel);
        command.arg(Bells::message(&claim));
        match self.exchange(&publish).await?.first() {
            Some(Value::Int(1)) => {}
            Some(Value::Int(count)) => {
                let why = format!("PUBLISH reached {count} subscribers instead of one");
                return Ok(Err(why));
            }
            Some(Value::ServerError(error)) => {
                return Ok(Err(format!("PUBLISH is refused: {}", said(error))));
            }
            _ => return Ok(Err("PUBLISH is not answered as expected".into())),
        }
        let end = self.clock.now() + within;
        while !heard.0.load(Ordering::Acquire) {
            if self.clock.now() >= end {
                let why = format!("a notification that was sent did not arrive within {within:?}");
                return Ok(Err(why));
            }
            self.clock.sleep(LOOK_EVERY).await;
            // The connection reads what has arrived when it waits for a reply.
            self.ask(&["TIME"]).await?;
        }
        Ok(Ok(()))
    }

    /// The slowest command of the last hour.
    async fn slow(&self) -> Result<Result<Option<Slow>, String>, NodeError> {
        let mut ask = Pipeline::new();
        ask.cmd("TIME");
        ask.cmd("SLOWLOG").arg("GET").arg(128);
        let replies = self.exchange(&ask).await?;
        let now_s = match replies.first() {
            Some(Value::Array(parts)) => init::read_time(parts) / 1_000_000,
            _ => 0,
        };
        let entries = match replies.get(1) {
            Some(Value::Array(entries)) => entries,
            Some(Value::ServerError(error)) => return Ok(Err(said(error))),
            _ => return Ok(Err("the reply is not a list".into())),
        };
        let recent = entries.iter().filter_map(|entry| {
            let Value::Array(parts) = entry else {
                return None;
            };
            let [
                _,
                Value::Int(at_s),
                Value::Int(took_us),
                Value::Array(words),
                ..,
            ] = &parts[..]
            else {
                return None;
            };
            let age_s = now_s.saturating_sub(u64::try_from(*at_s).ok()?);
            // Only the name: arguments may be secrets.
            let command = shown(words.first().and_then(bytes).unwrap_or_default());
            (age_s <= SLOW_WITHIN_S).then(|| Slow {
                command: command.to_uppercase(),
                took: Duration::from_micros(took_us.unsigned_abs()),
            })
        });
        Ok(Ok(recent.max_by_key(|slow| slow.took)))
    }

    /// The locks under the client's prefix.
    async fn locks(&self, settings: &NodeSettings) -> Result<Locks, String> {
        // Its own connection: a listing may be cut off.
        let listing = async {
            let connection = self.target.open_within(self.timeout).await?;
            survey::look_at_all(&connection, self.timeout).await
        };
        let listed = tokio::time::timeout(LISTING_WITHIN, listing).await;
        let listed = listed
            .map_err(|_| {
                format!("not finished within {LISTING_WITHIN:?}: the server has many keys")
            })?
            .map_err(|error| error.to_string())?;
        let mut locks = Locks::default();
        for lock in listed {
            let Some(name) = lock.name.without_prefix(&settings.prefix) else {
                continue;
            };
            locks.count += 1;
            // A name that is only kept, and a result, may stay for longer than any lease.
            let is_lease = !lock.holder.kept && lock.holder.result.is_none();
            match (lock.remaining, settings.constants.restart_guard) {
                (None, _) => locks.endless.push(name.to_string()),
                (Some(left), Some(guard)) if is_lease && left > guard => {
                    locks.long.push((name.to_string(), left));
                }
                _ => {}
            }
        }
        Ok(locks)
    }

    /// Times EVALSHA of a script that does nothing.
    async fn round_trips(
        &self,
        count: usize,
        within: Duration,
    ) -> Result<Vec<Duration>, NodeError> {
        self.ask(&["EVAL", NOTHING, "0"]).await?;
        let digest = digest();
        let (mut taken, end) = (Vec::with_capacity(count), self.clock.now() + within);
        while taken.len() < count && self.clock.now() < end {
            let start = self.clock.now();
            // A refusal takes the same time.
            self.ask(&["EVALSHA", &digest, "0"]).await?;
            taken.push(self.clock.now().saturating_duration_since(start));
        }
        taken.sort_unstable();
        Ok(taken)
    }
}

/// The digest of the script that does nothing.
fn digest() -> String {
    redis::Script::new(NOTHING).get_hash().to_owned()
}

/// What a server said.
fn said(error: &redis::ServerError) -> String {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    shown(text.trim().as_bytes())
}

#[cfg(test)]
mod tests;

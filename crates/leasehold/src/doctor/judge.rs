//! What the facts of one server mean. Pure functions, one for each check.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::facts::{Address, Commands, Context, Failover, Sentinels, ServerFacts};
use super::shell::{lock, quoted};
use super::{Check, Info, Status};
use crate::node::{NodeError, Replicas, Shortfall, majority};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// A certificate with less time left is a warning, and a failure.
const CERTIFICATE_WARN: Duration = Duration::from_secs(30 * 24 * 3600);
const CERTIFICATE_FAIL: Duration = Duration::from_secs(3 * 24 * 3600);
/// A replica that is further behind is a warning.
const MAX_LAG_S: u64 = 1;
/// A replica that was not heard of for longer acknowledges nothing now.
const MAX_SILENCE_S: u64 = 2;
/// How many replicas are looked at.
const MAX_REPLICAS: u64 = 1000;
/// Parts of the memory that are a warning, and a failure.
const MEMORY_WARN: f64 = 0.8;
const MEMORY_FAIL: f64 = 0.95;
/// The part of the machine's memory that a server without a limit may use.
const SYSTEM_MEMORY_WARN: f64 = 0.7;
/// The part of a processor, and of the connections, that may be in use.
const LOAD_WARN: f64 = 0.8;
const CLIENTS_WARN: f64 = 0.8;
/// A clock that deviates by more within the examination has jumped.
const CLOCK_STEP_US: i64 = 100_000;
/// The oldest version that is tested.
const OLDEST: (u32, u32) = (6, 2);

/// How many round trips a client needs at least to connect: HELLO, the server's identity, its epoch, the
/// scripts, SUBSCRIBE.
const CONNECT_ROUND_TRIPS: u32 = 5;

/// The result of one check.
pub(super) struct Verdict {
    pub(super) status: Status,
    pub(super) seen: String,
    pub(super) remedy: String,
}

pub(super) fn ok(seen: impl Into<String>) -> Verdict {
    Verdict {
        status: Status::Ok,
        seen: seen.into(),
        remedy: String::new(),
    }
}

pub(super) fn warn(seen: impl Into<String>, remedy: impl Into<String>) -> Verdict {
    Verdict {
        status: Status::Warn,
        seen: seen.into(),
        remedy: remedy.into(),
    }
}

pub(super) fn fail(seen: impl Into<String>, remedy: impl Into<String>) -> Verdict {
    Verdict {
        status: Status::Fail,
        seen: seen.into(),
        remedy: remedy.into(),
    }
}

pub(super) fn unknown(seen: impl Into<String>, remedy: impl Into<String>) -> Verdict {
    Verdict {
        status: Status::Unknown,
        seen: seen.into(),
        remedy: remedy.into(),
    }
}

/// The server does not show a field of INFO.
fn hidden(field: &str) -> Verdict {
    unknown(
        format!("the server does not show `{field}` (INFO)"),
        "check the setting with your provider, or grant the user +info",
    )
}

type Judge = fn(&ServerFacts, &Context) -> Verdict;

/// What the sentinels of a service say of it.
pub(super) fn sentinels(sentinels: &Sentinels) -> Verdict {
    let all = sentinels.answers.len();
    let (mut silent, mut masters) = (Vec::new(), BTreeSet::new());
    let (mut impossible, mut unknown_to) = (Vec::new(), Vec::new());
    for (sentinel, answer) in &sentinels.answers {
        match answer {
            Ok(opinion) => {
                masters.insert(&*opinion.master);
                match &opinion.failover {
                    Failover::Possible => {}
                    Failover::Impossible(why) => impossible.push(format!("{sentinel}: {why}")),
                    Failover::Unknown(why) => unknown_to.push(format!("{sentinel}: {why}")),
                }
            }
            Err(why) => silent.push(format!("{sentinel}: {why}")),
        }
    }
    let answering = all - silent.len();
    if masters.len() > 1 {
        let masters: Vec<_> = masters.into_iter().collect();
        return fail(
            format!(
                "the sentinels name different masters: {}",
                masters.join(", ")
            ),
            "wait for a failover that is under way; otherwise check that all sentinels of the URL belong to \
             one deployment",
        );
    }
    if !impossible.is_empty() {
        return fail(
            format!("no failover is possible ({})", impossible.join("; ")),
            "start the other sentinels of this service (`SENTINEL SENTINELS` lists them)",
        );
    }
    let remedy = "start the sentinels that do not answer, and check their addresses in the URL";
    if !silent.is_empty() {
        let seen = format!(
            "{} of {all} sentinels do not answer ({})",
            silent.len(),
            silent.join("; ")
        );
        return match answering < majority(all) {
            true => fail(seen, remedy),
            false => warn(seen, remedy),
        };
    }
    if let Some(seen) = not_all_sentinels(sentinels) {
        return warn(
            seen,
            "name each sentinel of the service once in the URL, in all clients: the master is the server \
             that a majority of those named agrees on",
        );
    }
    match unknown_to.is_empty() {
        true => ok(format!("all {all} sentinels name the same master")),
        false => unknown(
            format!(
                "all {all} sentinels name the same master, but not all say whether they can fail over ({})",
                unknown_to.join("; ")
            ),
            "grant their user +sentinel|ckquorum",
        ),
    }
}

/// The URL names too few of the sentinels that watch the service, or one of them twice.
fn not_all_sentinels(sentinels: &Sentinels) -> Option<String> {
    let views = || {
        let views = sentinels.answers.iter();
        views.filter_map(|(at, view)| Some((at, view.as_ref().ok()?)))
    };
    let mut known = BTreeMap::new();
    for (at, view) in views() {
        if let Some(id) = &view.id
            && let Some(other) = known.insert(id, at)
        {
            return Some(format!("{other} and {at} are the same sentinel"));
        }
    }
    let most = views().filter_map(|(_, view)| view.others).max()?;
    let most = most.saturating_add(1);
    let named = sentinels.answers.len();
    (most > named).then(|| format!("the URL names {named} of {most} sentinels of this service"))
}

/// The checks of a single server.
pub(super) const SERVER_CHECKS: &[(Check, Judge)] = &[
    (Check::Auth, auth),
    (Check::Permissions, permissions),
    (Check::Tls, tls),
    (Check::Role, role),
    (Check::Cluster, cluster),
    (Check::Replicas, replicas),
    (Check::SplitBrain, split_brain),
    (Check::Eviction, eviction),
    (Check::Memory, memory),
    (Check::Persistence, persistence),
    (Check::Fsync, fsync),
    (Check::Restart, restart),
    (Check::Clock, clock),
    (Check::Latency, latency),
    (Check::SlowCommands, slow_commands),
    (Check::Load, load),
    (Check::Clients, clients),
    (Check::IdleTimeout, idle_timeout),
    (Check::Push, push),
    (Check::Scripts, scripts),
    (Check::Version, version),
    (Check::Constants, constants),
    (Check::Leftovers, leftovers),
];

impl Address {
    fn is_loopback(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Tcp { host, .. } | Self::Tls { host, .. } => {
                let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
                host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl ServerFacts {
    /// The command that changes a setting, now and in the configuration file.
    fn set(&self, setting: &str) -> String {
        let cli = self.address.redis_cli();
        format!("`{cli} CONFIG SET {setting}`; to keep it after a restart, also CONFIG REWRITE")
    }

    /// How much a counter of INFO grew.
    fn growth(&self, field: &str) -> Option<u64> {
        let (before, after) = (self.before.number(field)?, self.after.number::<u64>(field)?);
        Some(after.saturating_sub(before))
    }

    pub(super) fn is_replica(&self) -> bool {
        self.after.text("role") == Some("slave")
    }

    pub(super) fn is_sentinel(&self) -> bool {
        let info = &self.after;
        let mode = info.text("redis_mode").or_else(|| info.text("server_mode"));
        mode == Some("sentinel")
    }

    /// Why a member of a cluster cannot serve this client.
    fn refused_by_cluster(&self) -> Option<&str> {
        let unread = self.record.as_ref().err();
        let refusals = unread.into_iter().chain(&self.commands.refused);
        refusals.filter_map(cluster_error).next()
    }

    /// When the server votes for this client, as far as that does not depend on other servers. Zero: now.
    /// `None`: never, until something is changed.
    pub(super) fn votes_in(&self, context: &Context) -> Option<Duration> {
        let record = self.record.as_ref().ok()?;
        let commands = &self.commands;
        let works = !self.is_replica()
            && record.other_constants.is_none()
            && self.scripts.is_ok()
            && commands.denied.is_empty()
            && commands.unknown.is_empty()
            && commands.refused.is_none()
            && lacks_replicas(&self.after, context.replicas).is_none();
        let p50 = percentile(&self.latency, 50).unwrap_or_default();
        let in_time = too_slow(p50, context.node_timeout, context.connect_timeout).is_none();
        (works && in_time).then_some(record.votes_in)
    }
}

/// What a member of a cluster says of keys that it does not serve.
pub(super) fn cluster_error(error: &NodeError) -> Option<&str> {
    match error {
        NodeError::Clustered { why } => Some(why),
        NodeError::Unavailable { why } => why.starts_with("CLUSTERDOWN").then_some(why),
        _ => None,
    }
}

/// The error of a client whose round trips take this long, if they are too long for its time limits.
pub(crate) fn too_slow(
    round_trip: Duration,
    node_timeout: Duration,
    connect_timeout: Duration,
) -> Option<NodeError> {
    if round_trip * CONNECT_ROUND_TRIPS > connect_timeout {
        return Some(NodeError::Unreachable {
            why: format!(
                "a round trip takes {round_trip:.0?}, a client needs at least {CONNECT_ROUND_TRIPS} of them \
                 to connect, and may take {connect_timeout:?} for that"
            ),
        });
    }
    (round_trip > node_timeout).then_some(NodeError::TimedOut {
        after: node_timeout,
    })
}

fn auth(server: &ServerFacts, _: &Context) -> Verdict {
    ok(format!("logged in as `{}`", server.user))
}

fn permissions(server: &ServerFacts, _: &Context) -> Verdict {
    let Commands {
        denied, unknown, ..
    } = &server.commands;
    if !unknown.is_empty() {
        return fail(
            format!("the server does not know: {}", unknown.join(", ")),
            "give the commands their names back (`rename-command` in the server's configuration), or use a \
             server that has them",
        );
    }
    if denied.is_empty() {
        return ok("the user may run all commands that locks need");
    }
    let permissions: Vec<_> = denied.iter().map(|denied| quoted(denied)).collect();
    let names = match denied.iter().any(|denied| denied.starts_with('~')) {
        true => "; add the names of your locks, such as '~orders/*'",
        false => "",
    };
    fail(
        format!("the user may not use: {}", denied.join(", ")),
        format!(
            "`{} ACL SETUSER {} {}`{names}; docs/deployment.md lists all permissions",
            server.address.redis_cli(),
            quoted(&server.user),
            permissions.join(" ")
        ),
    )
}

fn tls(server: &ServerFacts, _: &Context) -> Verdict {
    match (&server.certificate, &server.address) {
        (_, Address::Socket(_)) => ok("a socket of this machine"),
        (None, address) if address.is_loopback() => ok("plain TCP to this machine"),
        (None, _) => warn(
            "plain TCP to another machine",
            "turn on TLS in the server (tls-port, tls-cert-file, tls-key-file), and use rediss://",
        ),
        (Some(Err(why)), _) => unknown(
            format!("the certificate could not be examined: {why}"),
            "check its end with `openssl s_client`",
        ),
        (Some(Ok(left)), _) => {
            let days = left.as_secs() / DAY.as_secs();
            let seen = match days {
                0 => format!("the certificate expires in {} h", left.as_secs() / 3600),
                _ => format!("the certificate is valid for {days} days"),
            };
            let remedy = format!(
                "install a new certificate: `{} CONFIG SET tls-cert-file SERVER_CERT tls-key-file SERVER_KEY` \
                 with its files on the server (both in one command, because they must match)",
                server.address.redis_cli()
            );
            match *left {
                left if left < CERTIFICATE_FAIL => fail(seen, remedy),
                left if left < CERTIFICATE_WARN => warn(seen, remedy),
                _ => ok(seen),
            }
        }
    }
}

fn role(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    match info.text("role") {
        None => hidden("role"),
        Some("slave") => {
            let master = match info.text("master_host").unwrap_or("its master") {
                ip if ip.contains(':') => format!("[{ip}]"),
                host => host.to_owned(),
            };
            let port = info.text("master_port").unwrap_or("6379");
            fail(
                format!("a replica of {master}:{port}"),
                format!("use redis://{master}:{port} as the node"),
            )
        }
        Some(role) => ok(format!("a {role}")),
    }
}

pub(super) fn cluster(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    let mode = info.text("redis_mode").or_else(|| info.text("server_mode"));
    if server.is_sentinel() {
        return fail(
            "a Sentinel, which stores nothing",
            "name the service that it watches: redis+sentinel://host[:port],…/service",
        );
    }
    let remedy =
        "use a server with `cluster-enabled no`, or a single-shard instance of your provider";
    if let Some(why) = server.refused_by_cluster() {
        let seen = format!("a member of a Redis Cluster, which refuses the keys of locks: {why}");
        return fail(seen, remedy);
    }
    if info.text("cluster_enabled") == Some("1") || mode == Some("cluster") {
        let seen =
            "a member of a Redis Cluster, which serves all names with this prefix at the moment";
        return warn(seen, remedy);
    }
    match (info.text("cluster_enabled"), mode) {
        (None, None) => hidden("cluster_enabled"),
        _ => ok("not in a cluster"),
    }
}

fn replicas(server: &ServerFacts, context: &Context) -> Verdict {
    let info = &server.after;
    let Some(count) = info.number::<u64>("connected_slaves") else {
        return hidden("connected_slaves");
    };
    let slaves = slaves(info);
    let seen = match count {
        0 => "no replicas".to_owned(),
        1 => "1 replica".to_owned(),
        count => format!("{count} replicas"),
    };
    let required = context.replicas.filter(|_| !server.is_replica());
    if let Some(replicas) = required {
        let ready = ready_replicas(info).unwrap_or(count);
        let seen = match count.saturating_sub(ready) {
            0 => seen.clone(),
            others => format!("{seen}, {others} of which cannot acknowledge locks now"),
        };
        if let Some(shortfall) = shortfall(&seen, ready, replicas) {
            return shortfall;
        }
        if server.commands.no_wait {
            return warn(
                "the server does not execute WAIT for this user: it is never known which locks replicas have",
                "grant the user +wait, or do not use `prefer_replicas`",
            );
        }
    }
    if count == 0 {
        return ok(seen);
    }
    let lags = slaves
        .iter()
        .filter_map(|slave| Info::part(slave, "lag")?.parse::<u64>().ok());
    let lag = lags.max();
    if let Some(lag) = lag.filter(|lag| *lag > MAX_LAG_S) {
        return warn(
            format!("{seen}, the last of which is {lag} s behind"),
            "check the network and the load of the replica; a failover now would lose that much",
        );
    }
    if let Some(Replicas { wanted, .. }) = required {
        return ok(format!("{seen}, {wanted} of which must have each lock"));
    }
    match context.constants.restart_guard {
        Some(guard) => ok(format!(
            "{seen}; after a failover, the node does not vote for {guard:?}"
        )),
        None => warn(
            format!("{seen}, and no restart guard"),
            "turn the restart guard on in all clients (leasehold init --replace --restart-guard 60s, then \
             --restart-guard 60s), or let the resource check tokens",
        ),
    }
}

/// What a master shows of its replicas.
fn slaves(info: &Info) -> Vec<&str> {
    let count = info.number("connected_slaves").unwrap_or(0);
    let slaves = (0..MAX_REPLICAS.min(count)).map(|index| info.text(&format!("slave{index}")));
    slaves.flatten().collect()
}

/// How many replicas can acknowledge locks now: those that follow the master, and were heard of
/// lately. (They report every second.) `None` if the server does not show it.
fn ready_replicas(info: &Info) -> Option<u64> {
    let count = info.number::<u64>("connected_slaves")?;
    let is_ready = |slave: &&str| {
        let lag = Info::part(slave, "lag").and_then(|lag| lag.parse::<u64>().ok());
        Info::part(slave, "state").is_none_or(|state| state == "online")
            && lag.is_none_or(|lag| lag <= MAX_SILENCE_S)
    };
    let slaves = slaves(info);
    let others = slaves.len()
        - slaves
            .iter()
            .copied()
            .filter(|slave| is_ready(slave))
            .count();
    Some(count.saturating_sub(others as u64))
}

/// The error of each vote of a server, if too few replicas would acknowledge it.
pub(crate) fn lacks_replicas(info: &Info, replicas: Option<Replicas>) -> Option<NodeError> {
    let Replicas { wanted, otherwise } = replicas?;
    let acked = u32::try_from(ready_replicas(info)?).unwrap_or(u32::MAX);
    (otherwise == Shortfall::Refuse && acked < wanted).then_some(NodeError::NotReplicated {
        acked,
        wanted,
        error: None,
    })
}

/// Too few replicas can acknowledge locks.
fn shortfall(seen: &str, online: u64, replicas: Replicas) -> Option<Verdict> {
    let wanted = replicas.wanted;
    if online >= wanted.into() {
        return None;
    }
    let remedy = "bring the missing replicas back, or use a smaller number in all clients";
    Some(match replicas.otherwise {
        Shortfall::Refuse => fail(
            format!("{seen}, and `replicas` is {wanted}: the node grants no lock"),
            remedy,
        ),
        Shortfall::Warn => warn(
            format!("{seen}, and `prefer_replicas` is {wanted}: locks count without replicas"),
            remedy,
        ),
    })
}

fn split_brain(server: &ServerFacts, context: &Context) -> Verdict {
    let info = &server.after;
    let setting = |name: &str| server.config.get(name)?.parse::<u64>().ok();
    let connected = info.number::<u64>("connected_slaves");
    // Replicas that are too far behind do not count. INFO shows their number only if the setting is on.
    let good = info.number::<u64>("min_slaves_good_slaves").or(connected);
    // A value of 0 of either setting turns both off.
    let lag = setting("min-replicas-max-lag");
    let wanted = setting("min-replicas-to-write").filter(|_| lag != Some(0));
    let wanted = wanted.unwrap_or(0);
    let refusal = match &server.commands.refused {
        Some(NodeError::Unavailable { why }) if why.starts_with("NOREPLICAS") => Some(why),
        _ => None,
    };
    if refusal.is_some() || good.is_some_and(|good| good < wanted) {
        let seen = match (good, wanted) {
            (Some(good), 1..) => format!(
                "min-replicas-to-write is {wanted}, and {good} replicas are connected and not too far behind"
            ),
            _ => refusal.cloned().unwrap_or_default(),
        };
        return fail(
            format!("the server refuses writes: {seen}"),
            format!(
                "bring its replicas back; without any, {}",
                server.set("min-replicas-to-write 0")
            ),
        );
    }
    match connected {
        None => return hidden("connected_slaves"),
        Some(0) => return ok("no replicas"),
        Some(_) => {}
    }
    // INFO shows this field only if the setting is on.
    let is_on = wanted > 0 || info.text("min_slaves_good_slaves").is_some();
    let allowed = (context.ttl.as_secs() / 3).max(1);
    if !is_on {
        let (seen, missing) = match lag {
            Some(0) => (
                "min-replicas-max-lag 0",
                format!("min-replicas-max-lag {allowed}"),
            ),
            _ => (
                "min-replicas-to-write 0",
                "min-replicas-to-write 1".to_owned(),
            ),
        };
        return warn(
            format!("the server has replicas, and accepts writes without them ({seen})"),
            format!(
                "{}; a master without its replicas then refuses writes",
                server.set(&missing)
            ),
        );
    }
    match lag {
        Some(lag) if lag > allowed => warn(
            format!("min-replicas-max-lag is {lag} s, more than a third of the TTL"),
            server.set(&format!("min-replicas-max-lag {allowed}")),
        ),
        Some(_) => ok("refuses writes without its replicas"),
        None => unknown(
            "the server refuses writes without its replicas, and does not show how far behind they may be \
             (CONFIG GET min-replicas-max-lag)",
            "check the setting with your provider, or grant the user +config|get",
        ),
    }
}

fn eviction(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    let Some(limit) = info.number::<u64>("maxmemory") else {
        return hidden("maxmemory");
    };
    if limit == 0 {
        return ok("no memory limit");
    }
    let Some(policy) = info.text("maxmemory_policy") else {
        return hidden("maxmemory_policy");
    };
    let limit = bytes(limit);
    if policy == "noeviction" {
        return ok(format!("maxmemory {limit} with noeviction"));
    }
    let seen = format!("maxmemory {limit} with policy {policy}");
    let remedy = server.set("maxmemory-policy noeviction");
    match server.growth("evicted_keys") {
        Some(evicted) if evicted > 0 => {
            let within = server.interval;
            fail(
                format!("{seen}; {evicted} keys were evicted within {within:.1?}"),
                remedy,
            )
        }
        _ => warn(seen, remedy),
    }
}

fn memory(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    let Some(used) = info.number::<u64>("used_memory") else {
        return hidden("used_memory");
    };
    let Some(limit) = info.number::<u64>("maxmemory") else {
        return hidden("maxmemory");
    };
    let cli = server.address.redis_cli();
    if limit == 0 {
        let rss = info.number::<u64>("used_memory_rss").unwrap_or(used);
        let Some(all) = info.number::<u64>("total_system_memory") else {
            return hidden("total_system_memory");
        };
        let part = rss as f64 / all.max(1) as f64;
        let seen = format!("{} of the machine's {}", bytes(rss), bytes(all));
        return match part > SYSTEM_MEMORY_WARN {
            true => warn(
                format!("{seen}, without a limit"),
                format!("remove data, or move the node to a larger machine; `{cli} INFO memory`"),
            ),
            false => ok(seen),
        };
    }
    if info
        .text("maxmemory_policy")
        .is_some_and(|p| p != "noeviction")
    {
        return ok("the server evicts keys instead of refusing writes; see `eviction`");
    }
    // Buffers of replicas and of the AOF do not count towards the limit.
    let apart = info.number::<u64>("mem_not_counted_for_evict");
    let used = used.saturating_sub(apart.unwrap_or(0));
    let part = used as f64 / limit as f64;
    let seen = format!(
        "{} of maxmemory {} ({:.0} %)",
        bytes(used),
        bytes(limit),
        part * 100.0
    );
    let remedy = format!("remove data, or raise the limit: `{cli} CONFIG SET maxmemory BYTES`");
    match part {
        part if part > MEMORY_FAIL => fail(seen, remedy),
        part if part > MEMORY_WARN => warn(seen, remedy),
        _ => ok(seen),
    }
}

fn persistence(server: &ServerFacts, context: &Context) -> Verdict {
    let info = &server.after;
    let Some(aof) = info.text("aof_enabled") else {
        return hidden("aof_enabled");
    };
    if info.text("loading") == Some("1") {
        return warn(
            "the server is loading its data",
            "wait until it has started",
        );
    }
    for field in [
        "aof_last_write_status",
        "aof_last_bgrewrite_status",
        "rdb_last_bgsave_status",
    ] {
        if info.text(field) == Some("err") {
            return fail(
                format!("{field} is `err`: the server could not write to its disk"),
                "check the server's log and its disk, then run BGSAVE or BGREWRITEAOF; until then, the \
                 server may refuse writes (MISCONF)",
            );
        }
    }
    let (nodes, guard) = (context.labels.len(), context.constants.restart_guard);
    let remedy = || server.set("appendonly yes");
    match (aof, guard) {
        ("1", _) => ok("appendonly yes"),
        (_, Some(guard)) => ok(format!(
            "no AOF; after a restart, the node does not vote for {guard:?}"
        )),
        _ if nodes == 1 => fail(
            "no AOF and no restart guard: a restart frees all locks, although they are held",
            format!(
                "{}; or turn the restart guard on in all clients (leasehold init --replace \
                 --restart-guard 60s, then --restart-guard 60s)",
                remedy()
            ),
        ),
        _ => warn("no AOF and no restart guard", remedy()),
    }
}

fn fsync(server: &ServerFacts, context: &Context) -> Verdict {
    let (before, after) = (&server.before, &server.after);
    let Some(fork) = after.number::<u64>("latest_fork_usec") else {
        return hidden("latest_fork_usec");
    };
    let fork = Duration::from_micros(fork);
    let remedy = "use a faster disk, set `no-appendfsync-on-rewrite yes`, or turn off AOF if the restart \
                  guard is on";
    if let Some(delayed) = server.growth("aof_delayed_fsync").filter(|n| *n > 0) {
        return warn(
            format!(
                "{delayed} writes waited for the disk within {:.1?}",
                server.interval
            ),
            remedy,
        );
    }
    let pending = |info: &Info| info.number::<u64>("aof_pending_bio_fsync").unwrap_or(0);
    if pending(before) > 0 && pending(after) > 0 {
        return warn(
            format!(
                "an fsync has been pending for {:.1?}; the next writes will wait for it",
                server.interval
            ),
            remedy,
        );
    }
    match fork > context.node_timeout {
        true => warn(
            format!(
                "the last fork took {fork:.1?}, and a request may take {:?}",
                context.node_timeout
            ),
            "use a server with less data as a node, or turn off BGSAVE (`save \"\"`) and AOF rewrites there",
        ),
        false => ok(format!("no stalls; the last fork took {fork:.1?}")),
    }
}

fn restart(server: &ServerFacts, context: &Context) -> Verdict {
    if server.is_replica() {
        return ok("a replica does not vote; see `role`");
    }
    let record = match &server.record {
        Ok(record) => record,
        Err(error) => return unread(error),
    };
    if !record.votes_in.is_zero() {
        return warn(
            format!(
                "the node votes in {} s",
                record.votes_in.as_millis().div_ceil(1000)
            ),
            "wait; if the servers are new or no lease can be in use, run `leasehold init --assume-fresh`",
        );
    }
    let guard = context.constants.restart_guard;
    let (Some(up), Some(_)) = (server.after.number::<i64>("uptime_in_seconds"), guard) else {
        return match guard {
            None => ok("the restart guard is off; the node votes"),
            Some(_) => hidden("uptime_in_seconds"),
        };
    };
    ok(format!("up for {up} s; the node votes"))
}

/// The records of the server could not be read. `set` says what to do.
fn unread(error: &NodeError) -> Verdict {
    unknown(
        format!("the server's records could not be read: {error}"),
        "see `set`",
    )
}

fn clock(server: &ServerFacts, context: &Context) -> Verdict {
    if let Some(up) = server.after.number::<i64>("uptime_in_seconds")
        && up < 0
    {
        return fail(
            format!("the uptime is {up} s: the clock was set back since the server started"),
            "slew the clock instead of stepping it (chrony, systemd-timesyncd), and restart the server",
        );
    }
    let (first, last) = match &server.clock {
        Ok(samples) => samples,
        Err(why) => return unknown(format!("TIME: {why}"), "grant the user +time"),
    };
    let interval = last.local_us.saturating_sub(first.local_us);
    let elapsed = last.server_us.saturating_sub(first.server_us);
    let off = elapsed.saturating_sub(interval);
    let blur = (first.round_trip + last.round_trip).as_micros() as i64 / 2;
    let deviation = off.saturating_abs() - blur;
    let signed_ms = off as f64 / 1000.0;
    let over = Duration::from_micros(interval.max(0).unsigned_abs());
    if deviation > CLOCK_STEP_US {
        return fail(
            format!(
                "the clock was off by {signed_ms:+.1} ms after {over:.1?}: it jumped or has stopped"
            ),
            "slew the clock instead of stepping it (chrony, systemd-timesyncd); check the machine's clock \
             source",
        );
    }
    if deviation > interval / 100 + 2_000 {
        return warn(
            format!("the clock was off by {signed_ms:+.1} ms after {over:.1?}"),
            "check the machine's clock source and its NTP client",
        );
    }
    let offset = last.offset_us();
    let skew = context.constants.skew.as_micros() as i64;
    let ms = offset as f64 / 1000.0;
    match offset.saturating_abs() - last.round_trip.as_micros() as i64 > skew {
        true => warn(
            format!(
                "the clock differs by {ms:+.1} ms from that of this machine, more than the skew of {:?}",
                context.constants.skew
            ),
            "synchronise both machines (NTP); until then, acquires of this machine may take another round \
             trip",
        ),
        false => ok(format!("{ms:+.1} ms from the clock of this machine")),
    }
}

fn latency(server: &ServerFacts, context: &Context) -> Verdict {
    let (Some(max), Some(p50), Some(p99)) = (
        server.latency.last(),
        percentile(&server.latency, 50),
        percentile(&server.latency, 99),
    ) else {
        return unknown("no round trip was measured", "");
    };
    let seen = format!(
        "p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?} of {} round trips",
        server.latency.len()
    );
    let limit = context.node_timeout;
    let remedy = "check the network and the load of the server; or use a longer TTL, which allows requests to \
                  take longer (5 % of it, at most 250 ms)";
    if let Some(NodeError::Unreachable { why }) =
        too_slow(p50, context.node_timeout, context.connect_timeout)
    {
        let remedy = "use a server that is nearer, or a longer `Builder::connect_timeout`";
        return fail(format!("{seen}; {why}"), remedy);
    }
    if *max > limit {
        return fail(format!("{seen}; a request may take {limit:?}"), remedy);
    }
    if p99 > limit / 2 {
        return warn(format!("{seen}; a request may take {limit:?}"), remedy);
    }
    match context.ttl < p99 * 10 {
        true => warn(
            format!("{seen}; the TTL of {:?} is short for that", context.ttl),
            "use a TTL of at least ten times the p99",
        ),
        false => ok(seen),
    }
}

/// The value below which `percent` of the sorted values are.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * percent / 100).copied()
}

fn slow_commands(server: &ServerFacts, context: &Context) -> Verdict {
    let limit = context.node_timeout;
    match &server.slow {
        Err(why) => unknown(
            format!("the slow log cannot be read: {why}"),
            "grant the user +slowlog",
        ),
        Ok(Some(slow)) if slow.took > limit => warn(
            format!(
                "{} took {:.1?} within the last hour, and a request may take {limit:?}",
                slow.command, slow.took
            ),
            format!(
                "`{} SLOWLOG GET`; move such commands to another server, or make them smaller",
                server.address.redis_cli()
            ),
        ),
        Ok(Some(slow)) => ok(format!(
            "the slowest command of the last hour took {:.1?}",
            slow.took
        )),
        Ok(None) => slow_log(server, limit),
    }
}

/// An empty slow log says something only if it records what would be too slow.
fn slow_log(server: &ServerFacts, limit: Duration) -> Verdict {
    let setting = |name: &str| server.config.get(name)?.parse::<i64>().ok();
    let (threshold_us, length) = (
        setting("slowlog-log-slower-than"),
        setting("slowlog-max-len"),
    );
    let limit_us = limit.as_micros() as i64;
    match (threshold_us, length) {
        (Some(us), Some(1..)) if (0..=limit_us).contains(&us) => {
            ok("no slow command in the last hour")
        }
        (None, _) | (_, None) => unknown(
            "the slow log is empty, and the server does not show what it records (CONFIG GET slowlog-*)",
            "check the setting with your provider, or grant the user +config|get",
        ),
        (Some(us), Some(1..)) if us >= 0 => unknown(
            format!("the slow log records only what takes longer than {us} µs"),
            server.set(&format!("slowlog-log-slower-than {}", limit_us / 2)),
        ),
        _ => unknown(
            "the slow log is off",
            server.set(&format!(
                "slowlog-log-slower-than {} slowlog-max-len 128",
                limit_us / 2
            )),
        ),
    }
}

fn load(server: &ServerFacts, _: &Context) -> Verdict {
    let used = |info: &Info| {
        // The main thread executes the commands. Older servers show only the whole process.
        let sum = |system: &str, user: &str| {
            Some(info.number::<f64>(system)? + info.number::<f64>(user)?)
        };
        sum("used_cpu_sys_main_thread", "used_cpu_user_main_thread")
            .or_else(|| sum("used_cpu_sys", "used_cpu_user"))
    };
    let (Some(before), Some(after)) = (used(&server.before), used(&server.after)) else {
        return hidden("used_cpu_sys");
    };
    let part = (after - before) / server.interval.as_secs_f64().max(0.001);
    let executed = server.growth("total_commands_processed");
    let per_second = |n: u64| n as f64 / server.interval.as_secs_f64().max(0.001);
    let operations = executed.map_or(String::new(), |n| {
        format!(
            ", {:.0} commands/s with those of this examination",
            per_second(n)
        )
    });
    let seen = format!("{:.0} % of a processor{operations}", part * 100.0);
    match part > LOAD_WARN {
        true => warn(
            seen,
            "move other users of this server elsewhere, or use a server of its own for locks",
        ),
        false => ok(seen),
    }
}

fn clients(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    let Some(connected) = info.number::<u64>("connected_clients") else {
        return hidden("connected_clients");
    };
    let limit = info.number::<u64>("maxclients").or_else(|| {
        let setting = server.config.get("maxclients")?;
        setting.parse().ok()
    });
    let Some(limit) = limit else {
        return hidden("maxclients");
    };
    let seen = format!("{connected} of {limit} connections");
    let remedy = server.set(&format!("maxclients {}", limit.saturating_mul(2).max(1000)));
    if let Some(refused) = server.growth("rejected_connections").filter(|n| *n > 0) {
        let within = server.interval;
        return warn(
            format!("{seen}; {refused} were refused within {within:.1?}"),
            remedy,
        );
    }
    match connected as f64 / limit.max(1) as f64 > CLIENTS_WARN {
        true => warn(seen, remedy),
        false => ok(seen),
    }
}

fn idle_timeout(server: &ServerFacts, _: &Context) -> Verdict {
    match server.config.get("timeout").map(|text| text.parse::<u64>()) {
        None | Some(Err(_)) => unknown(
            "the server does not show `timeout` (CONFIG GET)",
            "check the setting with your provider, or grant the user +config|get",
        ),
        Some(Ok(0)) => ok("idle connections stay open"),
        Some(Ok(seconds)) => warn(
            format!("the server closes connections that are idle for {seconds} s"),
            server.set("timeout 0"),
        ),
    }
}

fn push(server: &ServerFacts, _: &Context) -> Verdict {
    match &server.push {
        Ok(()) => ok("a notification arrived"),
        Err(why) => warn(
            why.clone(),
            "grant the user +subscribe, +publish and &leasehold:bell:*, and use a proxy that speaks RESP3",
        ),
    }
}

fn scripts(server: &ServerFacts, _: &Context) -> Verdict {
    match &server.scripts {
        Ok(()) => ok("EVAL and EVALSHA work"),
        Err(why) => fail(
            format!("the server refuses scripts: {why}"),
            match why.split(' ').next() {
                Some("CLUSTERDOWN" | "MOVED" | "ASK" | "CROSSSLOT") => "see `cluster`",
                Some("NOPERM") => "grant the user +eval and +evalsha",
                _ => "see `permissions`, or use a server that runs scripts",
            },
        ),
    }
}

fn version(server: &ServerFacts, _: &Context) -> Verdict {
    let info = &server.after;
    let Some(shown) = name_and_version(info) else {
        return hidden("redis_version");
    };
    let number = info
        .text("valkey_version")
        .or_else(|| info.text("redis_version"));
    let mut parts = number
        .unwrap_or_default()
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let is_valkey = info.text("valkey_version").is_some();
    if version < OLDEST && !is_valkey {
        return warn(
            shown,
            "update the server to Redis 6.2 or later, or to Valkey",
        );
    }
    let native = match is_valkey {
        true if version >= (9, 0) => "; releases use DELIFEQ",
        false if version >= (8, 4) => "; releases use DELEX",
        _ => "",
    };
    ok(format!("{shown}{native}"))
}

/// The program and its version.
pub(crate) fn name_and_version(info: &Info) -> Option<String> {
    match info.text("valkey_version") {
        Some(valkey) => Some(format!("valkey {valkey}")),
        None => Some(format!("redis {}", info.text("redis_version")?)),
    }
}

fn constants(server: &ServerFacts, _: &Context) -> Verdict {
    match &server.record {
        Err(error) => unread(error),
        Ok(record) => match &record.other_constants {
            Some((theirs, ours)) => fail(
                format!(
                    "on record: {}; this client: {}",
                    differing(theirs, ours),
                    differing(ours, theirs)
                ),
                "use the same values in all clients, or change those on record with `leasehold init \
                 --replace`",
            ),
            None if record.has_epoch => ok("as on record"),
            None => ok("none on record yet; the first client records them"),
        },
    }
}

/// The constants that others do not have: `restart guard 60s`.
fn differing(constants: &str, others: &str) -> String {
    let others: Vec<_> = others.split(' ').collect();
    let differing = constants.split(' ').filter(|value| !others.contains(value));
    let differing = differing.map(|value| value.replace(['_', '='], " "));
    differing.collect::<Vec<_>>().join(", ")
}

fn leftovers(server: &ServerFacts, context: &Context) -> Verdict {
    const SHOWN: usize = 3;
    let locks = match &server.locks {
        Ok(locks) => locks,
        Err(why) => {
            return unknown(
                format!("the locks cannot be listed: {why}"),
                "grant the user +scan",
            );
        }
    };
    let names = |names: Vec<String>| {
        let more = names.len().saturating_sub(SHOWN);
        let text = names.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
        match more {
            0 => text,
            more => format!("{text} and {more} more"),
        }
    };
    if !locks.endless.is_empty() {
        let name = lock(&locks.endless[0]);
        return warn(
            format!("locks without a TTL: {}", names(locks.endless.clone())),
            format!(
                "let the program that takes them set a TTL; `leasehold show {name}` shows the holder, \
                 and `leasehold break {name}` releases it"
            ),
        );
    }
    if !locks.long.is_empty() {
        let name = lock(&locks.long[0].0);
        let long = locks
            .long
            .iter()
            .map(|(name, left)| format!("{name} ({} s left)", left.as_secs()));
        let guard = context.constants.restart_guard.unwrap_or_default();
        return warn(
            format!(
                "locks that outlive the restart guard of {guard:?}: {}",
                names(long.collect())
            ),
            format!(
                "use shorter TTLs, or a longer restart guard in all clients; `leasehold show {name}` shows \
                 the holder"
            ),
        );
    }
    ok(match locks.count {
        1 => "1 lock, which expires".to_owned(),
        count => format!("{count} locks, all of which expire"),
    })
}

/// A number of bytes, as the server's settings write it.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| count >= *unit);
    match unit {
        None => format!("{count} bytes"),
        Some((name, unit)) => match count % unit {
            0 => format!("{}{name}", count / unit),
            _ => format!("{:.1}{name}", count as f64 / *unit as f64),
        },
    }
}

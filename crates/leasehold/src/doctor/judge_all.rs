//! What the facts of all nodes mean together.

use std::time::Duration;

use super::facts::{Address, ClockSample, Context, Facts, ServerFacts, SetRecord, Unexamined};
use super::judge::{
    SERVER_CHECKS, Verdict, cluster, cluster_error, fail, ok, sentinels, unknown, warn,
};
use super::judge_store::STORE_CHECKS;
use super::members::{Member, refusals};
use super::{Check, Finding};
use crate::node::{NodeError, majority};

/// A node's label and its facts.
type Node<'a> = (&'a str, &'a ServerFacts);

/// Judges all facts, which are in the order of the context's labels.
pub(crate) fn findings(facts: &[Facts], context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |check, node: Option<&str>, verdict: Verdict| {
        findings.push(Finding {
            check,
            node: node.map(str::to_owned),
            status: verdict.status,
            seen: verdict.seen,
            remedy: verdict.remedy,
        });
    };
    let mut servers = Vec::new();
    for (label, facts) in context.labels.iter().zip(facts) {
        match facts {
            Facts::Server(Ok(server)) => {
                add(Check::Reach, Some(label), ok("the server answers"));
                if server.is_sentinel() {
                    // It is no server for locks, so nothing else is of interest.
                    add(Check::Cluster, Some(label), cluster(server, context));
                    continue;
                }
                for (check, judge) in SERVER_CHECKS {
                    add(*check, Some(label), judge(server, context));
                }
                if let Some(answers) = &server.sentinels {
                    add(Check::Sentinels, Some(label), sentinels(answers));
                }
                servers.push((&**label, &**server));
            }
            Facts::Server(Err(unexamined)) => {
                let (check, verdict) = unreached(unexamined);
                add(check, Some(label), verdict);
            }
            Facts::Store(store) => {
                for (check, judge) in STORE_CHECKS {
                    add(*check, Some(label), judge(store));
                }
            }
            Facts::Other(status) => add(
                Check::Reach,
                Some(label),
                match status {
                    None => unknown("a node that has not been used yet", ""),
                    Some(Ok(())) => ok("the node works"),
                    Some(Err(error)) => fail(error.to_string(), ""),
                },
            ),
        }
    }
    if !servers.is_empty() {
        add(Check::SameServer, None, same_server(&servers));
        add(Check::Related, None, related(&servers));
        add(Check::Set, None, set(&servers, context));
        if let Some(verdict) = clocks(&servers, context) {
            add(Check::Clock, None, verdict);
        }
    }
    add(Check::Quorum, None, quorum(facts, context));
    findings.sort_by_key(|finding| finding.check);
    findings
}

/// A server that could not be examined.
fn unreached(unexamined: &Unexamined) -> (Check, Verdict) {
    let Unexamined { error, address } = unexamined;
    if let NodeError::Unavailable { why } = error
        && why.starts_with("BUSY")
    {
        let cli = address.as_ref().map(Address::redis_cli);
        let cli = cli.unwrap_or_else(|| "redis-cli".into());
        let remedy = format!("end the script that is running with `{cli} SCRIPT KILL`");
        return (Check::Reach, fail(error.to_string(), remedy));
    }
    let check = match error {
        NodeError::WrongPassword | NodeError::NoPermission { .. } => Check::Auth,
        NodeError::Unusable { why } if why.starts_with("the sentinels refuse") => Check::Auth,
        NodeError::Tls { .. } => Check::Tls,
        _ => Check::Reach,
    };
    let remedy = match (check, error) {
        (Check::Auth, NodeError::Unusable { .. }) => {
            "check the user name and the password of the sentinels in the URL of the node"
        }
        (Check::Auth, _) => "check the user name and the password in the URL of the node",
        (Check::Tls, NodeError::Tls { why }) if why.contains("CertificateRequired") => {
            "the server requires a certificate of the client: --tls-cert and --tls-key"
        }
        (Check::Tls, _) => {
            "check that --tls-ca issued the server's certificate, that it has not expired, and that it is \
             valid for the host in the URL"
        }
        (_, NodeError::TimedOut { .. }) => {
            "check whether the server is stopped or overloaded; with rediss://, whether the port uses TLS"
        }
        (_, NodeError::Refused { why }) if why.contains("max number of clients") => {
            "close connections that are not used, or raise `maxclients`"
        }
        (_, NodeError::Protocol { .. }) => {
            "check that a Redis or Valkey server listens at this address, and whether it requires TLS \
             (rediss://)"
        }
        (_, NodeError::NoSuchDatabase) => {
            "use a database index in the URL that exists on the server"
        }
        (_, NodeError::Unusable { why }) if why.starts_with("the sentinels") => {
            "correct the name of the service in the URL of the node"
        }
        (_, NodeError::Unreachable { why }) if why.contains("sentinel") => {
            "start the sentinels that do not answer, check their addresses in the URL, or wait until a failover \
             is over"
        }
        (_, NodeError::Loading) => "wait until the server has loaded its data",
        _ => {
            "check that the server is running, check its address and firewalls, and whether the port requires \
             TLS (rediss://)"
        }
    };
    (check, fail(error.to_string(), remedy))
}

/// Calls `relation` for each pair.
fn pairs(servers: &[Node<'_>], relation: impl Fn(&Node<'_>, &Node<'_>) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (index, one) in servers.iter().enumerate() {
        for other in &servers[index + 1..] {
            if relation(one, other) {
                found.push(format!("{} and {}", one.0, other.0));
            }
        }
    }
    found
}

fn same_server(servers: &[Node<'_>]) -> Verdict {
    if servers.len() < 2 {
        return ok("one server");
    }
    let id = |node: &Node<'_>| node.1.after.text("run_id").map(str::to_owned);
    let twins = pairs(servers, |one, other| {
        id(one).is_some() && id(one) == id(other)
    });
    if !twins.is_empty() {
        return fail(
            format!("the same server: {}", twins.join("; ")),
            "name each server once",
        );
    }
    match servers.iter().all(|node| id(node).is_some()) {
        true => ok(format!("{} different servers", servers.len())),
        false => unknown(
            "a server does not show `run_id` (INFO)",
            "make sure that each node is a server of its own",
        ),
    }
}

fn related(servers: &[Node<'_>]) -> Verdict {
    if servers.len() < 2 {
        return ok("one server");
    }
    let text = |node: &Node<'_>, field: &str| node.1.after.text(field).map(str::to_owned);
    // The same history of writes. Two names of one server are another problem.
    let same = |one: &Node<'_>, other: &Node<'_>, field: &str| {
        text(one, field).is_some() && text(one, field) == text(other, field)
    };
    let family = pairs(servers, |one, other| {
        let twins = same(one, other, "run_id");
        let history = same(one, other, "master_replid");
        !twins && (history || follows(one, other) || follows(other, one))
    });
    if !family.is_empty() {
        return fail(
            format!(
                "a master and its replica, or two replicas: {}",
                family.join("; ")
            ),
            "use independent servers as nodes",
        );
    }
    match servers
        .iter()
        .all(|node| text(node, "master_replid").is_some())
    {
        true => ok("independent of each other"),
        false => unknown(
            "a server does not show `master_replid` (INFO)",
            "make sure that no node is a replica of another",
        ),
    }
}

/// Whether one server says that it is a replica of the other.
fn follows(replica: &Node<'_>, master: &Node<'_>) -> bool {
    let info = &replica.1.after;
    match &master.1.address {
        Address::Tcp { host, port } | Address::Tls { host, port, .. } => {
            info.text("master_host") == Some(host)
                && info.number("master_port") == Some(*port)
                && info.text("role") == Some("slave")
        }
        Address::Socket(_) => false,
    }
}

/// Whether all servers have the same set on record, and it is that of this client.
fn set(servers: &[Node<'_>], context: &Context) -> Verdict {
    let remedy =
        "use the same nodes in all clients, or record this set with `leasehold init --replace`";
    let mut ours = context.labels.clone();
    ours.sort_unstable();
    let set_of = |server: &ServerFacts| server.record.as_ref().ok().and_then(|r| r.set.clone());
    let recorded = servers
        .iter()
        .filter_map(|(label, server)| Some((*label, set_of(server)?)));
    let recorded: Vec<(&str, SetRecord)> = recorded.collect();
    let is_other = |(_, set): &&(&str, SetRecord)| {
        let (_, known) = &recorded[0];
        let is_same = set.id == known.id || set.labels == known.labels;
        set.nodes != ours.len() || set.nodes != known.nodes || !is_same
    };
    if let Some((label, set)) = recorded.iter().find(is_other) {
        return fail(
            format!(
                "{label} has [{}] on record, and this client's nodes are [{}]",
                set.labels.join(", "),
                ours.join(", ")
            ),
            remedy,
        );
    }
    let foreign = |(label, server): &Node<'_>| {
        let key = server.record.as_ref().ok()?.foreign.as_ref()?;
        Some(format!(
            "{label}: `{key}` contains text that is not a record"
        ))
    };
    if let Some(seen) = servers.iter().find_map(foreign) {
        return fail(
            seen,
            "find out which program overwrote the record; the next client that connects records it again, \
             and leases that were granted before are lost",
        );
    }
    let mut unread = servers
        .iter()
        .filter_map(|(label, server)| Some((*label, server.record.as_ref().err()?)));
    if let Some((label, error)) = unread.next() {
        let seen = format!("{label}: the server's records could not be read: {error}");
        return match error {
            NodeError::ReadOnly => unknown(seen, "see `role`"),
            NodeError::NoPermission { .. } | NodeError::Refused { .. } => {
                unknown(seen, "see `permissions`")
            }
            error if cluster_error(error).is_some() => unknown(seen, "see `cluster`"),
            NodeError::Protocol { .. } | NodeError::Unusable { .. } => fail(
                seen,
                "find out which program overwrote the record; when no lease is in use, delete it with \
                 redis-cli DEL, and the next client records it again",
            ),
            _ => unknown(seen, "run it again; see `reach` and `latency`"),
        };
    }
    let Some((_, known)) = recorded.first() else {
        return ok("no set on record yet; the first client records it");
    };
    let other_names = known.labels != ours;
    let missing: Vec<_> = servers
        .iter()
        .filter(|(_, server)| set_of(server).is_none())
        .map(|(label, _)| *label)
        .collect();
    match missing.is_empty() {
        true if other_names => warn(
            format!(
                "the set is on record as [{}], and this client names [{}]",
                known.labels.join(", "),
                ours.join(", ")
            ),
            "use the same addresses in all clients; under other names, a client cannot bring back a server \
             that lost its memory",
        ),
        true => ok(format!("{} nodes, as on record", known.nodes)),
        false if !other_names => ok(format!(
            "{} has no set on record; it joins with the next client",
            missing.join(", ")
        )),
        false => fail(
            format!(
                "{} has no set on record, and the others know it as one of [{}]",
                missing.join(", "),
                known.labels.join(", ")
            ),
            remedy,
        ),
    }
}

/// How far the clocks of the servers are apart. `None` with one server.
fn clocks(servers: &[Node<'_>], context: &Context) -> Option<Verdict> {
    let mut offsets = Vec::new();
    for (label, server) in servers {
        let (_, last) = server.clock.as_ref().ok()?;
        offsets.push((server_offset(last), *label, last.round_trip));
    }
    offsets.sort_unstable();
    let ((lowest, behind, one), (highest, ahead, other)) = (offsets.first()?, offsets.last()?);
    if offsets.len() < 2 {
        return None;
    }
    let blur = (*one + *other).as_micros() as u64 / 2;
    let apart = highest.abs_diff(*lowest);
    let apart = Duration::from_micros(apart.saturating_sub(blur));
    let skew = context.constants.skew;
    let seen = format!("{behind} is {apart:.1?} behind {ahead}");
    let remedy = format!("synchronise the machines (NTP); the allowed skew is {skew:?}");
    Some(match apart {
        apart if apart > skew => fail(seen, remedy),
        apart if apart > skew / 2 => warn(seen, remedy),
        _ => ok(format!("the clocks of the nodes differ by {apart:.1?}")),
    })
}

/// The server's clock, relative to a clock that is the same for all servers.
fn server_offset(sample: &ClockSample) -> i64 {
    sample.server_us.saturating_sub(sample.local_us)
}

/// When each node votes for this client. Zero: now. `None`: not until something is changed.
fn votes_in(facts: &[Facts], context: &Context) -> Vec<Option<Duration>> {
    let members = context.labels.iter().zip(facts);
    let members = members.filter_map(|(label, facts)| match facts {
        Facts::Server(Ok(server)) => Some(Member {
            label,
            run_id: server.after.text("run_id"),
            set: server.record.as_ref().ok()?.set.as_ref(),
        }),
        _ => None,
    });
    let members: Vec<_> = members.collect();
    let refusals = refusals(&members, &context.labels);
    let is_refused = |label: &str| {
        let mut refused = members.iter().zip(&refusals);
        refused.any(|(member, refusal)| member.label == label && refusal.is_some())
    };
    let votes_in = |(label, facts): (&String, &Facts)| match facts {
        Facts::Server(Ok(_)) if is_refused(label) => None,
        Facts::Server(Ok(server)) => server.votes_in(context),
        Facts::Server(Err(_)) => None,
        Facts::Store(store) => store.opened.is_ok().then_some(Duration::ZERO),
        Facts::Other(status) => (!matches!(status, Some(Err(_)))).then_some(Duration::ZERO),
    };
    context.labels.iter().zip(facts).map(votes_in).collect()
}

fn quorum(facts: &[Facts], context: &Context) -> Verdict {
    let (all, needed) = (facts.len(), majority(facts.len()));
    let nodes = context.labels.iter().zip(votes_in(facts, context));
    let (voting, silent): (Vec<_>, Vec<_>) =
        nodes.partition(|(_, votes_in)| votes_in.is_some_and(|time| time.is_zero()));
    let names = |nodes: &[(&String, Option<Duration>)]| {
        let names: Vec<_> = nodes.iter().map(|(label, _)| label.as_str()).collect();
        names.join(", ")
    };
    if voting.len() < needed {
        // Those that will vote without a change, the first to do so in front.
        let mut later: Vec<_> = silent
            .iter()
            .filter_map(|(_, votes_in)| *votes_in)
            .collect();
        later.sort_unstable();
        if let Some(last) = later.get(needed - voting.len() - 1) {
            return fail(
                format!(
                    "{} of {all} nodes vote yet; a majority, {needed}, votes in {} s",
                    voting.len(),
                    last.as_millis().div_ceil(1000)
                ),
                "wait; if the servers are new, run `leasehold init --assume-fresh`",
            );
        }
        let (_, never): (Vec<_>, Vec<_>) = silent
            .into_iter()
            .partition(|(_, votes_in)| votes_in.is_some());
        return fail(
            format!(
                "{} of {all} nodes vote, and a majority is {needed}; missing: {}",
                voting.len(),
                names(&never)
            ),
            "mend what the other findings say of these nodes",
        );
    }
    let spare = voting.len() - needed;
    if spare == 0 && !silent.is_empty() {
        return warn(
            format!(
                "no node may fail now: {} of {all} vote, without {}",
                voting.len(),
                names(&silent)
            ),
            "bring the missing nodes back before another one fails",
        );
    }
    let survives = match spare {
        0 => "no node may fail".to_owned(),
        1 => "one node may fail".to_owned(),
        spare => format!("{spare} nodes may fail"),
    };
    match all {
        1 => ok(format!("one node; {survives}")),
        all if all % 2 == 0 => warn(
            format!("{all} nodes; {survives}, as with {}", all - 1),
            format!(
                "use {} or {} nodes: leasehold init --replace with the new list",
                all - 1,
                all + 1
            ),
        ),
        all => ok(format!("{} of {all} nodes vote; {survives}", voting.len())),
    }
}

//! Messages for errors of the library. They use the names of the command-line options, and round
//! durations.

use std::time::{Duration, SystemTime};

use leasehold::node::{NodeError, Vote};
use leasehold::{
    Error, Holder, Inspection, Invalid, NodeOutcome, NodeReport, Refusal, Sighting, TlsPart,
};

use crate::config;
use crate::report::{exact, short, visible};
use crate::subject;

/// The message for an error, with the next step on a separate line.
pub(crate) fn error(error: &Error) -> String {
    with_step(
        error,
        "wait until the nodes vote (without --no-wait, or with a longer --wait); if no lease can be in \
         use, `leasehold init --assume-fresh` lets them vote at once",
    )
}

/// As [`error`], for a command without options about waiting.
pub(crate) fn error_without_wait(error: &Error) -> String {
    with_step(
        error,
        "wait until the nodes vote, and run the command again; if no lease can be in use, `leasehold \
         init --assume-fresh` lets them vote at once",
    )
}

/// `wait` is the next step if waiting is all that is needed.
fn with_step(error: &Error, wait: &'static str) -> String {
    let text = match error {
        Error::Held(refusal) => held(refusal),
        Error::TimedOut {
            waited, refusal, ..
        } => {
            format!("waited for {}: {}", short(*waited), held(refusal))
        }
        Error::NoMajority(refusal) => no_majority(refusal),
        Error::Invalid(invalid) => self::invalid(invalid),
        error => error.to_string(),
    };
    if let Error::NoMajority(refusal) = error
        && let Some(step) = other_permits(refusal)
    {
        return format!("{text}\nnext: {step}");
    }
    match next_step(error, wait) {
        Some(step) => format!("{text}\nnext: {step}"),
        None => text,
    }
}

/// What to do if some nodes have another number of permits on record, and too few have this one.
fn other_permits(refusal: &Refusal) -> Option<String> {
    let mut theirs = refusal
        .nodes
        .iter()
        .filter_map(|report| match report.outcome {
            NodeOutcome::Voted(Vote::OtherPermits { permits }) => Some(permits),
            _ => None,
        });
    let (theirs, ours) = (theirs.next()?, refusal.permits?);
    let name = refusal.name.as_ref()?;
    Some(format!(
        "the nodes have different numbers of permits on record, or do not answer; when they can be \
         reached, `leasehold resize {name} N` records the same number on all of them (N is {theirs} or \
         {ours}, as the clients use it)"
    ))
}

/// Says by whom a lock is held, and how long ago that holder requested it.
pub(crate) fn held_by(holder: &Holder) -> String {
    held_since(holder, holder.since())
}

/// Says by whom an inspected lock is held, and for how long.
pub(crate) fn lock_held_by(lock: &Sighting) -> String {
    held_since(&lock.holder, lock.since())
}

/// Names the process that holds or held a lock.
pub(crate) fn holder_name(holder: &Holder) -> String {
    let reader = if holder.shared { "reader " } else { "" };
    format!("{reader}{}", process_name(holder))
}

/// Names a process, with what it has written about itself.
pub(crate) fn process_name(holder: &Holder) -> String {
    let (Some(host), Some(pid)) = (&holder.host, holder.pid) else {
        return "another program".to_owned();
    };
    let label = holder.label.as_ref();
    let label = label.map_or(String::new(), |label| format!(" ({label})"));
    visible(&format!("{host} pid {pid}{label}")).into_owned()
}

fn held_since(holder: &Holder, since: Option<SystemTime>) -> String {
    let who = holder_name(holder);
    match since {
        // A refusal of readers names the one that joined last, which may have left.
        _ if is_readers(holder) => format!("held by readers (latest: {})", process_name(holder)),
        _ if holder.result.is_some() => format!("held by the stored result of {who}"),
        _ if holder.kept => format!("kept after its release by {who}"),
        Some(since) => {
            let age = short(since.elapsed().unwrap_or_default());
            format!("held by {who} for {age}")
        }
        None => format!("held by {who}"),
    }
}

/// Whether a holder stands for all readers of a lock.
fn is_readers(holder: &Holder) -> bool {
    holder.shared && !holder.kept && holder.owner_id.is_none()
}

/// Whether the nodes name a waiter that is first in line, and no holder.
pub(crate) fn is_only_wanted(refusal: &Refusal) -> bool {
    let mut votes = refusal
        .nodes
        .iter()
        .filter_map(|report| match &report.outcome {
            NodeOutcome::Voted(vote @ Vote::Held { .. }) => Some(vote),
            _ => None,
        });
    // The holder of a refusal is the first that a node names.
    votes.next().is_some_and(Vote::names_first_in_line)
}

/// Describes the holder and when the lock expires, as the nodes report it.
fn held(refusal: &Refusal) -> String {
    let name = refusal.name.as_ref().map(ToString::to_string);
    let name = name.unwrap_or_default();
    if let Some(permits) = refusal.permits {
        return match permits {
            1 => format!("the only permit of `{name}` is held, or others wait for it"),
            _ => format!("all {permits} permits of `{name}` are held, or others wait for one"),
        };
    }
    if let Some(semaphore) = subject::collected(refusal) {
        let by = refusal
            .holder()
            .map_or("another process".to_owned(), holder_name);
        return format!("{by} is collecting several permits of `{semaphore}`");
    }
    let Some(by) = refusal.holder() else {
        return format!("`{name}` is contended{}", nodes(refusal, |_| true));
    };
    let text = match refusal.remaining() {
        _ if is_only_wanted(refusal) => format!("is wanted by {}", first_in_line(by)),
        Some(left) if by.kept && by.result.is_none() => {
            let (who, left) = (holder_name(by), short(left));
            format!("was released by {who} and is kept for another {left}")
        }
        Some(left) if by.kept => format!("is {}; expires in {}", held_by(by), short(left)),
        Some(left) if is_readers(by) => format!(
            "is {}; free in {} unless a reader renews or joins",
            held_by(by),
            short(left)
        ),
        Some(left) => {
            let left = short(left);
            format!("is {}; expires in {left} unless renewed", held_by(by))
        }
        None => format!("is {}; it has no TTL", held_by(by)),
    };
    // Nodes that report the same holder are not listed.
    let differs = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Voted(Vote::Held { holder, .. }) => **holder != *by,
        NodeOutcome::Pending => false,
        _ => true,
    };
    format!("`{name}` {text}{}", nodes(refusal, differs))
}

/// Describes a waiter that keeps others from the lock.
pub(crate) fn first_in_line(waiter: &Holder) -> String {
    format!("{}, which is first in line", holder_name(waiter))
}

/// Describes why too few nodes voted. With a single node, its answer is the reason.
fn no_majority(refusal: &Refusal) -> String {
    let (majority, all) = (refusal.majority, refusal.nodes.len());
    if let [only] = &*refusal.nodes {
        return format!("node {}: {}", only.node, node_outcome(&only.outcome));
    }
    let name = subject::collected(refusal).or(refusal.name.clone());
    let text = match name {
        Some(name) => format!("no majority for `{name}`: {majority} of {all} nodes must grant it"),
        None => format!("no majority: {majority} of {all} nodes must answer"),
    };
    text + &nodes(refusal, |_| true)
}

/// Whether a majority of the nodes answered, whatever the answer was.
pub(crate) fn has_votes(refusal: &Refusal) -> bool {
    let voted = |report: &&NodeReport| matches!(report.outcome, NodeOutcome::Voted(_));
    refusal.nodes.iter().filter(voted).count() >= refusal.majority
}

/// Lists the reports of the nodes that `is_listed` selects.
fn nodes(refusal: &Refusal, is_listed: impl Fn(&NodeOutcome) -> bool) -> String {
    let reports = refusal
        .nodes
        .iter()
        .filter(|report| is_listed(&report.outcome));
    let reports: Vec<_> = reports
        .map(|report| format!("{}: {}", report.node, node_outcome(&report.outcome)))
        .collect();
    match reports.is_empty() {
        true => String::new(),
        false => format!(" [{}]", reports.join("; ")),
    }
}

/// Describes the answer of one node.
pub(crate) fn node_outcome(outcome: &NodeOutcome) -> String {
    match outcome {
        NodeOutcome::Voted(vote @ Vote::Held { holder: by, .. }) if vote.names_first_in_line() => {
            format!("wanted by {}", first_in_line(by))
        }
        NodeOutcome::Voted(Vote::Held {
            holder: by,
            remaining: Some(left),
            ..
        }) => format!("{}, expires in {}", held_by(by), short(*left)),
        NodeOutcome::Voted(Vote::Held { holder: by, .. }) => {
            format!("{}, no TTL", held_by(by))
        }
        NodeOutcome::Voted(Vote::Quarantined { up, remaining }) => format!(
            "in service for {}, votes in {}",
            short(*up),
            short(round_up(*remaining))
        ),
        NodeOutcome::Failed(error) => node_error(error),
        outcome => outcome.to_string(),
    }
}

/// Describes why a node did not vote.
pub(crate) fn node_error(error: &NodeError) -> String {
    match error {
        NodeError::OtherConstants { theirs, ours, .. } => {
            let (theirs, ours) = constants(theirs, ours);
            // The other values are not options.
            let option = match ours.starts_with("--restart-guard ") && !ours.contains(',') {
                true => format!(" {ours}"),
                false => String::new(),
            };
            format!(
                "other clients of this node use {theirs}, but this client uses {ours}; use the same \
                 values in all clients, or change them on all nodes with `leasehold init \
                 --replace{option}` and then in all clients"
            )
        }
        error => error.to_string(),
    }
}

/// Whether the key is not a lock: all nodes that failed say so.
pub(crate) fn is_of_another_type(inspection: &Inspection) -> bool {
    let mut failed = inspection.missing().peekable();
    failed.peek().is_some() && failed.all(|(_, error)| *error == NodeError::WrongType)
}

/// Formats the values that all clients must agree on, but only those that differ.
fn constants(theirs: &str, ours: &str) -> (String, String) {
    let differing = |one: &str, other: &str| {
        let others: Vec<_> = other.split(' ').collect();
        let values = one.split(' ').filter(|value| !others.contains(value));
        let values = values.map(|value| {
            let value = value.replace("restart_guard=", "--restart-guard ");
            value.replace(['_', '='], " ")
        });
        values.collect::<Vec<_>>().join(", ")
    };
    (differing(theirs, ours), differing(ours, theirs))
}

fn invalid(invalid: &Invalid) -> String {
    match invalid {
        Invalid::NodeUrl { index, why, .. } => {
            format!("{}: {why}", config::in_force().node(*index))
        }
        // The value of an election is not a setting.
        Invalid::Label if config::in_force().get("label").is_some() => {
            format!("--label: {invalid}")
        }
        Invalid::Duration {
            option,
            value,
            min,
            max,
            ..
        } => format!(
            "{} {} must be between {} and {}",
            flag(option),
            exact(*value),
            exact(*min),
            exact(*max)
        ),
        Invalid::TtlBeyondGuard { ttl, guard, .. } => {
            let (ttl, guard) = (exact(*ttl), exact(*guard));
            format!(
                "--ttl {ttl} is longer than the restart guard of {guard}\nnext: use a shorter --ttl, or \
                 change the guard on all nodes with `leasehold init --replace --restart-guard {ttl}`, \
                 and then add --restart-guard {ttl} to all clients"
            )
        }
        // What is on record is not a number.
        Invalid::OtherPermits {
            name,
            theirs: 0,
            ours,
            ..
        } => format!(
            "the nodes have no valid number of permits of `{name}` on record\nnext: write it again \
             with `leasehold resize {name} {ours}`"
        ),
        Invalid::OtherPermits {
            name, theirs, ours, ..
        } => format!(
            "`{name}` has {theirs} permits, not {ours}\nnext: use --permits {theirs} everywhere, or \
             change the number with `leasehold resize {name} {ours}`"
        ),
        Invalid::Owner => "invalid owner: it must be the complete text that `leasehold acquire` \
                           printed, which starts with 40 hex digits"
            .to_owned(),
        Invalid::Tls { what, why, .. } => {
            let option = match what {
                TlsPart::RootCertificate => "--tls-ca",
                TlsPart::ClientCertificate => "--tls-cert",
                _ => "--tls-key",
            };
            format!("{option}: {why}")
        }
        Invalid::Node { node, error, .. } => format!("node {node}: {}", node_error(error)),
        invalid => invalid.to_string(),
    }
}

/// The command-line option for an option of the library.
fn flag(option: &str) -> String {
    match option {
        "min_hold" => "--at-least-for".to_owned(),
        "the period" => "--for".to_owned(),
        "max_hold" => "--at-most-for".to_owned(),
        "ttl" | "wait" | "restart_guard" => format!("--{}", option.replace('_', "-")),
        option => option.replace('_', " "),
    }
}

/// What the user can do about an error.
fn next_step(error: &Error, wait: &'static str) -> Option<&'static str> {
    let refusal = match error {
        Error::NoMajority(refusal) => refusal,
        Error::Invalid(Invalid::Node { error, .. }) => return next_step_after([error]),
        _ => return None,
    };
    if votes_in(refusal).is_some() {
        return Some(wait);
    }
    next_step_after(refusal.nodes.iter().filter_map(|node| match &node.outcome {
        NodeOutcome::Failed(error) => Some(error),
        _ => None,
    }))
}

/// What the user can do about nodes that failed with these errors: the most specific step. `None` if
/// a message already says what to do.
pub(crate) fn next_step_after<'a>(
    failed: impl IntoIterator<Item = &'a NodeError>,
) -> Option<&'static str> {
    use NodeError::{
        Clustered, Disconnected, NoPermission, NoSuchDatabase, NotReplicated, OtherConstants,
        OtherNodes, OutOfMemory, Protocol, Refused, SameServer, TimedOut, Tls, Unanswered,
        Unreachable, WrongPassword, WrongType,
    };
    let step = |error: &NodeError| {
        Some(match error {
            OtherNodes { .. }
            | OtherConstants { .. }
            | SameServer { .. }
            | Clustered { .. }
            | OutOfMemory
            | WrongType => (0, ""),
            WrongPassword => (
                0,
                "check the user name and the password in the URL of the node",
            ),
            NoPermission { .. } => (
                0,
                "grant the missing permission (ACL SETUSER); docs/deployment.md lists all that are \
                 needed",
            ),
            Tls { .. } => (
                0,
                "check that --tls-ca issued the server's certificate and that the certificate is valid \
                 for the host in the URL; if the server requires a client certificate, use --tls-cert \
                 and --tls-key",
            ),
            NotReplicated {
                error: Some(error), ..
            } if matches!(**error, NoPermission { .. }) => (
                0,
                "grant the user `+wait` (ACL SETUSER), or leave --replicas out",
            ),
            NotReplicated {
                error: Some(error), ..
            } if error.is_permanent() => (
                0,
                "leave --replicas out: this server cannot report what its replicas have",
            ),
            NotReplicated { .. } => (
                0,
                "check the replicas with `leasehold doctor`; --prefer-replicas warns instead of refusing",
            ),
            NoSuchDatabase => (
                0,
                "use a database index in the URL that exists on the server (`CONFIG GET databases`)",
            ),
            Protocol { .. } => (
                0,
                "check that a Redis or Valkey server listens at this address, and whether it \
                 requires TLS (rediss://)",
            ),
            Refused { why, .. } | Unreachable { why, .. } if why.contains("unknown command") => (
                0,
                "use a server that has this command under its own name (`rename-command` in its \
                 configuration); `leasehold doctor` lists what is missing",
            ),
            Refused { why, .. } | Unreachable { why, .. }
                if why.contains("max number of clients") =>
            {
                (
                    0,
                    "close connections that are not used, or raise the server's `maxclients`",
                )
            }
            Unreachable { why, .. } if why.contains("timed out") || why.contains("connecting") => (
                1,
                "check that the servers are running, and check addresses and firewalls; with \
                 rediss://, check that the port accepts TLS",
            ),
            Unreachable { .. } | Disconnected { .. } => (
                1,
                "check that the servers are running, and check addresses and firewalls",
            ),
            TimedOut { .. } | Unanswered => {
                (2, "check whether the servers are stopped or overloaded")
            }
            _ => return None,
        })
    };
    let steps = failed.into_iter().filter_map(step);
    let (_, step) = steps.min_by_key(|(rank, _)| *rank)?;
    Some(step).filter(|step| !step.is_empty())
}

/// When a majority votes again, if waiting is all that is needed: until the restart guard is over,
/// or until all leases of a replaced set have expired.
pub(crate) fn votes_in(refusal: &Refusal) -> Option<Duration> {
    let mut voters = 0;
    let mut waits: Vec<_> = refusal
        .nodes
        .iter()
        .filter_map(|report| match &report.outcome {
            NodeOutcome::Voted(Vote::Quarantined { remaining, .. }) => Some(*remaining),
            NodeOutcome::Voted(_) | NodeOutcome::Pending | NodeOutcome::Connected => {
                voters += 1;
                None
            }
            _ => None,
        })
        .collect();
    waits.sort_unstable();
    let missing = refusal.majority.checked_sub(voters)?.checked_sub(1)?;
    waits.get(missing).copied().map(round_up)
}

/// Rounds up to whole seconds, so that the announced time is never too short.
pub(crate) fn round_up(time: Duration) -> Duration {
    Duration::from_secs(
        time.as_millis()
            .div_ceil(1000)
            .try_into()
            .unwrap_or(u64::MAX),
    )
}

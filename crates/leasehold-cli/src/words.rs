//! What the library reports, in the words of the tool: options are called as on the command
//! line, and times are written as people write them.

use std::time::{Duration, SystemTime};

use leasehold::node::{NodeError, Vote};
use leasehold::{Error, Holder, Invalid, Refusal, Sighting, Story, TlsPart};

use crate::talk::short;

/// What a failed call says, with the next step on a line of its own.
pub(crate) fn error(error: &Error) -> String {
    let text = match error {
        Error::Held(refusal) => held(refusal),
        Error::TimedOut { waited, refusal } => {
            format!("waited for {}: {}", short(*waited), held(refusal))
        }
        Error::NoMajority(refusal) => no_majority(refusal),
        Error::Invalid(invalid) => self::invalid(invalid),
        error => error.to_string(),
    };
    match next_step(error) {
        Some(step) => format!("{text}\nnext: {step}"),
        None => text,
    }
}

/// Who holds a lock, and how long ago the holder asked for it: the least that tells who it is.
pub(crate) fn holder(holder: &Holder) -> String {
    holder_since(holder, holder.since())
}

/// Who holds a lock that was inspected, and for how long.
pub(crate) fn holder_of(lock: &Sighting) -> String {
    holder_since(&lock.holder, lock.since())
}

/// Who held a lock that was inspected.
pub(crate) fn who(lock: &Sighting) -> String {
    holder_since(&lock.holder, None)
}

fn holder_since(holder: &Holder, since: Option<SystemTime>) -> String {
    let (Some(host), Some(pid)) = (&holder.host, holder.pid) else {
        return "another program".to_owned();
    };
    let label = holder.label.as_ref();
    let label = label.map_or(String::new(), |label| format!(" ({label})"));
    let who = format!("{host} pid {pid}{label}");
    match since {
        _ if holder.kept => format!("--at-least-for of {who}"),
        // A little ahead, if the token is.
        Some(since) => format!("{who} for {}", short(since.elapsed().unwrap_or_default())),
        None => who,
    }
}

/// Who holds it and until when, from what the nodes that refused said.
fn held(refusal: &Refusal) -> String {
    let name = refusal.name.as_ref().map(ToString::to_string);
    let name = name.unwrap_or_default();
    let Some(by) = refusal.holder() else {
        return format!("`{name}` is contended{}", nodes(refusal, |_| true));
    };
    let (text, kept) = (holder(by), by.kept);
    let expires = match refusal.remaining() {
        Some(left) if kept => format!("expires in {}", short(left)),
        Some(left) => format!("expires in {} unless renewed", short(left)),
        None => "it has no TTL".to_owned(),
    };
    // Nodes that say the same are not worth a word.
    let differs = |story: &Story| match story {
        Story::Voted(Vote::Held { holder, .. }) => holder != by,
        Story::Pending => false,
        _ => true,
    };
    format!(
        "`{name}` is held by {text}; {expires}{}",
        nodes(refusal, differs)
    )
}

fn no_majority(refusal: &Refusal) -> String {
    let (majority, all) = (refusal.majority, refusal.nodes.len());
    let text = match &refusal.name {
        Some(name) => format!("no majority for `{name}`: {majority} of {all} nodes must grant it"),
        None => format!("no majority: {majority} of {all} nodes must answer"),
    };
    text + &nodes(refusal, |_| true)
}

/// What those nodes said that are worth a word.
fn nodes(refusal: &Refusal, worth: impl Fn(&Story) -> bool) -> String {
    let reports = refusal.nodes.iter().filter(|report| worth(&report.story));
    let reports: Vec<_> = reports
        .map(|report| format!("{}: {}", report.node, story(&report.story)))
        .collect();
    match reports.is_empty() {
        true => String::new(),
        false => format!(" [{}]", reports.join("; ")),
    }
}

/// What one node said.
pub(crate) fn story(story: &Story) -> String {
    match story {
        Story::Voted(Vote::Held {
            holder: by,
            remaining: Some(left),
            ..
        }) => format!("held by {}, expires in {}", holder(by), short(*left)),
        Story::Voted(Vote::Held { holder: by, .. }) => format!("held by {}, no TTL", holder(by)),
        Story::Voted(Vote::Quarantined { up, remaining }) => format!(
            "started {} ago, votes in {}",
            short(*up),
            short(round_up(*remaining))
        ),
        Story::Failed(error) => node_error(error),
        story => story.to_string(),
    }
}

/// Why a node did not answer.
pub(crate) fn node_error(error: &NodeError) -> String {
    match error {
        NodeError::OtherConstants { theirs, ours } => format!(
            "other clients of this node use {}, this one {}; give all clients the same values",
            constants(theirs),
            constants(ours)
        ),
        error => error.to_string(),
    }
}

/// The values that clients must agree on, as they are on record.
fn constants(text: &str) -> String {
    let text = text.replace("restart_guard=", "--restart-guard ");
    text.replace(['_', '='], " ")
}

fn invalid(invalid: &Invalid) -> String {
    match invalid {
        Invalid::Duration {
            option,
            value,
            min,
            max,
        } => format!(
            "{} {} must be between {} and {}",
            flag(option),
            short(*value),
            short(*min),
            short(*max)
        ),
        Invalid::TtlBeyondGuard { ttl, guard } => format!(
            "--ttl {} is longer than the restart guard of {}; add --restart-guard {0}, the same \
             on all clients of these nodes",
            short(*ttl),
            short(*guard)
        ),
        Invalid::Owner => "not an owner: give the whole text that `leasehold acquire` printed, \
                           which begins with 40 hex digits"
            .to_owned(),
        Invalid::Tls { what, why } => {
            let option = match what {
                TlsPart::RootCertificate => "--tls-ca",
                TlsPart::ClientCertificate => "--tls-cert",
                _ => "--tls-key",
            };
            format!("{option}: {why}")
        }
        Invalid::Node { node, error } => format!("node {node}: {}", node_error(error)),
        invalid => invalid.to_string(),
    }
}

/// The option of the tool by which one of the library is set.
fn flag(option: &str) -> String {
    match option {
        "min_hold" => "--at-least-for".to_owned(),
        "max_hold" => "--at-most-for".to_owned(),
        "ttl" | "wait" | "restart_guard" => format!("--{}", option.replace('_', "-")),
        option => option.replace('_', " "),
    }
}

/// What can be done about it.
fn next_step(error: &Error) -> Option<&'static str> {
    let refusal = match error {
        Error::NoMajority(refusal) => refusal,
        Error::Invalid(Invalid::Node { error, .. }) => return next_step_after([error]),
        Error::Invalid(Invalid::NodeUrl { why, .. }) if why.contains("redis://") => {
            return Some("give --node once per server; commas only in LEASEHOLD_NODES");
        }
        _ => return None,
    };
    if votes_in(refusal).is_some() {
        return Some(
            "wait until the nodes vote (without --no-wait); after a restart, if no lease can be running, \
             `leasehold init --assume-fresh` lets them vote at once",
        );
    }
    next_step_after(refusal.nodes.iter().filter_map(|node| match &node.story {
        Story::Failed(error) => Some(error),
        _ => None,
    }))
}

/// What can be done about nodes that failed so: the first that applies.
pub(crate) fn next_step_after<'a>(
    failed: impl IntoIterator<Item = &'a NodeError>,
) -> Option<&'static str> {
    use NodeError::{
        Disconnected, NoPermission, NoSuchDatabase, Protocol, TimedOut, Tls, Unanswered,
        Unreachable, WrongPassword,
    };
    let step = |error: &NodeError| {
        Some(match error {
            WrongPassword => (
                0,
                "check the user name and the password in the URL of the node",
            ),
            NoPermission { .. } => (
                0,
                "allow the user what is missing (ACL SETUSER); docs/deployment.md lists what is \
                 needed",
            ),
            Tls { .. } => (
                0,
                "check that --tls-ca signed the server's certificate, that the certificate is for \
                 the host in the URL, and --tls-cert and --tls-key if the server asks for them",
            ),
            NoSuchDatabase => (
                0,
                "use an index that the server has (`CONFIG GET databases`) at the end of the URL",
            ),
            Protocol { .. } => (
                0,
                "check that a Redis or Valkey server listens at this address, and whether it \
                 expects TLS (rediss://)",
            ),
            Unreachable { why } if why.contains("timed out") || why.contains("connecting") => (
                1,
                "check that the servers run, and the addresses and firewalls on the way; with \
                 rediss://, does this port speak TLS?",
            ),
            Unreachable { .. } | Disconnected { .. } => (
                1,
                "check that the servers run, and the addresses and firewalls on the way",
            ),
            TimedOut { .. } | Unanswered => {
                (2, "check whether the servers are stopped or overloaded")
            }
            _ => return None,
        })
    };
    let steps = failed.into_iter().filter_map(step);
    steps.min_by_key(|(rank, _)| *rank).map(|(_, step)| step)
}

/// When enough nodes vote again, if only time is missing: until their restart guard is over, or
/// until no lease of a set that was replaced can run.
pub(crate) fn votes_in(refusal: &Refusal) -> Option<Duration> {
    let mut voters = 0;
    let mut waits: Vec<_> = refusal
        .nodes
        .iter()
        .filter_map(|report| match &report.story {
            Story::Voted(Vote::Quarantined { remaining, .. }) => Some(*remaining),
            Story::Voted(_) | Story::Pending | Story::Connected => {
                voters += 1;
                None
            }
            Story::Failed(_) => None,
        })
        .collect();
    waits.sort_unstable();
    let missing = refusal.majority.checked_sub(voters)?.checked_sub(1)?;
    waits.get(missing).copied().map(round_up)
}

/// To whole seconds: what is waited for is not over before it is said to be.
fn round_up(time: Duration) -> Duration {
    Duration::from_secs(
        time.as_millis()
            .div_ceil(1000)
            .try_into()
            .unwrap_or(u64::MAX),
    )
}

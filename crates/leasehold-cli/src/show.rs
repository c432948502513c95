//! `show` and `ls`: inspect locks.

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use leasehold::node::NodeError;
use leasehold::{Builder, Client, Inspection, Listing, LockState, Name, Sighting, StoredResult};
use serde::Serialize;
use wildmatch::WildMatch;

use crate::args::{Format, ListFormat, Ls, Show, WatchArgs};
use crate::exit::{Failure, Outcome, UNAVAILABLE};
use crate::messages::{self, process_name};
use crate::report::{HolderJson, Stdout, millis, print_message, print_stdout, short};
use crate::subject::{Kind, Subject};

/// A lock in the JSON output.
#[derive(Serialize)]
struct LockJson {
    name: String,
    /// The number of the permit, if it is one of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<u32>,
    /// `true` if it is the lock of the process that collects several permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    collector: Option<bool>,
    /// The party whose arrival this is, if it is one of a latch.
    #[serde(skip_serializing_if = "Option::is_none")]
    party: Option<String>,
    /// `None` if not enough nodes answered.
    held: Option<bool>,
    state: &'static str,
    owner: Option<String>,
    holder: Option<HolderJson>,
    remaining_ms: Option<u64>,
    /// The readers, if the lock is shared.
    readers: Vec<ReaderJson>,
    waiters: Option<usize>,
    votes: usize,
    majority: usize,
    nodes: Vec<NodeJson>,
}

/// A reader in the JSON output.
#[derive(Serialize)]
struct ReaderJson {
    owner: String,
    holder: HolderJson,
    remaining_ms: Option<u64>,
}

/// The answer of one node in the JSON output.
#[derive(Serialize)]
struct NodeJson {
    node: String,
    owner: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    error: Option<String>,
    /// When the node votes, if it does not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    votes_in_ms: Option<u64>,
}

/// The nodes that do not vote yet, and when they do.
pub(crate) type NotVoting = Vec<(String, Duration)>;

pub(crate) async fn show(args: Show) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let client = nodes.inspecting()?.build()?;
    if args.permits {
        let format = match args.output {
            Format::Json => ListFormat::Json,
            Format::Wide => ListFormat::Wide,
            _ => ListFormat::Table,
        };
        return repeat(&args.watching, args.output == Format::Json, async || {
            let of_it = |subject: &Subject| {
                let is_part = matches!(subject.kind, Kind::Permit(_) | Kind::Collector);
                is_part && subject.name.as_bytes() == args.name.as_bytes()
            };
            let permits = listed(&client, &args.nodes.prefix, of_it).await?;
            let none = format!("no permit of `{}` is held", args.name.to_string_lossy());
            Ok((permits.text(format, true, &none)?, true))
        })
        .await;
    }
    repeat(&args.watching, args.output == Format::Json, async || {
        let inspecting = client.inspect(args.name.as_bytes());
        let (inspection, not_voting) = tokio::join!(inspecting, not_voting(nodes.inspecting()?));
        let inspection = inspection?;
        let text = match args.output {
            Format::Json => {
                let subject = Subject::of(&inspection, &args.nodes.prefix);
                json(&lock_json(&subject, &inspection, &not_voting))?
            }
            format => page(&inspection, format, &not_voting),
        };
        Ok((text, inspection.is_conclusive()))
    })
    .await
}

/// The nodes that do not vote yet. A node that does not answer is left out: the inspection says why.
async fn not_voting(nodes: Builder) -> NotVoting {
    let answers = nodes.votes_in().await.unwrap_or_default();
    let waits = answers.into_iter().filter_map(|(node, votes_in)| {
        let votes_in = votes_in.ok().filter(|time| !time.is_zero())?;
        Some((node, votes_in))
    });
    waits.collect()
}

pub(crate) async fn ls(args: Ls) -> Outcome {
    let client = args.nodes.inspecting_client()?;
    let pattern = WildMatch::new(&args.pattern);
    repeat(
        &args.watching,
        args.output == ListFormat::Json,
        async || {
            let matches = |subject: &Subject| pattern.matches(&plain(&subject.name));
            let locks = listed(&client, &args.nodes.prefix, matches).await?;
            let none = match &*args.pattern {
                "*" => "no locks are held".to_owned(),
                pattern => format!("no held lock matches `{pattern}`"),
            };
            Ok((locks.text(args.output, !args.no_headers, &none)?, true))
        },
    )
    .await
}

/// Held locks, in the order in which they are printed.
struct Locks(Vec<(Subject, Inspection)>);

impl Locks {
    /// The locks as text. `none` is the table without locks.
    fn text(&self, format: ListFormat, with_header: bool, none: &str) -> Result<String, Failure> {
        Ok(match format {
            ListFormat::Json => {
                let locks = self.0.iter();
                let locks = locks.map(|(subject, lock)| lock_json(subject, lock, &[]));
                json(&locks.collect::<Vec<_>>())?
            }
            ListFormat::Name => {
                let mut names: Vec<_> = self.0.iter().map(|(subject, _)| &subject.name).collect();
                names.dedup();
                let names = names.into_iter().map(|name| plain(name) + "\n");
                names.collect()
            }
            _ if self.0.is_empty() && with_header => none.to_owned(),
            format => table(&self.0, format == ListFormat::Wide, with_header),
        })
    }
}

/// A name as an argument of this program, if it is UTF-8 without control characters. Otherwise it is
/// escaped.
pub(crate) fn plain(name: &Name) -> String {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => name.to_string(),
    }
}

/// Lists the locks that are wanted, and prints warnings about nodes that did not answer.
async fn listed(
    client: &Client,
    prefix: &str,
    is_wanted: impl Fn(&Subject) -> bool,
) -> Result<Locks, Failure> {
    let Listing { locks, missing, .. } = client.inspect_all().await?;
    for (node, error) in missing {
        let error = messages::node_error(&error);
        print_message(format!("warning: {node} did not answer ({error})"));
    }
    let locks = locks
        .into_iter()
        .map(|lock| (Subject::of(&lock, prefix), lock));
    let mut locks: Vec<_> = locks.filter(|(subject, _)| is_wanted(subject)).collect();
    locks.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Locks(locks))
}

/// Prints once, or repeatedly at an interval until stdout is closed.
pub(crate) async fn repeat(
    watching: &WatchArgs,
    is_json: bool,
    look: impl AsyncFn() -> Result<(String, bool), Failure>,
) -> Outcome {
    loop {
        let (text, conclusive) = look().await?;
        let mut page = String::new();
        if watching.watch.is_some() && std::io::stdout().is_terminal() && !is_json {
            // Clears the screen.
            page += "\x1b[H\x1b[2J";
        }
        page += &text;
        if !text.is_empty() && !text.ends_with('\n') {
            page.push('\n');
        }
        let code = match conclusive {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(UNAVAILABLE),
        };
        match (print_stdout(page.as_bytes())?, watching.watch) {
            (Stdout::Open, Some(pause)) => tokio::time::sleep(pause).await,
            _ => return Ok(code),
        }
    }
}

/// The state in one word.
pub(crate) fn state(inspection: &Inspection) -> &'static str {
    match inspection.state() {
        LockState::Held(lock) if lock.holder.result.is_some() => "result",
        LockState::Held(_) if readers(inspection).iter().any(|r| !r.holder.kept) => "shared",
        LockState::Held(lock) if lock.holder.kept => "kept",
        LockState::Held(_) => "held",
        LockState::NotHeld if inspection.sightings().next().is_some() => "split",
        LockState::NotHeld => "free",
        _ if messages::is_of_another_type(inspection) => "wrong-type",
        _ => "unknown",
    }
}

/// The state with an explanation.
fn state_text(inspection: &Inspection) -> String {
    match state(inspection) {
        "kept" => "kept: released, but not free until `left` is over".to_owned(),
        "result" => "result: stored by `once`, and kept until its period is over".to_owned(),
        "shared" => match readers(inspection).len() {
            1 => "shared: 1 reader".to_owned(),
            count => format!("shared: {count} readers"),
        },
        "split" => "not held: no owner has a majority of the nodes".to_owned(),
        "wrong-type" => "wrong type: not a lock".to_owned(),
        "unknown" => {
            let missing: Vec<_> = inspection.missing().map(|(node, _)| node).collect();
            let missing = missing.join(", ");
            format!("unknown: not enough nodes answered (missing: {missing})")
        }
        state => state.to_owned(),
    }
}

/// What is held, and its state.
pub(crate) fn kind_and_state(subject: &Subject, inspection: &Inspection) -> String {
    match (&subject.kind, state(inspection)) {
        (Kind::Lock, state) => state.to_owned(),
        (Kind::Permit(number), state) => format!("permit {number} {state}"),
        (Kind::Collector, "held") => "collecting permits".to_owned(),
        (Kind::Collector, state) => format!("collecting permits, {state}"),
        (Kind::Party(party), "result") => format!("party {party} arrived"),
        (Kind::Party(party), state) => format!("party {party} arriving, {state}"),
    }
}

fn table(held: &[(Subject, Inspection)], wide: bool, with_header: bool) -> String {
    let mut table = plain_table();
    let mut header = vec!["NAME", "STATE", "HOLDER", "SINCE", "LEFT"];
    if wide {
        header.extend(["TOKEN", "OWNER", "WAITERS", "VOTES"]);
    }
    if with_header {
        table.set_header(header);
    }
    for (subject, inspection) in held {
        let lock = inspection.lock().or_else(|| inspection.sightings().next());
        let Some(lock) = lock else { continue };
        let mut row = vec![
            subject.name.to_string(),
            kind_and_state(subject, inspection),
            match readers(inspection).len() {
                0 | 1 => process_name(&lock.holder),
                count => format!("{} and {} more", process_name(&lock.holder), count - 1),
            },
            match &lock.holder.result {
                Some(result) => result_text(result),
                None => since(lock),
            },
            left_text(free_in(inspection, lock)),
        ];
        if wide {
            row.extend([
                lock.holder
                    .token
                    .map_or("-".into(), |token| token.to_string()),
                lock.owner_id(),
                lock.waiters
                    .map_or("-".into(), |waiters| waiters.to_string()),
                format!("{}/{}", votes(inspection, lock), inspection.nodes.len()),
            ]);
        }
        table.add_row(row);
    }
    without_padding(&table)
}

pub(crate) fn page(
    inspection: &Inspection,
    format: Format,
    not_voting: &[(String, Duration)],
) -> String {
    let mut table = plain_table();
    table.add_row(vec!["name", &inspection.name.to_string()]);
    let lock = inspection.lock();
    table.add_row(vec!["state", &state_text(inspection)]);
    let readers = readers(inspection);
    for reader in &readers {
        table.add_row(vec!["reader", &reader_text(reader)]);
    }
    if let Some(lock) = lock.filter(|_| !readers.is_empty()) {
        if let Some(waiters) = lock.waiters {
            table.add_row(vec!["waiters", &waiters.to_string()]);
        }
    } else if let Some(lock) = lock {
        table.add_row(vec!["holder", &process_name(&lock.holder)]);
        match &lock.holder.result {
            Some(result) => table.add_row(vec!["result", &result_text(result)]),
            None => table.add_row(vec!["since", &since(lock)]),
        };
        table.add_row(vec!["left", &left(lock)]);
        if let Some(token) = lock.holder.token {
            table.add_row(vec!["token", &token.to_string()]);
        }
        table.add_row(vec!["owner", &lock.owner_id()]);
        if let Some(waiters) = lock.waiters {
            table.add_row(vec!["waiters", &waiters.to_string()]);
        }
    }
    let several = inspection.nodes.len() > 1 || !inspection.is_conclusive();
    if several || format == Format::Wide || !not_voting.is_empty() {
        for (node, seen) in &inspection.nodes {
            table.add_row(vec![
                "node".to_owned(),
                match votes_in(not_voting, node) {
                    None => format!("{node}: {}", node_text(seen)),
                    Some(time) => {
                        let time = short(messages::round_up(time));
                        format!("{node}: {}; votes in {time}", node_text(seen))
                    }
                },
            ]);
        }
    }
    without_padding(&table)
}

/// When a node votes, if it does not yet.
fn votes_in(not_voting: &[(String, Duration)], node: &str) -> Option<Duration> {
    let (_, time) = not_voting.iter().find(|(label, _)| label == node)?;
    Some(*time)
}

/// The readers that share the lock. Empty if the lock has one owner.
pub(crate) fn readers(inspection: &Inspection) -> Vec<&Sighting> {
    let mut holders = inspection.holders();
    holders.retain(|holder| holder.holder.shared);
    holders
}

fn reader_text(reader: &Sighting) -> String {
    let kept = if reader.holder.kept { ", kept" } else { "" };
    let token = reader
        .holder
        .token
        .map_or(String::new(), |token| format!(", token {token}"));
    let (who, left, owner) = (
        process_name(&reader.holder),
        time_left(reader),
        reader.owner_id(),
    );
    format!("{who}{kept}{token}, {left}, owner {owner}")
}

fn node_text(seen: &Result<Vec<Sighting>, NodeError>) -> String {
    match seen.as_deref() {
        Ok([]) => "free".to_owned(),
        Ok([lock, ..]) if lock.holder.shared => {
            let count = seen.as_ref().map_or(0, Vec::len);
            let fence = lock
                .fence
                .map_or(String::new(), |fence| format!(", fence {fence}"));
            let s = if count == 1 { "" } else { "s" };
            format!("shared by {count} reader{s}{fence}")
        }
        Ok([lock, ..]) => {
            let fence = lock
                .fence
                .map_or(String::new(), |fence| format!(", fence {fence}"));
            let left = time_left(lock);
            format!("held by owner {}, {left}{fence}", lock.owner_id())
        }
        Err(error) => messages::node_error(error),
    }
}

/// The lines of a table without the spaces at their ends.
pub(crate) fn without_padding(table: &Table) -> String {
    let text = table.to_string();
    let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn since(lock: &Sighting) -> String {
    let Some(since) = lock.since() else {
        return "-".to_owned();
    };
    let age = since.elapsed().unwrap_or_default();
    let time = humantime::format_rfc3339_seconds(since);
    format!("{time} ({} ago)", short(age))
}

/// When a result was stored, and how long it is.
fn result_text(result: &StoredResult) -> String {
    let time = humantime::format_rfc3339_seconds(result.at);
    let age = short(result.at.elapsed().unwrap_or_default());
    format!("{time} ({age} ago, {} bytes)", result.bytes.len())
}

fn left(lock: &Sighting) -> String {
    left_text(lock.remaining)
}

/// The time left, in a sentence.
fn time_left(lock: &Sighting) -> String {
    let text = left(lock);
    match lock.remaining {
        None | Some(Duration::ZERO) => text,
        Some(_) => text + " left",
    }
}

pub(crate) fn left_text(remaining: Option<Duration>) -> String {
    match remaining {
        None => "no TTL".to_owned(),
        Some(Duration::ZERO) => "expired".to_owned(),
        Some(left) => short(left),
    }
}

/// The time until a lock expires unless it is renewed: if it is shared, until the last of its readers
/// does.
pub(crate) fn free_in(inspection: &Inspection, lock: &Sighting) -> Option<Duration> {
    let readers = readers(inspection);
    let last = readers.iter().filter_map(|reader| reader.remaining).max();
    last.or(lock.remaining)
}

pub(crate) fn votes(inspection: &Inspection, lock: &Sighting) -> usize {
    let id = lock.owner_id();
    let same = inspection.sightings().filter(|seen| seen.owner_id() == id);
    same.count()
}

fn lock_json(
    subject: &Subject,
    inspection: &Inspection,
    not_voting: &[(String, Duration)],
) -> LockJson {
    let lock = inspection.lock();
    LockJson {
        name: subject.name.to_string(),
        permit: inspection.permit,
        collector: (subject.kind == Kind::Collector).then_some(true),
        party: match &subject.kind {
            Kind::Party(party) => Some(party.clone()),
            _ => None,
        },
        held: inspection.is_conclusive().then_some(lock.is_some()),
        state: state(inspection),
        owner: lock.map(Sighting::owner_id),
        holder: lock.map(HolderJson::of),
        remaining_ms: lock.and_then(|lock| free_in(inspection, lock)).map(millis),
        readers: readers(inspection).into_iter().map(reader_json).collect(),
        waiters: lock.and_then(|lock| lock.waiters),
        votes: lock.map_or(0, |lock| votes(inspection, lock)),
        majority: inspection.majority(),
        nodes: inspection
            .nodes
            .iter()
            .map(|node| NodeJson {
                votes_in_ms: votes_in(not_voting, &node.0).map(millis),
                ..node_json(node)
            })
            .collect(),
    }
}

fn reader_json(reader: &Sighting) -> ReaderJson {
    ReaderJson {
        owner: reader.owner_id(),
        holder: HolderJson::of(reader),
        remaining_ms: reader.remaining.map(millis),
    }
}

fn node_json((node, seen): &(String, Result<Vec<Sighting>, NodeError>)) -> NodeJson {
    let lock = seen.as_ref().ok().and_then(|seen| seen.first());
    NodeJson {
        node: node.clone(),
        owner: lock.map(Sighting::owner_id),
        remaining_ms: lock.and_then(|lock| lock.remaining).map(millis),
        fence: lock.and_then(|lock| lock.fence),
        error: seen.as_ref().err().map(messages::node_error),
        votes_in_ms: None,
    }
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(std::io::Error::from)?)
}

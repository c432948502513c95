//! `show` and `ls`: inspect locks.

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use leasehold::node::NodeError;
use leasehold::{Client, Inspection, Listing, LockState, Sighting};
use serde::Serialize;
use wildmatch::WildMatch;

use crate::args::{Format, ListFormat, Ls, Show, WatchArgs};
use crate::exit::{Failure, Outcome, UNAVAILABLE};
use crate::messages;
use crate::report::{HolderJson, Stdout, millis, print_message, print_stdout, short};

/// A lock in the JSON output.
#[derive(Serialize)]
struct LockJson {
    name: String,
    /// `None` if not enough nodes answered.
    held: Option<bool>,
    state: &'static str,
    owner: Option<String>,
    holder: Option<HolderJson>,
    remaining_ms: Option<u64>,
    waiters: Option<usize>,
    votes: usize,
    majority: usize,
    nodes: Vec<NodeJson>,
}

/// The answer of one node in the JSON output.
#[derive(Serialize)]
struct NodeJson {
    node: String,
    owner: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    error: Option<String>,
}

pub(crate) async fn show(args: Show) -> Outcome {
    let client = args.nodes.inspecting_client()?;
    repeat(&args.watching, args.output == Format::Json, async || {
        let inspection = client.inspect(args.name.as_bytes()).await?;
        let text = match args.output {
            Format::Json => json(&lock_json(&inspection))?,
            format => page(&inspection, format),
        };
        Ok((text, inspection.is_conclusive()))
    })
    .await
}

pub(crate) async fn ls(args: Ls) -> Outcome {
    let client = args.nodes.inspecting_client()?;
    let pattern = WildMatch::new(&args.pattern);
    repeat(
        &args.watching,
        args.output == ListFormat::Json,
        async || {
            let Listing { locks, missing, .. } = listed(&client, &pattern).await?;
            for (node, error) in missing {
                let error = messages::node_error(&error);
                print_message(format!("warning: {node} did not answer ({error})"));
            }
            let names = || locks.iter().map(|lock| format!("{}\n", lock.name));
            let text = match args.output {
                ListFormat::Json => json(&locks.iter().map(lock_json).collect::<Vec<_>>())?,
                ListFormat::Name => names().collect(),
                ListFormat::Wide => table(&locks, true, !args.no_headers),
                ListFormat::Table => table(&locks, false, !args.no_headers),
            };
            Ok((text, true))
        },
    )
    .await
}

/// Lists the locks whose names match. Names do not include the prefix.
async fn listed(client: &Client, pattern: &WildMatch) -> Result<Listing, Failure> {
    let mut all = client.inspect_all().await?;
    all.locks
        .retain(|one| pattern.matches(&one.name.to_string()));
    Ok(all)
}

/// Prints once, or repeatedly at an interval until stdout is closed.
async fn repeat(
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
        for line in text.lines() {
            page += line.trim_end();
            page.push('\n');
        }
        let code = match conclusive {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(UNAVAILABLE),
        };
        match (print_stdout(page.as_bytes())?, watching.watch) {
            (Stdout::Open, Some(pause)) => {
                tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
            }
            _ => return Ok(code),
        }
    }
}

/// The state in one word.
fn state(inspection: &Inspection) -> &'static str {
    match inspection.state() {
        LockState::Held(lock) if lock.holder.kept => "kept",
        LockState::Held(_) => "held",
        LockState::NotHeld if inspection.sightings().next().is_some() => "split",
        LockState::NotHeld => "free",
        _ => "unknown",
    }
}

/// The state with an explanation.
fn state_text(inspection: &Inspection) -> String {
    match state(inspection) {
        "kept" => "kept: released, but not free until its --at-least-for has passed".to_owned(),
        "split" => "not held: no owner has a majority of the nodes".to_owned(),
        "unknown" => {
            let missing: Vec<_> = inspection.missing().map(|(node, _)| node).collect();
            let missing = missing.join(", ");
            format!("unknown: not enough nodes answered (missing: {missing})")
        }
        state => state.to_owned(),
    }
}

fn table(held: &[Inspection], wide: bool, with_header: bool) -> String {
    if held.is_empty() && with_header {
        return "no locks are held".to_owned();
    }
    let mut table = plain_table();
    let mut header = vec!["NAME", "STATE", "HOLDER", "SINCE", "LEFT"];
    if wide {
        header.extend(["TOKEN", "OWNER", "WAITERS", "VOTES"]);
    }
    if with_header {
        table.set_header(header);
    }
    for inspection in held {
        let lock = inspection.lock().or_else(|| inspection.sightings().next());
        let Some(lock) = lock else { continue };
        let mut row = vec![
            inspection.name.to_string(),
            state(inspection).to_owned(),
            holder(lock),
            since(lock),
            left(lock),
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
    table.to_string()
}

fn page(inspection: &Inspection, format: Format) -> String {
    let mut table = plain_table();
    table.add_row(vec!["name", &inspection.name.to_string()]);
    let lock = inspection.lock();
    table.add_row(vec!["state", &state_text(inspection)]);
    if let Some(lock) = lock {
        table.add_row(vec!["holder", &holder(lock)]);
        table.add_row(vec!["since", &since(lock)]);
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
    if several || format == Format::Wide {
        for (node, seen) in &inspection.nodes {
            table.add_row(vec![
                "node".to_owned(),
                format!("{node}: {}", node_text(seen)),
            ]);
        }
    }
    table.to_string()
}

fn node_text(seen: &Result<Option<Sighting>, NodeError>) -> String {
    match seen {
        Ok(None) => "free".to_owned(),
        Ok(Some(lock)) => {
            let fence = lock
                .fence
                .map_or(String::new(), |fence| format!(", fence {fence}"));
            let left = match lock.remaining {
                Some(left) => format!("{} left", short(left)),
                None => "no TTL".to_owned(),
            };
            format!("held by owner {}, {left}{fence}", lock.owner_id())
        }
        Err(error) => messages::node_error(error),
    }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn holder(lock: &Sighting) -> String {
    let (Some(host), Some(pid)) = (&lock.holder.host, lock.holder.pid) else {
        return "another program".to_owned();
    };
    match &lock.holder.label {
        Some(label) => format!("{host} pid {pid} ({label})"),
        None => format!("{host} pid {pid}"),
    }
}

fn since(lock: &Sighting) -> String {
    let Some(since) = lock.since() else {
        return "-".to_owned();
    };
    let age = since.elapsed().unwrap_or_default();
    let time = humantime::format_rfc3339_seconds(since);
    format!("{time} ({} ago)", short(age))
}

fn left(lock: &Sighting) -> String {
    lock.remaining.map_or("no TTL".into(), short)
}

fn votes(inspection: &Inspection, lock: &Sighting) -> usize {
    let id = lock.owner_id();
    let same = inspection.sightings().filter(|seen| seen.owner_id() == id);
    same.count()
}

fn lock_json(inspection: &Inspection) -> LockJson {
    let lock = inspection.lock();
    LockJson {
        name: inspection.name.to_string(),
        held: inspection.is_conclusive().then_some(lock.is_some()),
        state: state(inspection),
        owner: lock.map(Sighting::owner_id),
        holder: lock.map(HolderJson::of),
        remaining_ms: lock.and_then(|lock| lock.remaining).map(millis),
        waiters: lock.and_then(|lock| lock.waiters),
        votes: lock.map_or(0, |lock| votes(inspection, lock)),
        majority: inspection.majority(),
        nodes: inspection.nodes.iter().map(node_json).collect(),
    }
}

fn node_json((node, seen): &(String, Result<Option<Sighting>, NodeError>)) -> NodeJson {
    let lock = seen.as_ref().ok().and_then(Option::as_ref);
    NodeJson {
        node: node.clone(),
        owner: lock.map(Sighting::owner_id),
        remaining_ms: lock.and_then(|lock| lock.remaining).map(millis),
        fence: lock.and_then(|lock| lock.fence),
        error: seen.as_ref().err().map(messages::node_error),
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(std::io::Error::from)?)
}

//! `show` and `ls`: who holds what.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use leasehold::{Client, Inspection, Name, Options, Sighting};
use serde::Serialize;
use wildmatch::WildMatch;

use crate::args::{Format, Ls, Printing, Show};
use crate::exit::{Failure, Outcome, UNAVAILABLE};
use crate::talk::{HolderJson, millis, short};

/// One lock, for machines.
#[derive(Serialize)]
struct LockJson {
    name: String,
    held: bool,
    owner: Option<String>,
    holder: Option<HolderJson>,
    remaining_ms: Option<u64>,
    waiters: Option<usize>,
    votes: usize,
    majority: usize,
    nodes: Vec<NodeJson>,
}

/// What one node says, for machines.
#[derive(Serialize)]
struct NodeJson {
    node: String,
    owner: Option<String>,
    remaining_ms: Option<u64>,
    fence: Option<u64>,
    error: Option<String>,
}

pub(crate) async fn show(args: Show) -> Outcome {
    let client = args.nodes.client(Options::default())?;
    repeat(&args.printing, async || {
        let inspection = client.inspect(args.name.as_bytes()).await?;
        let conclusive = inspection.is_conclusive();
        let text = match args.printing.output {
            Format::Json => json(&lock_json(&inspection))?,
            format => page(&inspection, format),
        };
        Ok((text, conclusive))
    })
    .await
}

pub(crate) async fn ls(args: Ls) -> Outcome {
    let client = args.nodes.client(Options::default())?;
    let pattern = WildMatch::new(&args.pattern);
    repeat(&args.printing, async || {
        let held = listed(&client, &args.nodes.prefix, &pattern).await?;
        let text = match args.printing.output {
            Format::Json => json(&held.iter().map(lock_json).collect::<Vec<_>>())?,
            format => table(&held, format),
        };
        Ok((text, true))
    })
    .await
}

/// Names are listed, and matched, as they would be given: without the prefix.
async fn listed(
    client: &Client,
    prefix: &str,
    pattern: &WildMatch,
) -> Result<Vec<Inspection>, Failure> {
    let mut all = client.inspect_all().await?;
    all.retain_mut(|one| {
        let name = one.name.as_bytes().strip_prefix(prefix.as_bytes());
        let name = name.and_then(|name| Name::new(name).ok());
        let wanted = name.filter(|name| pattern.matches(&name.to_string()));
        wanted.map(|name| one.name = name).is_some()
    });
    Ok(all)
}

/// Prints once, or again and again.
async fn repeat(
    printing: &Printing,
    look: impl AsyncFn() -> Result<(String, bool), Failure>,
) -> Outcome {
    loop {
        let (text, conclusive) = look().await?;
        let mut out = std::io::stdout().lock();
        if printing.watch.is_some() && out.is_terminal() && printing.output != Format::Json {
            // From the top, on an empty screen.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        for line in text.lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        out.flush()?;
        drop(out);
        match printing.watch {
            Some(pause) => tokio::time::sleep(pause.max(Duration::from_millis(10))).await,
            None if conclusive => return Ok(ExitCode::SUCCESS),
            None => return Ok(ExitCode::from(UNAVAILABLE)),
        }
    }
}

fn table(held: &[Inspection], format: Format) -> String {
    if held.is_empty() {
        return "no locks are held".to_owned();
    }
    let mut table = plain_table();
    let mut header = vec!["NAME", "HOLDER", "SINCE", "LEFT"];
    if format == Format::Wide {
        header.extend(["TOKEN", "OWNER", "WAITERS", "VOTES"]);
    }
    table.set_header(header);
    for inspection in held {
        let lock = inspection.lock().or_else(|| inspection.sightings().next());
        let Some(lock) = lock else { continue };
        let mut row = vec![
            inspection.name.to_string(),
            holder(lock),
            since(lock),
            left(lock),
        ];
        if format == Format::Wide {
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
    let state = match lock {
        Some(lock) if lock.holder.kept => "kept taken (--at-least-for) after it was given back",
        Some(_) => "held",
        None if !inspection.is_conclusive() => "unknown: not enough nodes answer",
        None if inspection.sightings().next().is_some() => "contended: nobody has a majority",
        None => "free",
    };
    table.add_row(vec!["state", state]);
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

fn node_text(seen: &Result<Option<Sighting>, leasehold::node::NodeError>) -> String {
    match seen {
        Ok(None) => "free".to_owned(),
        Ok(Some(lock)) => {
            let fence = lock
                .fence
                .map_or(String::new(), |fence| format!(", fence {fence}"));
            format!(
                "held by owner {}, {} left{fence}",
                lock.owner_id(),
                left(lock)
            )
        }
        Err(error) => error.to_string(),
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
        Some(label) => format!("pid {pid} on {host} ({label})"),
        None => format!("pid {pid} on {host}"),
    }
}

fn since(lock: &Sighting) -> String {
    let Some(since) = lock.holder.since() else {
        return "-".to_owned();
    };
    // A little ahead, if the token is.
    let age = since.elapsed().unwrap_or_default();
    let time = humantime::format_rfc3339_seconds(since);
    format!("{time} ({} ago)", short(age))
}

fn left(lock: &Sighting) -> String {
    lock.remaining.map_or("for ever".into(), short)
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
        held: lock.is_some(),
        owner: lock.map(Sighting::owner_id),
        holder: lock.map(|lock| HolderJson::from(&lock.holder)),
        remaining_ms: lock.and_then(|lock| lock.remaining).map(millis),
        waiters: lock.and_then(|lock| lock.waiters),
        votes: lock.map_or(0, |lock| votes(inspection, lock)),
        majority: inspection.majority(),
        nodes: inspection.nodes.iter().map(node_json).collect(),
    }
}

fn node_json(
    (node, seen): &(String, Result<Option<Sighting>, leasehold::node::NodeError>),
) -> NodeJson {
    let lock = seen.as_ref().ok().and_then(Option::as_ref);
    NodeJson {
        node: node.clone(),
        owner: lock.map(Sighting::owner_id),
        remaining_ms: lock.and_then(|lock| lock.remaining).map(millis),
        fence: lock.and_then(|lock| lock.fence),
        error: seen.as_ref().err().map(ToString::to_string),
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(std::io::Error::from)?)
}

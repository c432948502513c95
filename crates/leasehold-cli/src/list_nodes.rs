//! `nodes`: the state of each node.

use std::time::Duration;

use leasehold::doctor::{NodeFacts, NodeState};
use serde::Serialize;

use crate::args::{Nodes, ReportFormat};
use crate::doctor::time;
use crate::exit::Outcome;
use crate::messages;
use crate::report::{millis, short};
use crate::show::{json, plain_table, repeat, without_padding};

/// A node in the JSON output. `null` is what the node does not say.
#[derive(Serialize)]
struct NodeJson {
    node: String,
    state: &'static str,
    role: Option<String>,
    version: Option<String>,
    up_ms: Option<u64>,
    epoch_age_ms: Option<u64>,
    votes_in_ms: Option<u64>,
    clock_offset_us: Option<i64>,
    latency_us: Option<u64>,
    error: Option<String>,
}

pub(crate) async fn list_nodes(args: Nodes) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let is_json = args.output == ReportFormat::Json;
    repeat(&args.watching, is_json, async || {
        let states = nodes.inspecting()?.node_states().await?;
        let voting = states.iter().filter(|node| state(node) == "votes").count();
        let text = match args.output {
            ReportFormat::Json => json(&states.iter().map(NodeJson::of).collect::<Vec<_>>())?,
            ReportFormat::Table => table(&states, !args.no_headers),
        };
        Ok((text, voting > states.len() / 2))
    })
    .await
}

/// The state in one word.
pub(crate) fn state(node: &NodeState) -> &'static str {
    match &node.answer {
        Err(_) => "down",
        Ok(facts) => match facts.votes_in {
            None => "no-vote",
            Some(Duration::ZERO) => "votes",
            Some(_) => "waits",
        },
    }
}

fn table(states: &[NodeState], with_header: bool) -> String {
    let mut table = plain_table();
    if with_header {
        table.set_header(vec![
            "NODE", "STATE", "ROLE", "VERSION", "UP", "EPOCH", "VOTES IN", "CLOCK", "LATENCY",
        ]);
    }
    for node in states {
        let mut row = vec![node.node.clone(), state(node).to_owned()];
        match &node.answer {
            Ok(facts) => row.extend(cells(facts)),
            Err(error) => row.extend((0..7).map(|_| "-".to_owned()).chain([
                // The reason is behind the row, where it does not widen a column.
                messages::node_error(error),
            ])),
        }
        table.add_row(row);
    }
    without_padding(&table)
}

fn cells(facts: &NodeFacts) -> Vec<String> {
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        text(facts.role.clone()),
        text(facts.version.clone()),
        text(facts.up.map(short)),
        text(facts.epoch_age.map(short)),
        match facts.votes_in {
            None => "never".to_owned(),
            Some(Duration::ZERO) => "now".to_owned(),
            Some(time) => short(messages::round_up(time)),
        },
        text(facts.clock_offset_us.map(offset)),
        text(facts.latency.map(time)),
    ]
}

/// How far a clock is ahead (+) or behind.
pub(crate) fn offset(us: i64) -> String {
    match us.unsigned_abs() {
        0..50 => "0.0ms".to_owned(),
        50..10_000_000 => format!("{:+.1}ms", us as f64 / 1000.0),
        _ => format!("{:+.0}s", us as f64 / 1_000_000.0),
    }
}

impl NodeJson {
    fn of(node: &NodeState) -> Self {
        let facts = node.answer.as_ref().ok();
        Self {
            node: node.node.clone(),
            state: state(node),
            role: facts.and_then(|facts| facts.role.clone()),
            version: facts.and_then(|facts| facts.version.clone()),
            up_ms: facts.and_then(|facts| facts.up).map(millis),
            epoch_age_ms: facts.and_then(|facts| facts.epoch_age).map(millis),
            votes_in_ms: facts.and_then(|facts| facts.votes_in).map(millis),
            clock_offset_us: facts.and_then(|facts| facts.clock_offset_us),
            latency_us: facts
                .and_then(|facts| facts.latency)
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            error: node.answer.as_ref().err().map(messages::node_error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_a_sign() {
        assert_eq!(offset(1_500), "+1.5ms");
        assert_eq!(offset(-300), "-0.3ms");
        assert_eq!(offset(-49), "0.0ms");
        assert_eq!(offset(-3_600_000_000), "-3600s");
    }
}

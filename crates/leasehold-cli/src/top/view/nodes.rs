//! The states of the nodes, above the locks.

use std::time::Duration;

use leasehold::doctor::NodeState;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::Theme;
use crate::doctor::time;
use crate::list_nodes::{offset, state};
use crate::messages;
use crate::report::short;
use crate::top::app::App;
use crate::top::text::fit;

const HEADER: [&str; 7] = [
    "NODE", "STATE", "ROLE", "VERSION", "VOTES IN", "CLOCK", "LATENCY",
];

/// How many nodes there are.
pub(super) fn count(app: &App) -> usize {
    let of_lock = app.rows.first().map(|row| row.inspection.nodes.len());
    of_lock.unwrap_or(app.nodes.len())
}

/// A line for each node and a header, or one line for all of them if there is less space.
pub(super) fn lines(app: &App, theme: Theme, width: u16, most: usize) -> Vec<Line<'static>> {
    let width = usize::from(width);
    if app.nodes.is_empty() {
        return vec![Line::raw("connecting to the nodes...")];
    }
    if app.nodes.len() + 2 > most {
        return vec![summary(&app.nodes, theme, width)];
    }
    let mut table: Vec<[String; 7]> = app.nodes.iter().map(cells).collect();
    for cells in &mut table {
        // The path of a store may be long.
        cells[0] = fit(&cells[0], (width / 3).max(20)).into_owned();
    }
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| {
            // The reason why a node is down is longer than its column, and the last.
            let known = table.iter().zip(&app.nodes);
            let known = known.filter(|(_, node)| column < 2 || node.answer.is_ok());
            let cells = known.map(|(cells, _)| cells[column].width());
            cells.chain([HEADER[column].len()]).max().unwrap_or(0)
        })
        .collect();
    // Two spaces between columns, if there is space.
    let gap = match widths.iter().sum::<usize>() + 2 * (HEADER.len() - 1) <= width {
        true => 2,
        false => 1,
    };
    let widths: Vec<_> = widths.iter().map(|width| width + gap).collect();
    let header = padded(&HEADER.map(str::to_owned), &widths);
    let header = fit(header.trim_end(), width).into_owned();
    let mut lines = vec![Line::styled(header, theme.header())];
    for (cells, node) in table.iter().zip(&app.nodes) {
        // The state has a colour, and the rest has not.
        let [name, word, rest @ ..] = cells;
        let start = padded([name], &widths);
        let used = start.width() + word.len();
        let behind = " ".repeat(widths[1].saturating_sub(word.len()));
        let rest = format!("{behind}{}", padded(rest, &widths[2..]));
        lines.push(Line::from(vec![
            Span::raw(start),
            Span::styled(word.clone(), style(node, theme)),
            Span::raw(fit(rest.trim_end(), width.saturating_sub(used)).into_owned()),
        ]));
    }
    // A free line before the locks.
    lines.push(Line::raw(""));
    lines
}

/// Cells, each followed by spaces up to the width of its column.
fn padded<'a>(cells: impl IntoIterator<Item = &'a String>, widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.into_iter().zip(widths) {
        text += cell;
        text += &" ".repeat(width.saturating_sub(cell.width()));
    }
    text
}

fn cells(node: &NodeState) -> [String; 7] {
    let unknown = || "-".to_owned();
    let facts = match &node.answer {
        Ok(facts) => facts,
        Err(error) => {
            let why = messages::node_error(error);
            let empty = String::new;
            return [
                node.node.clone(),
                state(node).to_owned(),
                why,
                empty(),
                empty(),
                empty(),
                empty(),
            ];
        }
    };
    [
        node.node.clone(),
        state(node).to_owned(),
        facts.role.clone().unwrap_or_else(unknown),
        facts.version.clone().unwrap_or_else(unknown),
        match facts.votes_in {
            None => "never".to_owned(),
            Some(Duration::ZERO) => "now".to_owned(),
            Some(time) => short(messages::round_up(time)),
        },
        facts.clock_offset_us.map_or_else(unknown, offset),
        facts.latency.map_or_else(unknown, time),
    ]
}

fn style(node: &NodeState, theme: Theme) -> Style {
    match state(node) {
        "votes" => theme.good(),
        "down" => theme.bad(),
        _ => theme.warning(),
    }
}

/// How many nodes vote, and which do not.
fn summary(nodes: &[NodeState], theme: Theme, width: usize) -> Line<'static> {
    let voting = nodes.iter().filter(|node| state(node) == "votes").count();
    let mut text = format!("{voting} of {} nodes vote", nodes.len());
    for node in nodes.iter().filter(|node| state(node) != "votes") {
        text += &format!(", {} {}", node.node, state(node));
    }
    let style = match voting {
        voting if voting == nodes.len() => theme.good(),
        voting if voting > nodes.len() / 2 => theme.warning(),
        _ => theme.bad(),
    };
    Line::styled(fit(&text, width).into_owned(), style)
}

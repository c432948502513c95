//! Tables with one contender per line: there are too many for columns.

use std::time::Duration;

use comfy_table::Table;

use super::text::{grouped, marked, new_table, rate, short, spread};
use crate::contenders::Kind;
use crate::scenarios::contention::ContentionResult;
use crate::scenarios::throughput::ThroughputResult;
use crate::tally::Tally;

/// The hand-overs and waits of each contender.
pub(super) fn table(result: &ContentionResult) -> Table {
    let mut table = new_table([
        "contender",
        "hand-overs/s",
        "longest wait, ms",
        "mean wait, ms",
        "pairs/s",
        "held, ms",
        "errors/round",
    ]);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    for column in &result.columns {
        let kind = column.kind;
        let figure = |figure: fn(&Tally) -> f64| result.figure(kind, figure);
        let mut row = vec![marked(column)];
        let ideal = kind == Kind::Ideal;
        let values = [
            figure(Tally::handovers_per_s).map(|value| spread(value, grouped)),
            // The ideal contender never waits.
            result
                .figure(kind, |turn| ms(turn.longest_wait))
                .filter(|_| !ideal)
                .map(|value| spread(value, short)),
            result
                .figure(kind, |turn| ms(turn.mean_wait))
                .filter(|_| !ideal)
                .map(|value| short(value.median)),
            figure(Tally::pairs_per_s).map(|value| grouped(value.median)),
            result
                .figure(kind, |turn| ms(turn.held))
                .map(|value| short(value.median)),
            figure(|turn| turn.errors as f64).map(|value| grouped(value.median)),
        ];
        row.extend(values.map(|value| value.unwrap_or("–".into())));
        table.add_row(row);
    }
    table
}

/// Pairs per second of the peers that are separate programs, where they took part.
pub(super) fn peer_rates(results: &[ThroughputResult]) -> Option<Table> {
    let mut table = new_table(["#", "work", "contender", "pairs/s", "leasehold / peer"]);
    for result in results {
        let columns = result.columns.iter();
        for column in columns.filter(|column| matches!(column.kind, Kind::Peer(_))) {
            let ratio = result.ratio(Kind::Leasehold, column.kind);
            table.add_row([
                result.spec.row.to_string(),
                result.spec.work.to_owned(),
                column.kind.label().to_owned(),
                rate(result, column),
                ratio.map_or("–".into(), |ratio| spread(ratio, short) + " ×"),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

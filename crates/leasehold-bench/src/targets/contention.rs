//! The targets of rows 6, 7 and 8.

use super::{Bound, Verdict, is_sound};
use crate::contenders::Kind;
use crate::scenarios::contention::ContentionResult;
use crate::stats::Spread;

/// Compared with the ideal, and with the best peer.
fn targets(row: u8) -> Option<(Bound, Bound)> {
    use Bound::AtLeast;
    match row {
        6 => Some((AtLeast(0.9), AtLeast(1.0))),
        7 => Some((AtLeast(0.8), AtLeast(1.0))),
        _ => None,
    }
}

/// For tasks of one process, compared with rslock.
const ONE_PROCESS: Bound = Bound::AtLeast(20.0);

/// For both rows: no contender waits much longer than the others.
const LONGEST_TO_MEAN: Bound = Bound::AtMost(2.0);

pub(super) fn judge(result: &ContentionResult) -> Vec<Verdict> {
    let sound = is_sound(&result.columns);
    let judged = |figure: String, bound: Bound, value: Option<Spread>| Verdict {
        row: result.spec.row,
        work: result.spec.work,
        figure,
        unit: " ×",
        value,
        target: bound.text(" ×"),
        outcome: bound.judge(value, sound),
    };
    let Some((ideal, peer)) = targets(result.spec.row) else {
        // With its default and with its best settings.
        let best = result.best_rslock().filter(|best| *best != Kind::Rslock);
        let others = [Some(Kind::Rslock), best].into_iter().flatten();
        let verdicts = others.map(|other| {
            let figure = format!("hand-overs, leasehold / {}", other.label());
            judged(figure, ONE_PROCESS, result.ratio(Kind::Leasehold, other))
        });
        return verdicts.collect();
    };
    let longest = result.figure(Kind::Leasehold, |turn| {
        turn.longest_wait.as_secs_f64() / turn.mean_wait.as_secs_f64()
    });
    let mut verdicts = vec![judged(
        "hand-overs, leasehold / ideal".into(),
        ideal,
        result.ratio(Kind::Leasehold, Kind::Ideal),
    )];
    verdicts.extend(result.best_peer().map(|best| {
        let figure = format!("hand-overs, leasehold / {}", best.label());
        judged(figure, peer, result.ratio(Kind::Leasehold, best))
    }));
    verdicts.push(judged(
        "longest wait / mean".into(),
        LONGEST_TO_MEAN,
        longest,
    ));
    verdicts
}

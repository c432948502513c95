//! The embedded store: pairs of one task, and processes that contend.

use std::time::Duration;

use leasehold_testkit::TempDir;
use serde_json::Value;

use super::one_thread_runtime;
use super::pairs::pairs;
use super::sheet::{Figures, Sheet};
use crate::args::Plan;
use crate::contenders::Kind;
use crate::worker::{Visit, Worker};

pub(crate) const ONE_TASK: &str = "13/one-task";
pub(crate) const PROCESSES: &str = "13/processes";
const COUNT: usize = 8;
const HOLD: Duration = Duration::from_millis(1);
/// The minimum length of a turn. It costs no time, because the servers have to settle meanwhile.
const LENGTH: Duration = Duration::from_secs(2);
/// How long a process may take beyond its turn, to start and to end.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const PAIRS: &str = "pairs/s";
pub(crate) const SHARE: &str = "least share / mean";
pub(crate) const LONGEST: &str = "longest wait / mean";

/// One task that acquires and releases a lock.
pub(super) fn one_task(plan: &Plan) -> Result<Sheet, String> {
    let mut sheet = Sheet::new(ONE_TASK, "embedded store, one task", "tasks");
    sheet.add(1, Kind::Leasehold);
    let dir = TempDir::new();
    let urls = [url(&dir)];
    sheet.take_turns(plan.rounds, |tasks, kind, _| {
        let runtime = one_thread_runtime()?;
        runtime.block_on(async {
            let contender = kind.connect(&urls).await?;
            pairs(&contender, kind, tasks, plan.warm_up).await?;
            let done = pairs(&contender, kind, tasks, plan.turn).await?;
            Ok(vec![(PAIRS, done.per_s)])
        })
    });
    Ok(sheet)
}

/// Processes that contend for one lock.
pub(super) fn processes(plan: &Plan) -> Result<Sheet, String> {
    let work = "embedded store, processes contend, 1 ms hold";
    let mut sheet = Sheet::new(PROCESSES, work, "processes");
    sheet.add(COUNT, Kind::Leasehold);
    let (dir, length) = (TempDir::new(), plan.contest.max(LENGTH));
    sheet.take_turns(plan.contest_rounds, |count, _, round| {
        let (url, name) = (url(&dir), format!("13/{round}"));
        let start = |_| Worker::local(&url, &name, HOLD, length);
        let mut workers = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
        for worker in &workers {
            worker.next(LIMIT)?;
        }
        for worker in &mut workers {
            worker.go()?;
        }
        let reports = workers.iter().map(|worker| worker.next(length + LIMIT));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        figures(&reports, length)
    });
    Ok(sheet)
}

fn url(dir: &TempDir) -> String {
    format!("local:{}", dir.path().join("locks.db").display())
}

/// Combines the reports of the processes.
fn figures(reports: &[Value], length: Duration) -> Result<Figures, String> {
    let (mut visits, mut waits, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for (process, report) in reports.iter().enumerate() {
        let list = report["visits"]
            .as_array()
            .ok_or("a report has no visits")?;
        let own: Option<Vec<Visit>> = list.iter().map(Visit::parse).collect();
        let own = own.ok_or("a visit cannot be read")?;
        shares.push(own.len() as f64);
        waits.extend(own.iter().map(|visit| visit.waited_us));
        waits.extend(report["unfinished_us"].as_u64().filter(|&us| us > 0));
        visits.extend(own.into_iter().map(|visit| (visit, process)));
    }
    let handovers = handovers(visits)? as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let waits: Vec<f64> = waits.into_iter().map(|us| us as f64 / 1e3).collect();
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(vec![
        ("hand-overs/s", handovers / length.as_secs_f64()),
        (PAIRS, shares.iter().sum::<f64>() / length.as_secs_f64()),
        ("longest wait, ms", longest),
        ("mean wait, ms", mean(&waits)),
        (LONGEST, longest / mean(&waits)),
        (SHARE, least / mean(&shares)),
    ])
}

/// How often the lock went to another process.
///
/// # Errors
///
/// If two processes held it at once, or if tokens do not grow with time.
fn handovers(mut visits: Vec<(Visit, usize)>) -> Result<usize, String> {
    visits.sort_by_key(|(visit, _)| visit.token);
    let mut handovers = 0;
    for ((before, from), (after, to)) in visits.iter().zip(visits.iter().skip(1)) {
        if after.token == before.token || after.entered_us < before.left_us {
            return Err(format!(
                "token {} was held before {} was released",
                after.token, before.token
            ));
        }
        handovers += usize::from(from != to);
    }
    Ok(handovers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(token: u64, entered_us: u64, left_us: u64) -> Visit {
        Visit {
            token,
            entered_us,
            left_us,
            waited_us: 0,
        }
    }

    #[test]
    fn overlapping_visits_are_detected() {
        let (one, two, three) = (visit(5, 10, 20), visit(6, 20, 30), visit(9, 31, 32));
        let fine = vec![(three, 0), (one, 0), (two, 1)];
        assert_eq!(handovers(fine), Ok(2));
        assert!(handovers(vec![(one, 0), (visit(6, 19, 30), 1)]).is_err());
        assert!(handovers(vec![(one, 0), (visit(4, 20, 30), 1)]).is_err());
    }

    #[test]
    fn a_process_that_got_nothing_has_no_share() {
        let reports =
            |visits: Value, us: u64| serde_json::json!({ "visits": visits, "unfinished_us": us });
        let busy = reports(serde_json::json!([[1, 10, 20, 1000], [2, 30, 40, 1000]]), 0);
        let starved = reports(serde_json::json!([]), 4000);
        let figures = figures(&[busy, starved], Duration::from_secs(1)).unwrap();
        let figure = |name: &str| figures.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!((figure(SHARE), figure(LONGEST)), (0.0, 2.0));
    }
}

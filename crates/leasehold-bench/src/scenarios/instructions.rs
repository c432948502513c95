//! Instructions per pair, of the client and of the server, as callgrind counts them. They hardly depend
//! on what else the machine does.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{RedisServer, TempDir};

use super::sheet::{Figures, Sheet};
use crate::args::Plan;
use crate::contenders::Kind;
use crate::servers::{SETTLED_AFTER, Servers};
use crate::worker::Worker;

pub(crate) const ID: &str = "17/instructions";

/// The numbers of pairs of two runs. The difference is that of their instructions, without what it
/// takes to start.
const PAIRS: [usize; 2] = [400, 2000];
const TASKS: [usize; 2] = [1, 100];
/// Programs take fifty times as long under callgrind.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the scenario. The clients that are counted use this server.
pub(super) fn run(plan: &Plan, server: &Servers) -> Result<Sheet, String> {
    if plan.quick {
        return Err("it takes some minutes".into());
    }
    let works = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !works.is_ok_and(|status| status.success()) {
        return Err("valgrind is not on the path".into());
    }
    let mut sheet = Sheet::new(ID, "one node, instructions per pair", "tasks");
    for tasks in TASKS {
        for kind in Kind::UNCONTENDED {
            sheet.add(tasks, kind);
        }
    }
    sheet
        .notes
        .push("each side is counted while the other runs at its usual speed".into());
    sheet.take_turns(1, |tasks, kind, _| {
        let client = of_client(kind, tasks, &server.urls())?;
        let server = of_server(kind, tasks)?;
        Ok(Figures::from([("client", client), ("server", server)]))
    });
    Ok(sheet)
}

fn of_client(kind: Kind, tasks: usize, urls: &[String]) -> Result<f64, String> {
    per_pair(|pairs, under| finish(Worker::count(under, (kind, tasks), pairs, urls)?))
}

fn of_server(kind: Kind, tasks: usize) -> Result<f64, String> {
    per_pair(|pairs, under| {
        let mut server = RedisServer::start_under(under);
        if matches!(kind, Kind::Leasehold | Kind::LeaseholdUnfenced) {
            finish(Worker::count(&[], (kind, 1), 1, &[server.url()])?)?;
            std::thread::sleep(SETTLED_AFTER);
        }
        finish(Worker::count(&[], (kind, tasks), pairs, &[server.url()])?)?;
        server.shut_down();
        Ok(())
    })
}

fn finish(worker: Worker) -> Result<(), String> {
    worker.next(LIMIT)?;
    worker.end();
    Ok(())
}

/// Runs something under callgrind with both numbers of pairs.
fn per_pair(run: impl Fn(usize, &[&str]) -> Result<(), String>) -> Result<f64, String> {
    let dir = TempDir::new();
    let mut counts = [0.0; 2];
    for (count, pairs) in counts.iter_mut().zip(PAIRS) {
        let file = dir.path().join(pairs.to_string());
        let out = format!("--callgrind-out-file={}", file.display());
        run(pairs, &["valgrind", "--tool=callgrind", &out])?;
        *count = total(&file)?;
    }
    Ok((counts[1] - counts[0]) / (PAIRS[1] - PAIRS[0]) as f64)
}

/// The number of instructions in a file of callgrind.
fn total(file: &Path) -> Result<f64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let totals = totals.and_then(|totals| totals.trim().parse().ok());
    totals.ok_or_else(|| "callgrind wrote no total".into())
}

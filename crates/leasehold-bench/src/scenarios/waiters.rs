//! An increasing number of waiters for one name: the cost of a hand-over, and the longest wait.

use std::time::Duration;

use super::contest::{Clients, Contest, Start, contend};
use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Leasehold, Lock};
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "9/waiters";
const PLACEMENT: Placement = Placement::OwnCores;
/// The last is smaller in a quick run: connecting takes longest.
const SIZES: [usize; 4] = [10, 100, 1000, 10_000];
const MOST_QUICK: usize = 2000;
/// Above this number, rslock's attempts every 2 ms are more than a server can answer.
const MOST_OF_RSLOCK: usize = 1000;
const MOST_OF_RSLOCK_QUICK: usize = 100;
/// A turn is long enough for every waiter to hold the lock once if a hand-over takes this long.
const HANDOVER: Duration = Duration::from_micros(400);
/// Open files that are not for connections.
const OTHER_FILES: usize = 150;

pub(crate) const HANDOVERS: &str = "hand-overs/s";
pub(crate) const COST: &str = "µs per hand-over";
pub(crate) const LONGEST: &str = "longest wait, ms";
const MEAN: &str = "mean wait, ms";

/// Runs the scenario on one server.
pub(super) fn run(plan: &Plan, server: &Servers) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    server.place(PLACEMENT)?;
    let urls = server.urls();
    let mut sheet = Sheet::new(
        ID,
        "one node, waiters of one client each, no hold",
        "waiters",
    );
    let bearable = most_clients(&urls)?;
    let (most, most_of_rslock) = match plan.quick {
        true => (bearable.min(MOST_QUICK), MOST_OF_RSLOCK_QUICK),
        false => (bearable, MOST_OF_RSLOCK),
    };
    for size in SIZES {
        sheet.add(size.min(most), Kind::Leasehold);
        if size <= most_of_rslock {
            sheet.add(size, Kind::Rslock2Ms);
        }
    }
    if bearable < SIZES[SIZES.len() - 1] {
        sheet.notes.push(format!(
            "at most {bearable} waiters: each has separate connections, and the limit of open files is reached"
        ));
    }
    if plan.quick {
        let note = format!("at most {MOST_QUICK} waiters, since this is a quick run");
        sheet.notes.push(note);
    }
    sheet.take_turns(plan.crowd_rounds, |waiters, kind, round| {
        let contest = Contest {
            name: format!("9/{}/{waiters}/{round}", kind.prefix()),
            contenders: waiters,
            clients: Clients::OneEach,
            start: Start::LinedUp,
            hold: Duration::ZERO,
            length: plan.contest.max(HANDOVER * waiters as u32),
        };
        on_pinned_thread(PLACEMENT, || turn(kind, &urls, contest))
    });
    Ok(sheet)
}

fn turn(kind: Kind, urls: &[String], contest: Contest) -> Result<Figures, String> {
    let runtime = one_thread_runtime()?;
    let tally = runtime.block_on(contend(kind, urls, contest));
    runtime.shutdown_background();
    let tally = tally?;
    if tally.handovers == 0 {
        return Err("hangs: not a single hand-over".into());
    }
    Ok(vec![
        (HANDOVERS, tally.handovers_per_s()),
        (COST, 1e6 / tally.handovers_per_s()),
        (LONGEST, tally.longest_wait.as_secs_f64() * 1e3),
        (MEAN, tally.mean_wait.as_secs_f64() * 1e3),
    ])
}

/// How many clients of leasehold can wait at once, if the server may open as many files as this
/// process.
fn most_clients(urls: &[String]) -> Result<usize, String> {
    let limits = std::fs::read_to_string("/proc/self/limits").map_err(|e| e.to_string())?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let limit = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let limit: usize = limit.ok_or("the limit of open files is not known")?;
    let runtime = one_thread_runtime()?;
    let each = runtime.block_on(files_of_a_waiter(urls));
    runtime.shutdown_background();
    Ok(limit.saturating_sub(OTHER_FILES) / each?)
}

/// The number of files that a waiting client has open.
async fn files_of_a_waiter(urls: &[String]) -> Result<usize, String> {
    let holder = Leasehold::connect(urls).await?;
    let _held = holder.acquire("9/files").await?;
    let before = open_files()?;
    let waiter = Leasehold::connect(urls).await?;
    let waits = waiter.acquire("9/files");
    match tokio::time::timeout(Duration::from_millis(300), waits).await {
        Ok(_) => Err("two held the lock at once".into()),
        Err(_) => Ok(open_files()?.saturating_sub(before).max(1)),
    }
}

fn open_files() -> Result<usize, String> {
    let files = std::fs::read_dir("/proc/self/fd").map_err(|error| error.to_string())?;
    Ok(files.count())
}

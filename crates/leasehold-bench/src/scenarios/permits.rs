//! A semaphore with more contenders than permits: how much of the time its permits are used.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Leasehold};
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "14/permits";
const PLACEMENT: Placement = Placement::OwnCores;
const PERMITS: u32 = 10;
/// Each contender is a separate client, as if it were a process.
const CONTENDERS: usize = 30;
/// How long each holds its permit.
const HOLD: Duration = Duration::from_millis(20);

pub(crate) const BUSY: &str = "permits busy, %";

/// Runs the scenario on these sets of servers.
pub(super) fn run(plan: &Plan, sets: &[&Servers]) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    let mut sheet = Sheet::new(ID, "10 permits, 30 clients, 20 ms each", "nodes");
    for servers in sets {
        servers.place(PLACEMENT)?;
        sheet.add(servers.count(), Kind::Leasehold);
    }
    sheet.take_turns(plan.contest_rounds, |nodes, _, round| {
        let servers = sets.iter().find(|servers| servers.count() == nodes);
        let servers = servers.ok_or("there are no such servers")?;
        on_pinned_thread(PLACEMENT, || {
            let runtime = one_thread_runtime()?;
            let figures = runtime.block_on(turn(&servers.urls(), round, plan.contest));
            runtime.shutdown_background();
            figures
        })
    });
    Ok(sheet)
}

/// What one contender did.
struct Done {
    held: Duration,
    count: u32,
    longest_wait: Duration,
}

async fn turn(urls: &[String], round: usize, length: Duration) -> Result<Figures, String> {
    let name = format!("14/permits/{round:04}");
    let clients = try_join_all((0..CONTENDERS).map(|_| Leasehold::connect(urls))).await?;
    let (mut contenders, start) = (JoinSet::new(), Instant::now());
    for client in clients {
        let semaphore = client.client().semaphore(&name, PERMITS);
        contenders.spawn(async move {
            let mut done = Done {
                held: Duration::ZERO,
                count: 0,
                longest_wait: Duration::ZERO,
            };
            while start.elapsed() < length {
                let asked = Instant::now();
                let permit = semaphore
                    .acquire()
                    .await
                    .map_err(|error| error.to_string())?;
                let acquired = Instant::now();
                tokio::time::sleep(HOLD).await;
                // Only what is within the time.
                let end = start + length;
                done.held += end.min(Instant::now()).saturating_duration_since(acquired);
                done.longest_wait = done.longest_wait.max(acquired - asked);
                done.count += 1;
                permit.release().await;
            }
            Ok::<_, String>(done)
        });
    }
    let done: Vec<Done> = contenders
        .join_all()
        .await
        .into_iter()
        .collect::<Result<_, _>>()?;
    let held: Duration = done.iter().map(|done| done.held).sum();
    let count: u32 = done.iter().map(|done| done.count).sum();
    let longest = done.iter().map(|done| done.longest_wait).max();
    let seconds = length.as_secs_f64();
    Ok(vec![
        (
            BUSY,
            held.as_secs_f64() * 100.0 / (seconds * f64::from(PERMITS)),
        ),
        ("permits/s", f64::from(count) / seconds),
        (
            "longest wait, ms",
            longest.unwrap_or_default().as_secs_f64() * 1e3,
        ),
    ])
}

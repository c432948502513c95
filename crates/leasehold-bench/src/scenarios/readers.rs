//! Readers beside a mutex: the processor time that the server needs for a pair.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease};

use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Leasehold};
use crate::cpu::CpuClock;
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "14/readers";
const PLACEMENT: Placement = Placement::OwnCores;

pub(crate) const RATIO: &str = "read / mutex, server";

/// Runs the scenario on one server.
pub(super) fn run(plan: &Plan, server: &Servers) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    server.place(PLACEMENT)?;
    let mut sheet = Sheet::new(ID, "one node, one reader at a time", "tasks");
    sheet.add(1, Kind::Leasehold);
    sheet.take_turns(plan.rounds, |_, _, _| {
        on_pinned_thread(PLACEMENT, || {
            let runtime = one_thread_runtime()?;
            let figures = runtime.block_on(turn(server, plan));
            runtime.shutdown_background();
            figures
        })
    });
    Ok(sheet)
}

async fn turn(server: &Servers, plan: &Plan) -> Result<Figures, String> {
    let contender = Leasehold::connect(&server.urls()).await?;
    let (client, pids) = (contender.client(), server.pids()?);
    let mutex = async |client: &Client| client.mutex("14/mutex").lock().await;
    let read = async |client: &Client| client.rw_lock("14/read").read().await;
    pairs(client, &pids, plan.warm_up, mutex).await?;
    pairs(client, &pids, plan.warm_up, read).await?;
    let mutex = pairs(client, &pids, plan.turn, mutex).await?;
    let read = pairs(client, &pids, plan.turn, read).await?;
    Ok(vec![
        ("mutex, server µs per pair", mutex),
        ("read, server µs per pair", read),
        (RATIO, read / mutex),
    ])
}

/// Acquires and releases again and again. Returns the server's processor time for each, in µs.
async fn pairs(
    client: &Client,
    pids: &[u32],
    length: Duration,
    acquire: impl AsyncFn(&Client) -> Result<Lease, Error>,
) -> Result<f64, String> {
    let (cpu, start, mut count) = (CpuClock::start(pids)?, Instant::now(), 0_u32);
    while start.elapsed() < length {
        let lease = acquire(client).await.map_err(|error| error.to_string())?;
        lease.release().await;
        count += 1;
    }
    Ok(cpu.elapsed()?.as_secs_f64() * 1e6 / f64::from(count.max(1)))
}

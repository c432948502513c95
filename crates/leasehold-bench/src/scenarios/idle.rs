//! Waiting for a lock that is not released: the cost of idle waiters.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Lock, with_lock};
use crate::cpu::CpuClock;
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "12/idle";
const PLACEMENT: Placement = Placement::OwnCores;
/// Each waiter is a separate client, as if it were a process.
const WAITERS: usize = 100;
/// From the last request until the measurement starts.
const SETTLE: Duration = Duration::from_millis(800);

pub(crate) const CLIENT: &str = "client, % of a core per waiter";
const SERVERS: &str = "servers, % of a core per waiter";
pub(crate) const REQUESTS: &str = "requests per waiter, second and node";

/// Runs the scenario on these sets of servers.
pub(super) fn run(plan: &Plan, sets: &[&Servers]) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    let mut sheet = Sheet::new(ID, "100 waiters, one client each, no release", "nodes");
    for servers in sets {
        servers.place(PLACEMENT)?;
        sheet.add(servers.count(), Kind::Leasehold);
        if !plan.quick {
            sheet.add(servers.count(), Kind::Rslock);
        }
    }
    sheet.take_turns(plan.crowd_rounds, |nodes, kind, round| {
        let servers = sets.iter().find(|servers| servers.count() == nodes);
        let servers = servers.ok_or("there are no such servers")?;
        on_pinned_thread(PLACEMENT, || {
            let runtime = one_thread_runtime()?;
            let figures = runtime.block_on(turn(kind, servers, round, plan.watch));
            runtime.shutdown_background();
            figures
        })
    });
    Ok(sheet)
}

/// The resources used without any hand-over.
struct Use {
    client: f64,
    servers: f64,
    requests: f64,
}

async fn turn(
    kind: Kind,
    servers: &Servers,
    round: usize,
    watch: Duration,
) -> Result<Figures, String> {
    let name = format!("12/{}/{round:04}", kind.prefix());
    let (urls, mut waiting) = (servers.urls(), JoinSet::new());
    let holder = kind.connect(&urls).await?;
    with_lock!(&holder, lock => {
        let waiters = try_join_all((0..WAITERS).map(|_| kind.connect(&urls))).await?;
        let _held = lock.acquire(&name).await?;
        // What the clients and the holder's renewal use in any case.
        let before = look(servers, watch).await?;
        for waiter in waiters {
            let name = name.clone();
            with_lock!(waiter, lock => waiting.spawn(async move {
                lock.acquire(&name).await.map(|_held| ())
            }));
        }
        tokio::time::sleep(SETTLE).await;
        let after = look(servers, watch).await?;
        match waiting.try_join_next() {
            None => Ok(figures(&before, &after, servers.count())),
            Some(Ok(Err(why))) => Err(why),
            Some(_) => Err("a waiter acquired the lock".into()),
        }
    })
}

fn figures(before: &Use, after: &Use, nodes: usize) -> Figures {
    let more = |field: fn(&Use) -> f64| (field(after) - field(before)).max(0.0) / WAITERS as f64;
    vec![
        (CLIENT, more(|of| of.client) * 100.0),
        (SERVERS, more(|of| of.servers) * 100.0),
        (REQUESTS, more(|of| of.requests) / nodes as f64),
    ]
}

/// The resources used per second.
async fn look(servers: &Servers, watch: Duration) -> Result<Use, String> {
    let (pids, counts) = (servers.pids()?, servers.counts());
    let (client, server) = (CpuClock::of_this_process()?, CpuClock::start(&pids)?);
    let start = Instant::now();
    tokio::time::sleep(watch).await;
    let (client, server) = (client.elapsed()?, server.elapsed()?);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Use {
        client: client.as_secs_f64() / seconds,
        servers: server.as_secs_f64() / seconds,
        requests: servers.requests_since(&counts) as f64 / seconds,
    })
}

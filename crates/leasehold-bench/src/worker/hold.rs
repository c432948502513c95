//! Holds many leases of one client, and counts their renewals.

use std::time::{Duration, Instant};

use leasehold::{Lease, Moment};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{number, ready};
use crate::TTL;
use crate::contenders::{Leasehold, Lock};
use crate::cpu::{CpuClock, resident_bytes};
use crate::pin::Placement;

/// The number of tasks that acquire the leases.
const TASKS: usize = 500;
/// Each task acquires this many locks before, until buffers have grown to their final size.
const WARM_UP: usize = 20;
/// How often to check whether a lease was renewed: less than a period.
const LOOK_EVERY: Duration = Duration::from_millis(1000);

pub(super) fn work(url: &str, leases: &str, periods: &str) -> Result<Value, String> {
    let (leases, periods) = (number(leases)?, number::<u32>(periods)?);
    Placement::OwnCores.pin_client()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let done = runtime.block_on(hold(url, leases, TTL / 3 * periods));
    // The leases are not released one by one: they end with this process.
    runtime.shutdown_background();
    done
}

async fn hold(url: &str, count: usize, watch: Duration) -> Result<Value, String> {
    let client = Leasehold::connect(&[url.to_owned()]).await?;
    warm_up(&client).await?;
    let (before, start) = (resident_bytes()?, Instant::now());
    let leases = take(&client, count).await?;
    let took = start.elapsed();
    let bytes = resident_bytes()?.saturating_sub(before);
    let each = bytes as f64 / leases.len() as f64;
    ready(&json!({ "bytes_each": each, "took_s": took.as_secs_f64() })).await?;

    let (cpu, start) = (CpuClock::of_this_process()?, Instant::now());
    let renewals = count_renewals(&leases, watch).await;
    let (used, seconds) = (cpu.elapsed()?, start.elapsed().as_secs_f64());
    let lost = leases.iter().filter(|lease| !lease.is_valid()).count();
    // Releasing a hundred thousand leases is not measured.
    std::mem::forget(leases);
    Ok(json!({
        "renewals": renewals,
        "seconds": seconds,
        "cores": used.as_secs_f64() / seconds,
        "lost": lost,
    }))
}

async fn warm_up(client: &Leasehold) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let name = format!("11/{}/warm/{task}", std::process::id());
            for _ in 0..WARM_UP {
                let lease = client.acquire(&name).await?;
                client.release(&name, lease).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.map_err(|error| error.to_string())??;
    }
    Ok(())
}

async fn take(client: &Leasehold, count: usize) -> Result<Vec<Lease>, String> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let mine = (task..count).step_by(TASKS);
            let mut leases = Vec::with_capacity(mine.len());
            for number in mine {
                let name = format!("11/{}/{number:06}", std::process::id());
                leases.push(client.acquire(&name).await?);
            }
            Ok::<_, String>(leases)
        });
    }
    let mut leases = Vec::with_capacity(count);
    while let Some(task) = tasks.join_next().await {
        leases.extend(task.map_err(|error| error.to_string())??);
    }
    Ok(leases)
}

/// A renewed lease has a new deadline.
async fn count_renewals(leases: &[Lease], watch: Duration) -> u64 {
    let (start, mut renewals) = (Instant::now(), 0);
    let mut deadlines: Vec<Moment> = leases.iter().map(Lease::deadline).collect();
    while start.elapsed() < watch {
        let left = watch.saturating_sub(start.elapsed());
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
        for (lease, before) in leases.iter().zip(&mut deadlines) {
            let now = lease.deadline();
            renewals += u64::from(now != *before);
            *before = now;
        }
    }
    renewals
}

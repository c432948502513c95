//! Tasks that acquire and release locks without contention.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::contenders::{Contender, Kind, Lock, with_lock};

/// How much longer than its turn a contender may take before it counts as hanging: longer than
/// the TTL of a lock that was left behind.
const GRACE: Duration = Duration::from_secs(15);

/// The result of a turn.
pub(crate) struct Pairs {
    pub(crate) count: u64,
    pub(crate) per_s: f64,
    /// The latency of each acquire, if there was only one task.
    pub(crate) latencies: Vec<Duration>,
}

/// Lets each task acquire and release its own lock, again and again, for `length`.
///
/// # Errors
///
/// If a lock fails, or if the turn takes far longer than it should.
pub(super) async fn pairs(
    contender: &Contender,
    kind: Kind,
    tasks: usize,
    length: Duration,
) -> Result<Pairs, String> {
    let turn = async {
        with_lock!(contender, lock => match tasks {
            1 => one_task(lock, kind, length).await,
            _ => many_tasks(lock, kind, tasks, length).await,
        })
    };
    let limit = length + GRACE;
    let turn = tokio::time::timeout(limit, turn).await;
    turn.map_err(|_| format!("hangs: a turn of {length:?} took over {limit:?}"))?
}

fn name(kind: Kind, task: usize) -> String {
    format!("{}/{task:04}", kind.prefix())
}

async fn one_task<L: Lock>(lock: &L, kind: Kind, length: Duration) -> Result<Pairs, String> {
    let (lock, name) = (lock.clone(), name(kind, 0));
    let start = Instant::now();
    // On a separate task, as everywhere else.
    let latencies = tokio::spawn(async move {
        let (mut latencies, mut asked) = (Vec::new(), Instant::now());
        while asked - start < length {
            let held = lock.acquire(&name).await?;
            latencies.push(asked.elapsed());
            lock.release(&name, held).await?;
            asked = Instant::now();
        }
        Ok::<_, String>(latencies)
    });
    let latencies = latencies.await.map_err(|error| error.to_string())??;
    let count = latencies.len() as u64;
    let per_s = count as f64 / start.elapsed().as_secs_f64();
    Ok(Pairs {
        count,
        per_s,
        latencies,
    })
}

async fn many_tasks<L: Lock>(
    lock: &L,
    kind: Kind,
    tasks: usize,
    length: Duration,
) -> Result<Pairs, String> {
    let start = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (lock, name) = (lock.clone(), name(kind, task));
        running.spawn(async move {
            let mut pairs = 0_u64;
            while start.elapsed() < length {
                let held = lock.acquire(&name).await?;
                lock.release(&name, held).await?;
                pairs += 1;
            }
            Ok::<_, String>(pairs)
        });
    }
    let mut count = 0;
    while let Some(task) = running.join_next().await {
        count += task.map_err(|error| error.to_string())??;
    }
    Ok(Pairs {
        count,
        per_s: count as f64 / start.elapsed().as_secs_f64(),
        latencies: Vec::new(),
    })
}

//! How fast a deployment is, measured with real locks.

use std::time::Duration;

use tokio::task::JoinSet;

use super::judge::percentile;
use crate::base::error::Error;
use crate::base::name::Name;
use crate::client::Client;
use crate::node::NodeError;

/// How many round trips to a node are timed.
pub(crate) const ROUND_TRIPS: usize = 200;
/// How many tasks acquire locks at the same time, when the throughput is measured.
const CALLERS: usize = 16;

/// What [`Builder::measure`](crate::Builder::measure) measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measurement {
    /// One task that acquires and releases a lock, again and again.
    pub alone: Pace,
    /// Several tasks, each with a lock of its own.
    pub together: Pace,
    /// The round trips to each node.
    pub nodes: Vec<(String, Result<Spread, NodeError>)>,
}

/// How fast locks were acquired and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// How many tasks did so at the same time.
    pub callers: usize,
    /// How many pairs of acquire and release were completed.
    pub pairs: usize,
    /// The time that all of them took together.
    pub elapsed: Duration,
    /// How long an acquire took.
    pub acquire: Spread,
}

impl Pace {
    /// Returns the pairs of acquire and release per second.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use std::time::Duration;
    /// let builder = leasehold::Client::builder().node("redis://10.0.0.1");
    /// let measured = builder.measure(Duration::from_secs(10)).await?;
    /// println!("{:.0} locks per second", measured.together.pairs_per_second());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn pairs_per_second(&self) -> f64 {
        self.pairs as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// How measured times are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spread {
    /// Half of them were shorter.
    pub p50: Duration,
    /// 99 of 100 were shorter.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Spread {
    pub(crate) fn of(mut taken: Vec<Duration>) -> Self {
        taken.sort_unstable();
        Self {
            p50: percentile(&taken, 50).unwrap_or_default(),
            p99: percentile(&taken, 99).unwrap_or_default(),
            max: taken.last().copied().unwrap_or_default(),
        }
    }
}

/// The names that are used, which nobody else uses.
pub(crate) fn names() -> Vec<String> {
    let random = fastrand::u64(..);
    let name = |number| format!("leasehold-doctor/{random:016x}/{number}");
    (0..CALLERS).map(name).collect()
}

/// The keys of names, with the client's prefix.
pub(crate) fn keys(client: &Client, names: &[String]) -> Vec<Name> {
    let keys = names.iter().map(|name| client.key_of(name.as_bytes()));
    keys.flatten().collect()
}

/// Acquires and releases locks for this long: half of it alone, half of it together.
pub(crate) async fn paces(
    client: &Client,
    names: &[String],
    duration: Duration,
) -> Result<(Pace, Pace), Error> {
    // The first acquire connects, which is not what is measured.
    acquire_and_release(client, &names[0]).await?;
    let alone = pace(client, &names[..1], duration / 2).await?;
    let together = pace(client, names, duration / 2).await?;
    Ok((alone, together))
}

async fn pace(client: &Client, names: &[String], duration: Duration) -> Result<Pace, Error> {
    let clock = client.core().clock.clone();
    let start = clock.now();
    let mut callers = JoinSet::new();
    for name in names {
        let (client, name, clock) = (client.clone(), name.clone(), clock.clone());
        callers.spawn(async move {
            let mut taken = Vec::new();
            while taken.is_empty() || clock.now() < start + duration {
                taken.push(acquire_and_release(&client, &name).await?);
            }
            Ok::<_, Error>(taken)
        });
    }
    let mut taken = Vec::new();
    while let Some(caller) = callers.join_next().await {
        taken.extend(caller.map_err(|_| Error::RuntimeEnded)??);
    }
    Ok(Pace {
        callers: names.len(),
        pairs: taken.len(),
        elapsed: clock.now().saturating_duration_since(start),
        acquire: Spread::of(taken),
    })
}

/// Returns how long the acquire took.
async fn acquire_and_release(client: &Client, name: &str) -> Result<Duration, Error> {
    let clock = &client.core().clock;
    let start = clock.now();
    let lease = client.mutex(name).lock().await?;
    let took = clock.now().saturating_duration_since(start);
    lease.release().await;
    Ok(took)
}

//! One of several processes that contend for a lock of an embedded store.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{number, ready};
use crate::contenders::{Leasehold, Lock};

/// One period for which the lock was held. Times are microseconds of the machine's clock, which
/// all processes share.
#[derive(Clone, Copy)]
pub(crate) struct Visit {
    pub(crate) token: u64,
    pub(crate) entered_us: u64,
    pub(crate) left_us: u64,
    pub(crate) waited_us: u64,
}

impl Visit {
    fn to_json(self) -> Value {
        json!([self.token, self.entered_us, self.left_us, self.waited_us])
    }

    /// Parses the output of a worker.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        Some(Self {
            token: value[0].as_u64()?,
            entered_us: value[1].as_u64()?,
            left_us: value[2].as_u64()?,
            waited_us: value[3].as_u64()?,
        })
    }
}

pub(super) fn work(url: &str, name: &str, hold_ms: &str, length_ms: &str) -> Result<Value, String> {
    let ms = |text: &str| Ok::<_, String>(Duration::from_millis(number(text)?));
    let (hold, length) = (ms(hold_ms)?, ms(length_ms)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(contend(url, name, hold, length))
}

async fn contend(url: &str, name: &str, hold: Duration, length: Duration) -> Result<Value, String> {
    let client = Leasehold::connect(&[url.to_owned()]).await?;
    let own = format!("{name}/{}", std::process::id());
    let lease = client.acquire(&own).await?;
    client.release(&own, lease).await?;
    ready(&json!({})).await?;
    let (start, mut visits, mut unfinished) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < length {
        let asked = Instant::now();
        let left = length.saturating_sub(start.elapsed());
        let Ok(lease) = tokio::time::timeout(left, client.acquire(name)).await else {
            unfinished = asked.elapsed().as_micros();
            break;
        };
        let lease = lease?;
        let (waited, entered_us) = (asked.elapsed(), now_us());
        // This process has nothing else to do meanwhile.
        std::thread::sleep(hold);
        visits.push(Visit {
            token: lease.token(),
            entered_us,
            left_us: now_us(),
            waited_us: waited.as_micros() as u64,
        });
        client.release(name, lease).await?;
    }
    let visits: Vec<Value> = visits.into_iter().map(Visit::to_json).collect();
    Ok(json!({ "visits": visits, "unfinished_us": unfinished as u64 }))
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

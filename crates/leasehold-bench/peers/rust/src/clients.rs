//! The two crates behind one interface.

use std::time::Duration;

use redis_lock::sync::MultiResourceLock;
use redlock::RedLock;

use crate::Order;

/// Takes and gives back locks by name.
pub trait Lock {
    type Held;

    /// `None` if it gave up.
    fn acquire(&mut self, name: &str) -> Result<Option<Self::Held>, String>;
    fn release(&mut self, held: Self::Held) -> Result<(), String>;
}

/// One contender.
pub enum Client {
    Redlock {
        locks: RedLock,
        ttl: Duration,
    },
    RedisLock {
        lock: MultiResourceLock,
        ttl: Duration,
        sleep: Duration,
    },
}

/// What proves that a lock is held.
pub struct Held {
    name: String,
    value: Vec<u8>,
}

impl Client {
    pub fn connect(order: &Order) -> Result<Self, String> {
        let ttl = order.ttl;
        match (&*order.client, &order.urls[..]) {
            ("redlock", urls) => {
                let mut locks = RedLock::new(urls.to_vec());
                // A user who sets nothing gets up to 200 ms between attempts. Of 1, 2, 5 and
                // 10 ms, 5 hands over most often, or as often as 10.
                if order.best {
                    locks.set_retry(1000, 5);
                }
                Ok(Self::Redlock { locks, ttl })
            }
            ("redis-lock", [url]) => {
                let client = redis::Client::open(&**url).map_err(|e| e.to_string())?;
                redis_lock::sync::setup(&client).map_err(|e| e.to_string())?;
                let lock = MultiResourceLock::new(&client).map_err(|e| e.to_string())?;
                let sleep = match order.best {
                    true => Duration::from_millis(1),
                    false => redis_lock::DEFAULT_SLEEP,
                };
                Ok(Self::RedisLock { lock, ttl, sleep })
            }
            (other, urls) => Err(format!("no client {other} for {} nodes", urls.len())),
        }
    }
}

impl Lock for Client {
    type Held = Held;

    fn acquire(&mut self, name: &str) -> Result<Option<Held>, String> {
        let value = match self {
            Self::Redlock { locks, ttl } => locks
                .lock(name.as_bytes(), ttl.as_millis() as usize)
                .map(|lock| lock.map(|lock| lock.val.clone())),
            Self::RedisLock { lock, ttl, sleep } => {
                return lock
                    .acquire(
                        &[name.to_owned()],
                        *ttl,
                        redis_lock::DEFAULT_TIMEOUT,
                        *sleep,
                    )
                    .map(|id| id.map(|id| held(name, id.into_bytes())))
                    .map_err(|error| error.to_string());
            }
        };
        let value = value.map_err(|error| error.to_string())?;
        Ok(value.map(|value| held(name, value)))
    }

    fn release(&mut self, held: Held) -> Result<(), String> {
        match self {
            Self::Redlock { locks, ttl } => {
                locks.unlock(&redlock::Lock {
                    resource: held.name.into_bytes(),
                    val: held.value,
                    validity_time: ttl.as_millis() as usize,
                    lock_manager: locks,
                });
                Ok(())
            }
            Self::RedisLock { lock, .. } => {
                let id = String::from_utf8(held.value).map_err(|error| error.to_string())?;
                lock.release(&id).map_err(|error| error.to_string())?;
                Ok(())
            }
        }
    }
}

fn held(name: &str, value: Vec<u8>) -> Held {
    let name = name.to_owned();
    Held { name, value }
}

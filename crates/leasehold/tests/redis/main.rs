//! leasehold against real Redis servers that are killed, stopped, flushed, full, or not what they
//! claim to be.

mod child;
mod errors;
mod failover;
mod hostile;
mod line;
mod native;
mod others;
mod outages;
mod proxy;
mod replicas;
mod restarts;
mod runtimes;
mod sentinels;
mod sets;
mod wire;

use leasehold_testkit::{FrozenClock, RedisServer, unix_us};

/// A new server whose clock stands still, and a later time for that clock. The tokens of a new
/// server are ahead of its clock at first, and no longer at that time.
fn frozen() -> (RedisServer, FrozenClock, u64) {
    let now_us = unix_us();
    let (server, clock) = RedisServer::start_frozen(now_us, &[]);
    (server, clock, now_us + 15_000_000)
}

//! Without faults, leases can be acquired, and a lease that has ended goes to a waiter.

use std::sync::Arc;
use std::time::Duration;

use leasehold::node::{DEAD_AFTER, HANDED_OVER};

use crate::agenda::{MILLI, Nanos};
use crate::plan::Plan;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "progress";

/// How often a waiter with fewer than 100 others ahead of it sends WAIT, whatever notifications it
/// gets: `HEARTBEAT` of the library's `acquire/place.rs`, which is private.
const HEARTBEAT: Duration = Duration::from_millis(1_100);
const SLACK: Duration = Duration::from_secs(1);
const EVERY: Nanos = 200 * MILLI;

/// How long a lock may be free while a waiter stands in line: until the node has dropped the dead
/// waiters ahead of it, the grant that was handed over to the last of them has expired, and the
/// waiter sends WAIT by itself, plus some round trips. It does not depend on the TTL.
pub fn longest_hand_over(plan: &Plan) -> Nanos {
    let waits = (DEAD_AFTER + HANDED_OVER + HEARTBEAT + SLACK).as_nanos() as Nanos;
    plan.by_slow_clocks(waits + 24 * plan.longest_round_trip())
}

/// Checks periodically, as long as callers wait.
pub fn watch(world: &Arc<World>) {
    world.agenda.enter(world.agenda.now() + EVERY, |world| {
        if let Err(what) = no_lost_hand_over(world) {
            world.violate(PROMISE, what);
        }
        if world.is_calm() && world.is_busy() {
            watch(world);
        }
    });
}

/// # Errors
///
/// A name that has been free for too long though callers wait for it.
fn no_lost_hand_over(world: &World) -> Result<(), String> {
    let now = world.agenda.now();
    let limit = longest_hand_over(&world.plan);
    for name in 0..world.names.len() {
        let is_taken = match world.semaphores.of_line(name) {
            Some(semaphore) => semaphore
                .permits()
                .all(|permit| is_permit_taken(world, permit)),
            None => is_taken(world, name),
        };
        let idle = world.is_well() && !is_taken && world.waiters().wait_for(name);
        let waiters = &mut *world.waiters();
        if !idle {
            waiters.idle_since.remove(&name);
            continue;
        }
        let since = *waiters.idle_since.entry(name).or_insert(now);
        if now - since > limit {
            let span = Duration::from_nanos(now - since);
            return Err(format!(
                "name-{name} is free, and there are no faults, but no waiter has acquired it \
                 for {span:.1?}"
            ));
        }
    }
    Ok(())
}

/// Whether a caller holds the permit, or so many nodes have a lock there that it cannot be acquired. A
/// call for several permits holds some of them while it waits for the others.
fn is_permit_taken(world: &World, permit: usize) -> bool {
    if world.journal().ledger.is_held(permit) {
        return true;
    }
    let (now, nodes) = (world.agenda.now(), world.plan.nodes);
    let key = &world.names[permit];
    let servers = world.servers.iter();
    let free = servers.filter(|server| server.holders(key, now).is_empty());
    free.count() < nodes / 2 + 1
}

/// Whether a caller holds the lease, or may hold it while it waits for another name, or so many nodes keep
/// the lock of a dead process or for
/// `min_hold` that it cannot be acquired.
fn is_taken(world: &World, name: usize) -> bool {
    if world.journal().ledger.is_held(name) || world.waiters().may_be_held(name) {
        return true;
    }
    let (now, nodes) = (world.agenda.now(), world.plan.nodes);
    let kept = world.servers.iter().filter(|server| {
        let mut holders = server.holders(&world.names[name], now).into_iter();
        holders.any(|holder| holder.kept || !world.is_alive(holder.label.as_deref()))
    });
    nodes - kept.count() < nodes / 2 + 1
}

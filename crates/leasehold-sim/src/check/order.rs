//! No waiter in line is overtaken.

use crate::waiters::Waiter;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "order";

/// Without faults, a waiter that stands in line on all nodes is not overtaken: no claim with a
/// token above its ticket that sends its ACQUIRE later acquires the lock while the waiter still
/// stands there. (A waiter loses its place on a node that dropped it as silent, forgot it, or saw
/// its ticket overtaken before.)
///
/// # Errors
///
/// The waiter that was overtaken.
pub fn no_waiter_overtaken(world: &World, token: u64, before: &[Waiter]) -> Result<(), String> {
    let overtaken = before
        .iter()
        .find(|waiter| waiter.process.is_running() && stands_everywhere(world, waiter));
    match overtaken {
        None => Ok(()),
        Some(waiter) => Err(format!(
            "token {token} was granted while {} stood in line on all nodes with ticket {}",
            waiter.process.label(),
            waiter.ticket
        )),
    }
}

/// How often a waiter for a permit may be overtaken once it has stood in line on all nodes. A node
/// drops it if it cannot notify it, or has not heard of it for long.
const OVERTAKEN: u32 = 1;

/// Without faults, a waiter for a permit that has stood in line on all nodes is not overtaken often,
/// even if it does not stand on all of them any more.
///
/// # Errors
///
/// The waiter that was overtaken.
pub fn not_overtaken_often(waiter: &Waiter) -> Result<(), String> {
    match waiter.ticket_holder.overtaken {
        ..=OVERTAKEN => Ok(()),
        often => Err(format!(
            "{} with ticket {} was overtaken {often} times",
            waiter.process.label(),
            waiter.ticket
        )),
    }
}

/// Whether the claim stands in line on all nodes now.
pub fn stands_everywhere(world: &World, waiter: &Waiter) -> bool {
    let name = &world.names[waiter.name];
    let mut servers = world.servers.iter();
    servers.all(|server| server.stands(name, &waiter.owner))
}

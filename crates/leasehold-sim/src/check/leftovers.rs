//! At the end, nothing is left on any node, neither a lock nor a line, and no task in any
//! process.

use std::sync::Arc;

use crate::process::Process;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "nothing left";

/// Checks that no locks and lines are left on the nodes. Without `all`, it ignores what ends by
/// itself: locks kept for `min_hold`, and what dead processes have left behind.
///
/// # Errors
///
/// What is left.
pub fn nothing_on_nodes(world: &World, all: bool) -> Result<(), String> {
    let now = world.agenda.now();
    for (node, server) in world.servers.iter().enumerate() {
        let mut left = server.leftovers(now);
        left.retain(|(holder, _)| all || !holder.kept && world.is_alive(holder.label.as_deref()));
        if !left.is_empty() {
            let left: Vec<_> = left.into_iter().map(|(_, text)| text).collect();
            return Err(format!("n{node} still has {}", left.join(", ")));
        }
    }
    Ok(())
}

/// Checks that all tasks have ended.
///
/// # Errors
///
/// The process with tasks left.
pub fn no_tasks(processes: &[Arc<Process>]) -> Result<(), String> {
    for process in processes {
        let tasks = process.tasks();
        if tasks > 0 {
            return Err(format!("{} still has {tasks} task(s)", process.label()));
        }
    }
    Ok(())
}

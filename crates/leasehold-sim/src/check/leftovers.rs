//! At the end, nothing is left on any node, and no task in any process.

use std::sync::Arc;

use crate::process::Process;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "nothing left";

/// What is on nodes; with what `min_hold` keeps there, or without.
///
/// # Errors
/// What there is.
pub fn nothing_on_nodes(world: &World, kept_too: bool) -> Result<(), String> {
    let now = world.agenda.now();
    for (node, server) in world.servers.iter().enumerate() {
        let locks = server.locks(now, kept_too);
        if !locks.is_empty() {
            return Err(format!("n{node} still has {}", locks.join(", ")));
        }
    }
    Ok(())
}

/// Tasks that have not ended.
///
/// # Errors
/// Where there are some.
pub fn no_tasks(processes: &[Arc<Process>]) -> Result<(), String> {
    for process in processes {
        let tasks = process.tasks();
        if tasks > 0 {
            return Err(format!("{} still has {tasks} task(s)", process.label()));
        }
    }
    Ok(())
}

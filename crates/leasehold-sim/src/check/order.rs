//! Nobody who stands in line is overtaken.

use crate::waiters::Stander;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "order";

/// When all is well, who stands in line on all nodes is not overtaken: nobody whose token is
/// larger than its ticket, and who asks for the lock after that, gets it while the other still
/// stands there. (Who has left a node's line, because the node took it for dead, forgot it or
/// saw its ticket overtaken before, has lost its place there.)
///
/// # Errors
/// Who was overtaken.
pub fn nobody_overtaken(world: &World, token: u64, before: &[Stander]) -> Result<(), String> {
    let overtaken = before
        .iter()
        .find(|stander| stander.process.is_running() && stands_everywhere(world, stander));
    match overtaken {
        None => Ok(()),
        Some(stander) => Err(format!(
            "token {token} was granted while {} stood in line on all nodes with ticket {}",
            stander.process.label(),
            stander.ticket
        )),
    }
}

/// Whether it stands in line on all nodes now.
pub fn stands_everywhere(world: &World, stander: &Stander) -> bool {
    let name = &world.names[stander.name];
    let mut servers = world.servers.iter();
    servers.all(|server| server.stands(name, &stander.owner))
}

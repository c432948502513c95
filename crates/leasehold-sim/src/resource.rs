//! The resources that the leases protect: a register for each name that checks tokens as
//! `docs/guarantees.md` requires.

use std::sync::{Arc, Mutex};

use leasehold::Mode;
use tokio::sync::oneshot;

use crate::agenda::{MILLI, Nanos};
use crate::bug::Bug;
use crate::check::Fact;
use crate::process::{Process, Source};
use crate::sync::locked;
use crate::world::World;

/// A register that keeps the largest token of writers and of readers that it has seen, and refuses
/// a smaller one of the other side. Readers do not refuse each other.
#[derive(Default)]
struct Register {
    written: u64,
    read: u64,
    value: u64,
    updates: u64,
}

impl Register {
    /// Records the token on the first access, reads included.
    fn admit(&mut self, token: u64, mode: Mode) -> bool {
        match mode {
            Mode::Shared if self.written < token => self.read = self.read.max(token),
            Mode::Exclusive if self.written <= token && self.read <= token => self.written = token,
            _ => return false,
        }
        true
    }
}

/// The registers of all names.
#[derive(Default)]
pub struct Resource {
    registers: Mutex<Vec<Register>>,
}

/// An operation on a register.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write(u64),
}

impl Resource {
    /// Creates a register for each of `names` names.
    pub fn new(names: usize) -> Self {
        let registers = (0..names).map(|_| Register::default()).collect();
        Self {
            registers: Mutex::new(registers),
        }
    }

    /// Reads the register of a name over the network. `None` if the token was refused.
    pub async fn read(
        world: &Arc<World>,
        process: &Arc<Process>,
        name: usize,
        claim: (u64, Mode),
    ) -> Option<u64> {
        Self::access(world, process, name, claim, Access::Read).await
    }

    /// Writes the register of a name. `None` if the token was refused.
    pub async fn write(
        world: &Arc<World>,
        process: &Arc<Process>,
        name: usize,
        token: u64,
        value: u64,
    ) -> Option<u64> {
        let claim = (token, Mode::Exclusive);
        Self::access(world, process, name, claim, Access::Write(value)).await
    }

    async fn access(
        world: &Arc<World>,
        process: &Arc<Process>,
        name: usize,
        claim: (u64, Mode),
        access: Access,
    ) -> Option<u64> {
        let (answer, answered) = oneshot::channel();
        let process = Arc::clone(process);
        // Usually quick, sometimes so slow that the lease has long ended when the operation
        // arrives.
        let most = match !world.is_calm() && world.dice.chance(0.05) {
            true => 2 * world.plan.ttl.as_nanos() as Nanos,
            false => 2 * MILLI,
        };
        let there = world.agenda.now() + world.dice.between(MILLI / 10, most);
        world.agenda.enter(there, move |world| {
            let outcome = world.resource.perform(world, name, claim, access);
            let back = there + world.dice.between(MILLI / 10, 2 * MILLI);
            world.agenda.enter(back, move |world| {
                process.post(world, Source::Outside, move |_| {
                    // A caller that is gone does not receive the reply.
                    let _ = answer.send(outcome);
                });
            });
        });
        answered.await.ok().flatten()
    }

    fn perform(
        &self,
        world: &World,
        name: usize,
        (token, mode): (u64, Mode),
        access: Access,
    ) -> Option<u64> {
        let (value, updates) = {
            let register = &mut locked(&self.registers)[name];
            let unchecked = match world.bug {
                Some(Bug::ResourceUnfenced) => true,
                Some(Bug::ResourceIgnoresReads) => matches!(access, Access::Read),
                _ => false,
            };
            if !unchecked && !register.admit(token, mode) {
                return None;
            }
            let Access::Write(value) = access else {
                return Some(register.value);
            };
            register.value = value;
            register.updates += 1;
            (value, register.updates)
        };
        world.check(
            Fact::Wrote {
                name,
                value,
                updates,
            },
            None,
        );
        Some(value)
    }
}

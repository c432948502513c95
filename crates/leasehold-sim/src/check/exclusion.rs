//! At most one holder has a valid lease.

use super::{Check, Fact, Scene};
use crate::ledger::HoldingId;
use crate::plan::Mode;

/// The name of the promise.
pub const PROMISE: &str = "exclusion";

/// Whenever a lease is granted, and at every audit, no other lease of the name may report itself
/// as valid. This includes the lease of a paused process, which could resume at any moment and
/// check it.
pub struct Exclusion;

impl Check for Exclusion {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String> {
        if scene.mode == Mode::Beyond {
            return Ok(());
        }
        match fact {
            Fact::Granted(id) => alone(scene, id),
            Fact::Audit => scene.ledger.believed().try_for_each(|id| alone(scene, id)),
            _ => Ok(()),
        }
    }
}

fn alone(scene: &Scene<'_>, id: HoldingId) -> Result<(), String> {
    let Some(rival) = scene.ledger.rivals(id).find(|rival| rival.is_believed()) else {
        return Ok(());
    };
    let one = scene.ledger.get(id);
    Err(format!(
        "{} has the lease with token {} while {} still believes in its own, with token {}",
        one.process.label(),
        one.token,
        rival.process.label(),
        rival.token
    ))
}

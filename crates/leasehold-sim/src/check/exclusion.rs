//! At most one holder inside validity.

use super::{Check, Fact, Scene};
use crate::plan::Mode;

/// The name of the promise.
pub const PROMISE: &str = "exclusion";

/// Whenever a lease is granted, no other lease of the name may say that it is valid. Not
/// even that of a process which is paused: it could go on at any moment, and look.
pub struct Exclusion;

impl Check for Exclusion {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String> {
        let Fact::Granted(id) = fact else {
            return Ok(());
        };
        if scene.mode == Mode::Beyond {
            return Ok(());
        }
        match scene.ledger.rivals(id).find(|rival| rival.is_believed()) {
            None => Ok(()),
            Some(rival) => {
                let new = scene.ledger.get(id);
                Err(format!(
                    "{} got the lease with token {} while {} still believes in its own, with \
                     token {}",
                    new.process.label(),
                    new.token,
                    rival.process.label(),
                    rival.token
                ))
            }
        }
    }
}

//! `lost()` comes before another may hold.

use super::{Check, Fact, Scene};
use crate::agenda::{MILLI, Nanos};
use crate::plan::Mode;

/// The name of the promise.
pub const PROMISE: &str = "lost() in time";

/// A suspend is noticed within half a second (and a slow clock's half second is longer).
const GRACE: Nanos = 1_000 * MILLI;

/// A holder whose process runs is told that its lease is lost before its deadline, and
/// before another gets the lease.
pub struct Lost;

impl Check for Lost {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Granted(id) if scene.mode == Mode::Within => {
                let untold = scene
                    .ledger
                    .rivals(id)
                    .find(|rival| !rival.told && rival.process.has_run_for(GRACE, scene.now));
                match untold {
                    None => Ok(()),
                    Some(rival) => Err(format!(
                        "{} got the lease before {}, which has been running, was told that its \
                         own (token {}) is lost",
                        scene.ledger.get(id).process.label(),
                        rival.process.label(),
                        rival.token
                    )),
                }
            }
            Fact::Told(id) => {
                let told = scene.ledger.get(id);
                let late = told.deadline().zip(scene.local);
                match late.is_some_and(|(deadline, now)| now >= deadline)
                    && told.process.has_run_for(GRACE, scene.now)
                {
                    false => Ok(()),
                    true => Err(format!(
                        "{} was told that its lease (token {}) is lost after its deadline",
                        told.process.label(),
                        told.token
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}

//! `lost()` resolves before another client can acquire the lock.

use super::{Check, Fact, Scene};
use crate::agenda::{MILLI, Nanos};
use crate::plan::Mode;

/// The name of the promise.
pub const PROMISE: &str = "lost() in time";

/// A suspend is noticed within half a second (and a slow clock's half second is longer).
const GRACE: Nanos = 1_000 * MILLI;

/// A holder whose process runs is notified of the loss of its lease before the deadline, and
/// before another client acquires the lease.
pub struct Lost;

impl Check for Lost {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Granted(id) if scene.mode == Mode::Within => {
                let unaware = scene.ledger.rivals(id).find(|rival| {
                    !rival.loss_notified && rival.process.has_run_for(GRACE, scene.now)
                });
                match unaware {
                    None => Ok(()),
                    Some(rival) => Err(format!(
                        "{} got the lease before {}, which has been running, was notified that its \
                         own (token {}) is lost",
                        scene.ledger.get(id).process.label(),
                        rival.process.label(),
                        rival.token
                    )),
                }
            }
            Fact::LossNotified(id) => {
                let holding = scene.ledger.get(id);
                let late = holding.deadline().zip(scene.local);
                match late.is_some_and(|(deadline, now)| now >= deadline)
                    && holding.process.has_run_for(GRACE, scene.now)
                {
                    false => Ok(()),
                    true => Err(format!(
                        "{} was notified of the loss of its lease (token {}) after its deadline",
                        holding.process.label(),
                        holding.token
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}

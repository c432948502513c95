//! A fenced register never loses an update.

use super::{Check, Fact, Scene};

/// The name of the promise.
pub const PROMISE: &str = "no lost update";

/// Every update reads the register and writes one more than it read, with whatever other
/// holders do in between; so the register says how many updates it has acknowledged, or one
/// of them was lost.
pub struct Updates;

impl Check for Updates {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, _: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Wrote {
                name,
                value,
                updates,
            } if value != updates => Err(format!(
                "the register of name {name} says {value} after {updates} updates"
            )),
            _ => Ok(()),
        }
    }
}

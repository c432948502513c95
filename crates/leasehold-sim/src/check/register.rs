//! A fenced register never loses an update.

use super::{Check, Fact, Scene};

/// The name of the promise.
pub const PROMISE: &str = "no lost update";

/// Every update reads the register and writes the value plus one, whatever other holders do in
/// between. So the value is the number of acknowledged updates, unless one was lost.
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
                "the register of name {name} holds {value} after {updates} updates"
            )),
            _ => Ok(()),
        }
    }
}

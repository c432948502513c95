//! Tokens are unique, and grow. This holds without any assumption.

use std::collections::{BTreeMap, BTreeSet};

use super::{Check, Fact, Scene};
use crate::agenda::Nanos;

/// The name of the promise.
pub const PROMISE: &str = "tokens";

/// Any two acquisitions of a name have different tokens, and an acquisition that began after
/// another one had succeeded has the larger token.
#[derive(Default)]
pub struct Tokens {
    names: BTreeMap<usize, History>,
}

#[derive(Default)]
struct History {
    used: BTreeSet<u64>,
    /// When an acquisition succeeded, and the largest token up to then.
    largest: Vec<(Nanos, u64)>,
}

impl Check for Tokens {
    fn promise(&self) -> &'static str {
        PROMISE
    }

    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String> {
        let Fact::Granted(id) = fact else {
            return Ok(());
        };
        let new = scene.ledger.get(id);
        let history = self.names.entry(new.name).or_default();
        let (who, token) = (new.process.label(), new.token);
        if token == 0 {
            // A lease without fencing has no token.
            return Ok(());
        }
        if !history.used.insert(token) {
            return Err(format!("{who} got token {token}, which was used before"));
        }
        let before = history.largest.partition_point(|(at, _)| *at < new.began);
        let earlier = before.checked_sub(1).map(|last| history.largest[last].1);
        if let Some(earlier) = earlier.filter(|earlier| *earlier > token) {
            return Err(format!(
                "{who} began after token {earlier} had been granted, and got {token}, which is \
                 smaller"
            ));
        }
        let largest = history.largest.last().map_or(token, |(_, t)| token.max(*t));
        history.largest.push((new.granted, largest));
        Ok(())
    }
}

//! Tokens are unique, and grow. This holds without any assumption.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::Mode;

use super::{Check, Fact, Scene};
use crate::agenda::Nanos;

/// The name of the promise.
pub const PROMISE: &str = "tokens";

/// Any two acquisitions of a name have different tokens, and an acquisition that began after
/// another one had succeeded has the larger token. Of readers and writers, this holds for any two
/// that exclude each other: readers may have tokens in any order.
#[derive(Default)]
pub struct Tokens {
    names: BTreeMap<usize, History>,
}

/// The tokens of writers, and of readers.
#[derive(Default)]
struct History {
    written: Side,
    read: Side,
}

#[derive(Default)]
struct Side {
    used: BTreeSet<u64>,
    /// When an acquisition succeeded, and the largest token up to then.
    largest: Vec<(Nanos, u64)>,
}

impl Side {
    /// The largest token of acquisitions that had succeeded before then.
    fn largest_before(&self, began: Nanos) -> Option<u64> {
        let before = self.largest.partition_point(|(at, _)| *at < began);
        before.checked_sub(1).map(|last| self.largest[last].1)
    }

    fn enter(&mut self, token: u64, granted: Nanos) {
        self.used.insert(token);
        let largest = self.largest.last().map_or(token, |(_, t)| token.max(*t));
        self.largest.push((granted, largest));
    }
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
        let rivals = match new.mode {
            Mode::Shared => [Some(&history.written), None],
            _ => [Some(&history.written), Some(&history.read)],
        };
        for rivals in rivals.into_iter().flatten() {
            if rivals.used.contains(&token) {
                return Err(format!("{who} got token {token}, which was used before"));
            }
            let earlier = rivals.largest_before(new.began);
            if let Some(earlier) = earlier.filter(|earlier| *earlier > token) {
                return Err(format!(
                    "{who} began after token {earlier} had been granted, and got {token}, which \
                     is smaller"
                ));
            }
        }
        match new.mode {
            Mode::Shared => history.read.enter(token, new.granted),
            _ => history.written.enter(token, new.granted),
        }
        Ok(())
    }
}

//! Within a period, work is done once, and only a result that was stored is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agenda::Nanos;
use crate::plan::Mode;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "once";

/// The runs of the work of one name.
#[derive(Default)]
pub struct Runs {
    runs: BTreeMap<u64, Run>,
    /// When the latest result was stored, as the caller that ran it sees it.
    stored_at: Option<Nanos>,
}

struct Run {
    began: Nanos,
    /// When the work succeeded, and which memory each node had then.
    succeeded: Option<(Nanos, Vec<u64>)>,
    /// A caller was shown its result.
    shown: bool,
}

impl Runs {
    /// When the latest result was stored.
    pub fn stored_at(&self) -> Option<Nanos> {
        self.stored_at
    }

    /// The latest result has been stored.
    pub fn note_stored(&mut self, now: Nanos) {
        self.stored_at = Some(now);
    }

    /// A caller begins its work.
    ///
    /// # Errors
    /// The result that was shown within its period.
    pub fn began(&mut self, world: &World, token: u64, period: Duration) -> Result<(), String> {
        let now = world.agenda.now();
        self.runs.insert(
            token,
            Run {
                began: now,
                succeeded: None,
                shown: false,
            },
        );
        let shown = self.runs.iter().filter(|(_, run)| run.shown);
        for (of, run) in shown {
            if covers(world, run, now, period) {
                return Err(format!(
                    "the work is done with token {token} within the period of token {of}"
                ));
            }
        }
        Ok(())
    }

    /// The work has succeeded.
    pub fn succeeded(&mut self, world: &World, token: u64) {
        if let Some(run) = self.runs.get_mut(&token) {
            run.succeeded = Some((world.agenda.now(), world.memories()));
        }
    }

    /// A caller is shown a result.
    ///
    /// # Errors
    /// Why it must not be.
    pub fn shown(
        &mut self,
        world: &World,
        token: u64,
        bytes: &[u8],
        period: Duration,
    ) -> Result<(), String> {
        let succeeded = self
            .runs
            .get(&token)
            .is_some_and(|run| run.succeeded.is_some());
        if !succeeded || bytes != token.to_string().as_bytes() {
            return Err(format!(
                "the result of token {token} is shown, whose work did not succeed"
            ));
        }
        if let Some(run) = self.runs.get_mut(&token) {
            run.shown = true;
        }
        let run = &self.runs[&token];
        let mut later = self.runs.range(token + 1..);
        match later.find(|(_, other)| covers(world, run, other.began, period)) {
            None => Ok(()),
            Some((other, _)) => Err(format!(
                "the result of token {token} is shown, within whose period the work was done with \
                 token {other}"
            )),
        }
    }
}

/// Whether this moment is within the period of a run, on all nodes: none has lost its memory since,
/// and clocks go at about the right speed. The nodes count from when the release arrived.
fn covers(world: &World, run: &Run, at: Nanos, period: Duration) -> bool {
    let Some((ended, memories)) = &run.succeeded else {
        return false;
    };
    let span = period.as_nanos() as Nanos;
    world.plan.mode == Mode::Within
        && *memories == world.memories()
        && (*ended..ended + span - span / 50).contains(&at)
}

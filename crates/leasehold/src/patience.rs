//! How much longer a call waits.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, Refusal};
use crate::options::{Options, Wait};
use crate::quorum::round::Advice;

/// How much longer a call goes on.
pub(crate) struct Patience {
    wait: Wait,
    started: Moment,
    attempts_left: Option<u32>,
    outage_since: Option<Moment>,
    outage_patience: Duration,
    backoff: Backoff,
}

impl Patience {
    /// Those before it in this process may have found no majority since `outage_since`.
    pub(crate) fn new(
        options: &Options,
        seed: u64,
        started: Moment,
        outage_since: Option<Moment>,
    ) -> Self {
        Self {
            wait: options.wait,
            started,
            attempts_left: options.attempts,
            outage_since,
            outage_patience: options.outage_patience,
            backoff: Backoff::new(options, seed),
        }
    }

    /// How long to pause before the next attempt, or the error to give up with.
    pub(crate) fn pause(
        &mut self,
        advice: Advice,
        refusal: Box<Refusal>,
        now: Moment,
    ) -> Result<Duration, Error> {
        let outage = match advice {
            Advice::Outage { permanent: true } => return Err(Error::NoMajority(refusal)),
            Advice::Outage { permanent: false } => true,
            // Nodes whose clocks are so far apart that no token suits a majority.
            Advice::Retoken { .. } | Advice::Reclock { .. } => true,
            Advice::Contended { .. } => false,
        };
        if let Some(left) = &mut self.attempts_left {
            *left -= 1;
        }
        let last_attempt = self.wait == Wait::No || self.attempts_left == Some(0);
        let waited = now.saturating_duration_since(self.started);
        if outage {
            let since = *self.outage_since.get_or_insert(now);
            let lasted = now.saturating_duration_since(since);
            if last_attempt || lasted >= self.outage_patience {
                return Err(Error::NoMajority(refusal));
            }
        } else {
            self.outage_since = None;
            if last_attempt {
                return Err(Error::Held(refusal));
            }
        }
        let mut pause = self.backoff.next().unwrap_or_default();
        if let Advice::Contended {
            remaining: Some(remaining),
        } = advice
        {
            // As soon as it has expired, it is worth asking.
            pause = pause.min(remaining.saturating_add(Duration::from_millis(1)));
        }
        if let Wait::For(wait) = self.wait {
            let left = wait.saturating_sub(waited);
            if left.is_zero() && outage {
                return Err(Error::NoMajority(refusal));
            } else if left.is_zero() {
                return Err(Error::TimedOut { waited, refusal });
            }
        }
        Ok(self.within_wait(pause, now))
    }

    /// Not longer than the call may wait.
    pub(crate) fn within_wait(&self, pause: Duration, now: Moment) -> Duration {
        match self.wait {
            Wait::For(wait) => {
                let waited = now.saturating_duration_since(self.started);
                pause.min(wait.saturating_sub(waited))
            }
            _ => pause,
        }
    }
}

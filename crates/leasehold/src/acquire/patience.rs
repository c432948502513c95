//! How much longer a call waits.

use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::error::{Error, Refusal};
use crate::client::options::{Options, Wait};
use crate::quorum::round::Advice;

/// How much longer a call goes on.
#[derive(Clone)]
pub(crate) struct Patience {
    wait: Wait,
    started: Moment,
    /// The limit of attempts. Without a limit, attempts are not counted.
    attempts: Option<u32>,
    made: u32,
    /// When the next attempt is due. Requests before that, to keep a place in line or because the
    /// lock has expired, do not count as attempts.
    next_attempt: Moment,
    outage_since: Option<Moment>,
    outage_patience: Duration,
    backoff: Backoff,
}

impl Patience {
    /// Calls before this one in this process have found no majority since `outage_since`.
    pub(crate) fn new(
        options: &Options,
        seed: u64,
        started: Moment,
        outage_since: Option<Moment>,
    ) -> Self {
        Self {
            wait: options.wait,
            started,
            attempts: options.attempts,
            made: 0,
            next_attempt: started,
            outage_since,
            outage_patience: options.outage_patience,
            backoff: options.backoff(seed),
        }
    }

    /// Counts a refused attempt, if one was due. Returns how many have been made, if they are
    /// limited.
    pub(crate) fn count(&mut self, now: Moment) -> Option<u32> {
        if self.attempts.is_some() && now >= self.next_attempt {
            self.made += 1;
            self.next_attempt = now + self.backoff.spacing();
        }
        self.attempts.map(|_| self.made)
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
            Advice::Outage { permanent: false } | Advice::Reclock { .. } => true,
            // Other clients were quicker.
            Advice::Retoken { .. } | Advice::Contended { .. } => false,
        };
        let last_attempt = self.wait == Wait::No || self.attempts == Some(self.made);
        let waited = now.saturating_duration_since(self.started);
        if outage {
            let since = *self.outage_since.get_or_insert(now);
            let lasted = now.saturating_duration_since(since);
            let gives_up = self.attempts.is_none() && lasted >= self.outage_patience;
            if last_attempt || gives_up {
                return Err(Error::NoMajority(refusal));
            }
        } else {
            self.outage_since = None;
            if last_attempt {
                return Err(Error::Held(refusal));
            }
        }
        let mut pause = match self.attempts {
            Some(_) => self.next_attempt.saturating_duration_since(now),
            None => self.backoff.pause(),
        };
        if let Advice::Contended {
            remaining: Some(remaining),
        } = advice
        {
            // The lock may be free as soon as it has expired.
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

    /// Not longer than the call may wait, nor beyond its next attempt.
    pub(crate) fn within_wait(&self, pause: Duration, now: Moment) -> Duration {
        let pause = match self.attempts {
            Some(_) => pause.min(self.next_attempt.saturating_duration_since(now)),
            None => pause,
        };
        match self.wait {
            Wait::For(wait) => {
                let waited = now.saturating_duration_since(self.started);
                pause.min(wait.saturating_sub(waited))
            }
            _ => pause,
        }
    }
}

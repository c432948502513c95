//! Waiting for a lease: attempts, and the pauses between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};
use crate::core::Core;
use crate::error::{Error, Refusal};
use crate::holder::new_owner;
use crate::janitor::Return;
use crate::name::Name;
use crate::node::rules::MAX_TOKEN;
use crate::node::{Bell, Claim, Holders, Verb, Watch};
use crate::options::{OnRefusal, Options, Wait};
use crate::planted;
use crate::quorum::round::{self, Advice, Decision};
use crate::quorum::{Canvass, NodeSet, Question};

/// How often an attempt is repeated at once with a better token before it counts as
/// contention. Two nodes with odd clocks cannot keep a caller spinning.
const MAX_RETOKENS: u32 = 8;

/// How often to ask while the nodes watch the name: the net under a missed bell, and what
/// finds the releases of those who ring none.
const WATCHED_PAUSE: Duration = Duration::from_secs(1);

/// Chooses tokens: `t = max(clock in µs, more than the highest token or fence seen)`.
///
/// Nothing depends on the clock being right: a token that is too low or too high is
/// refused, and the nodes tell a better one. A good guess makes it one round trip.
#[derive(Default)]
pub(crate) struct Proposer {
    last: AtomicU64,
    /// What to add to this machine's clock to get near the nodes' clocks.
    correction_us: AtomicI64,
}

impl Proposer {
    /// A token of at least `at_least`, and above the floor of every node whose floor is
    /// not too far ahead for the others.
    fn propose(
        &self,
        clock: &Clock,
        at_least: u64,
        floors: impl Iterator<Item = u64>,
        skew_us: u64,
    ) -> u64 {
        let correction = self.correction_us.load(Ordering::Relaxed);
        let now = clock.unix_us().saturating_add_signed(correction);
        let cap = now.saturating_add(skew_us);
        let floor = floors.filter(|floor| *floor < cap).max().unwrap_or(0);
        let at_least = at_least.max(floor.saturating_add(1));
        let mut token = 0;
        // The closure always returns `Some`, so this cannot fail.
        let _ = self
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
                // Not `last + 1`: the release of `last` burnt that.
                token = now
                    .max(at_least)
                    .max(last.saturating_add(2))
                    .min(MAX_TOKEN - 1);
                Some(token)
            });
        token
    }

    /// The nodes' clocks say `now`.
    fn reclock(&self, clock: &Clock, now: u64) {
        let ours = i64::try_from(clock.unix_us()).unwrap_or(i64::MAX);
        let theirs = i64::try_from(now).unwrap_or(i64::MAX);
        self.correction_us
            .store(theirs.saturating_sub(ours), Ordering::Relaxed);
        self.last.store(0, Ordering::Release);
    }
}

/// A claim that a majority granted, on its way to become a lease.
pub(crate) struct Won {
    pub(crate) claim: Arc<Claim>,
    pub(crate) canvass: Arc<Canvass>,
    pub(crate) sent_at: Moment,
    pub(crate) deadline: Moment,
}

/// What one attempt came to.
enum Attempt {
    Won(Won),
    Refused {
        advice: Advice,
        refusal: Box<Refusal>,
    },
}

/// Wins a claim, waiting for it as the options say. It must be made a lease at once: nobody
/// gives it back any more.
///
/// Cancel safety: if dropped, an attempt that is under way is given back by the
/// janitor; nothing is left beyond the TTL.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    options: &Options,
) -> Result<Won, Error> {
    let started = core.clock.now();
    let mut patience = Patience::new(core, options, started);
    let (mut at_least, mut retokens) = (0, 0);
    let mut watched = Watched::default();
    loop {
        if core.is_shut_down() {
            return Err(Error::ShutDown);
        }
        let (advice, refusal) = match attempt(core, name, options, at_least).await {
            Attempt::Won(won) => return Ok(won),
            Attempt::Refused { advice, refusal } => (advice, refusal),
        };
        match advice {
            Advice::Retoken { at_least: least } if retokens < MAX_RETOKENS => {
                at_least = least;
                retokens += 1;
                continue;
            }
            Advice::Reclock {
                now,
                at_least: least,
            } if retokens < MAX_RETOKENS => {
                core.proposer.reclock(&core.clock, now);
                at_least = least;
                retokens += 1;
                continue;
            }
            _ => (at_least, retokens) = (0, 0),
        }
        if let Some(OnRefusal(tell)) = &options.on_refusal {
            tell(&refusal);
        }
        let mut pause = patience.pause(advice, refusal, core.clock.now())?;
        if let Advice::Contended { remaining } = advice {
            pause = watched
                .pause(core, name, remaining)
                .map_or(pause, |longer| {
                    patience.within_wait(longer, core.clock.now())
                });
        }
        tokio::select! {
            biased;
            () = watched.bell.rung() => {}
            () = core.clock.sleep(pause) => {}
        }
        if pause.is_zero() {
            tokio::task::yield_now().await;
        }
    }
}

/// The nodes that tell when it is worth asking again.
#[derive(Default)]
struct Watched {
    bell: Bell,
    watches: Option<Vec<Watch>>,
}

impl Watched {
    /// Has the nodes watch the name, from the first refusal on. If so many of them do that
    /// no grant is missed: how long to sleep at most unless the bell rings.
    fn pause(&mut self, core: &Core, name: &Name, remaining: Option<Duration>) -> Option<Duration> {
        let watches = self.watches.get_or_insert_with(|| {
            let nodes = core.nodes.iter();
            nodes
                .filter_map(|node| node.watch(name, &self.bell))
                .collect()
        });
        (watches.len() >= round::Round::majority(core.nodes.len())).then(|| {
            let expiry = remaining.map_or(WATCHED_PAUSE, |left| left + Duration::from_millis(1));
            expiry.min(WATCHED_PAUSE)
        })
    }
}

/// How much longer a call goes on.
struct Patience {
    wait: Wait,
    started: Moment,
    attempts_left: Option<u32>,
    outage_since: Option<Moment>,
    outage_patience: Duration,
    backoff: Backoff,
}

impl Patience {
    fn new(core: &Core, options: &Options, started: Moment) -> Self {
        Self {
            wait: options.wait,
            started,
            attempts_left: options.attempts,
            outage_since: None,
            outage_patience: options.outage_patience,
            backoff: Backoff::new(options, core.next_seed()),
        }
    }

    /// How long to pause before the next attempt, or the error to give up with.
    fn pause(
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
    fn within_wait(&self, pause: Duration, now: Moment) -> Duration {
        match self.wait {
            Wait::For(wait) => {
                let waited = now.saturating_duration_since(self.started);
                pause.min(wait.saturating_sub(waited))
            }
            _ => pause,
        }
    }
}

/// Asks all nodes once.
async fn attempt(core: &Arc<Core>, name: &Name, options: &Options, at_least: u64) -> Attempt {
    let floors = core.nodes.iter().map(|node| node.floor());
    let skew_us = core.constants.skew_us();
    let token = core
        .proposer
        .propose(&core.clock, at_least, floors, skew_us);
    let owner = new_owner(token, &options.label);
    let claim = Arc::new(Claim::new(name.clone(), owner, token, options.ttl));
    if options.detached {
        claim.set_holders(Holders::Nobody);
    }
    // Before the first byte is sent: the nodes count the TTL from later than this.
    let sent_at = core.clock.now();
    let mut armed = Armed {
        core,
        claim: Some(Arc::clone(&claim)),
        timeout: options.timeout_of_node(),
        until: sent_at + options.ttl + options.timeout_of_node(),
    };
    let question = Question::new(Verb::Acquire, &claim, armed.timeout);
    let canvass = Canvass::send(&core.nodes, question);
    let decision = canvass.decided().await;
    let drift = options.drift_of_ttl();
    let deadline = round::deadline(sent_at, options.ttl, drift, core.clock.now());
    if let (Decision::Carried, Some(deadline)) = (decision, deadline) {
        armed.disarm();
        return Attempt::Won(Won {
            claim,
            canvass,
            sent_at,
            deadline,
        });
    }
    let advice = match decision {
        Decision::Failed => {
            let elapsed = core.clock.now().saturating_duration_since(sent_at);
            canvass.with_round(|round| round.advice(token, elapsed))
        }
        // A majority granted it, but so late that nothing of it is left.
        Decision::Carried => Advice::Outage { permanent: false },
    };
    // A failed attempt releases everywhere, also where the outcome is unknown; not
    // where the node said no, which took no effect and cannot any more.
    let skip = match planted::on(planted::Bug::FailedAttemptKept) {
        false => canvass.untouched(),
        true => NodeSet::all(),
    };
    armed.release(skip);
    let refusal = Box::new(core.refused(&claim, &canvass));
    Attempt::Refused { advice, refusal }
}

/// The clean-up of an attempt: armed before its claim is sent, disarmed only when the
/// claim has become a lease. A caller that is cancelled drops it, armed.
struct Armed<'a> {
    core: &'a Core,
    claim: Option<Arc<Claim>>,
    timeout: Duration,
    until: Moment,
}

impl Armed<'_> {
    fn disarm(&mut self) {
        self.claim = None;
    }

    /// Sent at once, and so before the next attempt on the same connections.
    fn release(&mut self, skip: NodeSet) {
        if let Some(item) = self.take(skip)
            && skip.len() < self.core.nodes.len()
        {
            self.core.janitor.give_back(item);
        }
    }

    fn take(&mut self, skip: NodeSet) -> Option<Return> {
        Some(Return {
            claim: self.claim.take()?,
            keep_until: None,
            timeout: self.timeout,
            skip,
            settled: NodeSet::default(),
            until: self.until,
        })
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if let Some(item) = self.take(NodeSet::default()) {
            self.core.janitor.post(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW_US: u64 = 10_000_000;

    fn propose(proposer: &Proposer, at_least: u64, floors: &[u64]) -> u64 {
        let floors = floors.iter().copied();
        proposer.propose(&Clock::default(), at_least, floors, SKEW_US)
    }

    #[test]
    fn proposals_grow_and_respect_what_was_seen() {
        let proposer = Proposer::default();
        let first = propose(&proposer, 0, &[]);
        let second = propose(&proposer, 0, &[]);
        assert!(second > first);
        let seen = second + 5_000_000;
        assert_eq!(propose(&proposer, seen, &[]), seen);
        assert_eq!(propose(&proposer, 0, &[]), seen + 2);
    }

    #[test]
    fn proposals_are_above_the_floors_but_not_above_those_far_ahead() {
        let now = Clock::default().unix_us();
        let (near, far) = (now + SKEW_US / 2, now + SKEW_US * 100);
        let token = propose(&Proposer::default(), 0, &[0, near, far]);
        assert_eq!(token, near + 1);
    }

    #[test]
    fn proposals_follow_the_nodes_clocks_when_told() {
        let (proposer, clock) = (Proposer::default(), Clock::default());
        propose(&proposer, 0, &[]);
        proposer.reclock(&clock, 1_000_000);
        let token = propose(&proposer, 0, &[]);
        let hour = 3_600_000_000;
        assert!((1_000_000..1_000_000 + hour).contains(&token), "{token}");
    }

    #[test]
    fn tokens_stay_exact_in_lua() {
        assert!(propose(&Proposer::default(), u64::MAX, &[]) < MAX_TOKEN);
    }
}

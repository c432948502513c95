//! What a handshake has found out about a server, as far as the link goes by it.

use std::time::Duration;

use super::Native;
use crate::base::clock::Moment;
use crate::node::{Call, Verb, Vote};
use crate::observe::Found;

/// What a handshake has found out about a server.
#[derive(Debug)]
pub struct Handshake {
    /// When it began: the server had the identity that it found then, or later.
    pub verified: Moment,
    /// The largest token that the server never grants.
    pub floor: u64,
    /// The server's clock.
    pub now_us: u64,
    /// By how much that clock was ahead of the client's wall clock, as far as one round trip shows.
    /// Only reported.
    pub clock_offset_us: i64,
    /// By how much a token may be ahead of the server's clock.
    pub skew_us: u64,
    /// The server's own compare-and-delete, unless it has refused it.
    pub native: Option<Native>,
    /// Until when the server does not vote, because it may have forgotten leases.
    pub quarantine: Option<Quarantine>,
}

impl Handshake {
    /// The server's clock allows tokens up to here, so an acquire of such a token need not look at
    /// the clock. It does not go back, so what was allowed once stays so.
    ///
    /// While the floor is ahead of that clock, tokens are too and do not tell when they were granted.
    /// Then every acquire looks at the clock, and the server records the time.
    pub(super) fn cap(&self) -> u64 {
        match self.now_us < self.floor {
            true => 0,
            false => self.now_us.saturating_add(self.skew_us),
        }
    }

    /// What is reported of it.
    pub(super) fn found(&self) -> Found {
        Found {
            floor: self.floor,
            clock_offset_us: self.clock_offset_us,
            quarantined_until: self.quarantine.as_ref().map(|quarantine| quarantine.until),
        }
    }

    /// Whether the server may have forgotten since the call was first sent, and so does not
    /// recognise it: it does not vote yet, or grants no token of that time any more.
    pub(super) fn has_forgotten(&self, call: &Call, now: Moment) -> bool {
        let takes = !matches!(call.verb(), Verb::Release { .. });
        let claim = call.claim();
        let floor = claim.is_fenced() && claim.token() <= self.floor;
        takes && (floor || self.quarantined(call, now).is_some())
    }

    /// When the server votes, if it does not yet.
    pub(super) fn votes_at(&self) -> Option<Moment> {
        self.quarantine.as_ref().map(|quarantine| quarantine.until)
    }

    /// Ends the quarantine if it is over. Returns whether it has ended now.
    pub(super) fn end_quarantine(&mut self, now: Moment) -> bool {
        self.quarantine
            .take_if(|quarantine| quarantine.until <= now)
            .is_some()
    }

    /// The vote of a server in quarantine. RELEASE is allowed: it deletes only what belongs to the
    /// claim.
    pub(super) fn quarantined(&self, call: &Call, now: Moment) -> Option<Vote> {
        let quarantine = self.quarantine.as_ref()?;
        if now >= quarantine.until || matches!(call.verb(), Verb::Release { .. }) {
            return None;
        }
        Some(Vote::Quarantined {
            up: now.saturating_duration_since(quarantine.since),
            remaining: quarantine.until.saturating_duration_since(now),
        })
    }
}

/// The server's memory began at `since`, and it does not vote before `until`.
#[derive(Debug)]
pub struct Quarantine {
    since: Moment,
    until: Moment,
}

impl Quarantine {
    /// The restart guard: no vote until the server has had its memory for `guard`, the longest TTL
    /// in use; and where a set of nodes took the place of another, no vote for `votes_in`, until no
    /// lease of the other can run. Uptime is in whole seconds, hence the second on top.
    pub fn new(
        since: Moment,
        guard: Option<Duration>,
        votes_in: Duration,
        now: Moment,
    ) -> Option<Self> {
        let restarted = guard.map(|guard| since + guard + Duration::from_secs(1));
        let until = restarted.unwrap_or(now).max(now + votes_in);
        (now < until).then_some(Self { since, until })
    }
}

/// What a client knows of its server's memory, by the client's own clock.
#[derive(Debug)]
pub struct Memory<I> {
    identity: I,
    /// It began then, or earlier.
    since: Moment,
    /// The server had it then, and maybe later.
    seen: Moment,
}

impl<I> Memory<I> {
    /// Notes that a server had this identity `now`, and that its memory is `age` old by its own
    /// clock. Returns when the memory began.
    ///
    /// The server's clock may have been stepped forward after a boot. So what this client has seen
    /// itself counts as well: memory does not begin before the last that was seen of an earlier
    /// one, and another handshake makes it neither older nor younger.
    pub fn note(
        known: &mut Option<Self>,
        identity: I,
        age: Duration,
        now: Moment,
        continues: impl FnOnce(&I, &I) -> bool,
    ) -> Moment {
        let mut since = now.saturating_sub(age);
        if let Some(known) = known {
            since = match continues(&identity, &known.identity) {
                true => known.since,
                false => since.max(known.seen),
            };
        }
        *known = Some(Self {
            identity,
            since,
            seen: now,
        });
        since
    }

    /// The identity of the latest handshake.
    pub fn identity(&self) -> &I {
        &self.identity
    }

    /// Notes that the server had this memory at this time, or later.
    pub fn seen(&mut self, at: Moment) {
        self.seen = self.seen.max(at);
    }
}

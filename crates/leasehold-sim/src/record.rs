//! One name on a node during one request: the record on which the library's own rules vote.

use std::time::Duration;

use leasehold::node::rules::Constants;
use leasehold::node::rules::{View, Write};
use leasehold::node::{Claim, News, Record, Verb};

use crate::bug::Bug;
use crate::store::{Ask, Entry};
use crate::subscriptions::Subscriptions;

/// A name, the request about it, and the subscriptions.
pub struct NameRecord<'a> {
    /// What the node stores about the name.
    pub entry: &'a mut Entry,
    /// The request.
    pub ask: &'a Ask,
    /// The node's clock.
    pub now: u64,
    /// The constants that all clients agree on.
    pub constants: Constants,
    /// The planted bug, if any.
    pub bug: Option<Bug>,
    /// The subscriptions to the node.
    pub subscriptions: &'a mut Subscriptions,
}

impl NameRecord<'_> {
    fn until(&self, span: Duration) -> u64 {
        self.now.saturating_add(span.as_micros() as u64)
    }

    /// How long the rules require a fence to be kept: F + S, the time of the lock, and an hour.
    fn fence_until(&self, span: Duration) -> u64 {
        let Constants {
            skew,
            fence_retention,
            ..
        } = self.constants;
        self.until(fence_retention + skew + Duration::from_secs(3600) + span)
    }

    /// Planted bug: a waiter whose ticket was overtaken stays in line.
    pub fn keeps_stale(&self) -> bool {
        self.bug == Some(Bug::StaleTicketGranted) && self.ask.verb == Verb::Wait
    }

    /// Alters the view for a planted bug.
    fn tamper(&self, view: &mut View<'_>) {
        let (ask, token) = (self.ask, self.ask.claim.token());
        let others = view.lock.is_some_and(|lock| lock != ask.claim.owner());
        match self.bug {
            // If there is a lock, the fence tells whether the same request arrived again.
            Some(Bug::TiesWin) if ask.verb == Verb::Acquire && view.lock.is_none() => {
                view.fence = view.fence.map(|fence| fence - u64::from(fence == token));
            }
            Some(Bug::MissingFenceIsZero) => view.fence = view.fence.or(Some(0)),
            Some(Bug::NoFloor) => view.floor = 0,
            Some(Bug::ExtendIgnoresFence) if ask.verb == Verb::Extend && !others => {
                view.fence = Some(0);
            }
            // The first in line is granted a free lock, whatever its ticket.
            Some(Bug::StaleTicketGranted) => {
                if let Some((first, ticket)) = self.entry.first()
                    && view.lock.is_none_or(|lock| *lock == *first)
                {
                    view.fence = view.fence.map(|fence| fence.min(ticket - 1));
                    view.floor = view.floor.min(ticket - 1);
                }
            }
            _ => {}
        }
    }
}

impl Record for NameRecord<'_> {
    fn view(&self) -> View<'_> {
        let (entry, now) = (&*self.entry, self.now);
        let left = |until: u64| Duration::from_micros(until.saturating_sub(now));
        let mut view = View {
            lock: entry.owner(),
            remaining: entry.lock.as_ref().map(|(_, until)| left(*until)),
            fence: entry.fence.map(|(fence, _)| fence),
            floor: self.ask.epoch.floor(&self.constants),
            now,
            constants: self.constants,
        };
        self.tamper(&mut view);
        view
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        match write {
            Write::Nothing => {}
            Write::Lock { fence, remaining } => {
                let (locked, fenced) = (self.until(remaining), self.fence_until(remaining));
                let extends = self.ask.verb == Verb::Extend;
                let fence = match self.bug {
                    Some(Bug::ExtendIgnoresFence) if extends => Some(claim.token()),
                    _ => fence,
                };
                self.entry.lock = Some((claim.owner().into(), locked));
                if let Some(fence) = fence {
                    self.entry.fence = Some((fence, fenced));
                }
            }
            Write::Unlock { fence } => {
                self.entry.unlock(self.bug);
                // Where no message can arrive late, the fence may stay as it is.
                let dies = self.bug == Some(Bug::FenceDiesWithLock);
                if let Some(fence) = fence.filter(|_| !dies && !self.ask.is_settled_release()) {
                    self.entry.fence = Some((fence, self.fence_until(Duration::ZERO)));
                }
            }
            Write::Keep {
                value,
                remaining,
                fence,
            } => {
                self.entry.lock = Some((value.into(), self.until(remaining)));
                if let Some(fence) = fence {
                    self.entry.fence = Some((fence, self.fence_until(remaining)));
                }
            }
        }
    }

    fn grant(&mut self, owner: &[u8], token: u64, time: Duration) {
        self.entry.lock = Some((owner.into(), self.until(time)));
        self.entry.fence = Some((token, self.fence_until(time)));
    }

    fn has_line(&self) -> bool {
        self.entry.lined
    }

    fn join(&mut self, claim: &Claim) {
        // The mark of a line is part of the fence, so there must be a fence.
        let fence = self.view().fence.unwrap_or_else(|| {
            let retention = self.constants.fence_retention.as_micros() as u64;
            let floor = self.ask.epoch.floor(&self.constants);
            self.now.saturating_sub(retention).max(floor)
        });
        if self.entry.fence.is_none() {
            self.entry.fence = Some((fence, self.fence_until(Duration::ZERO)));
        }
        self.entry.join(claim, self.ask.channel, self.now, self.bug);
    }

    fn leave(&mut self, owner: &[u8]) {
        if !(self.keeps_stale() && owner == self.ask.claim.owner()) {
            self.entry.leave(owner);
        }
    }

    fn remove_silent(&mut self, before: u64) {
        if self.bug != Some(Bug::DeadWaiterKept) {
            self.entry.line.remove_silent(before);
        }
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let first = self.entry.first()?;
        let (lock, bug) = (self.entry.owner(), self.bug);
        // Planted bug: the first in line is hidden while another claim has the lock, so that its
        // ticket is not checked before the grant.
        let unseen = bug == Some(Bug::StaleTicketGranted) && lock.is_some_and(|l| *l != *first.0);
        (!unseen).then_some(first)
    }

    fn is_order_known(&self, owner: &[u8]) -> bool {
        self.entry.line.is_order_known(owner, self.now)
    }

    fn before(&self, owner: &[u8]) -> u32 {
        self.entry.line.before(owner)
    }

    fn notify(&mut self, owner: &[u8], news: News) -> bool {
        if self.bug == Some(Bug::MissedNotification) {
            return true;
        }
        let Some(channel) = self.entry.channel_of(owner) else {
            // The waiter has no subscription, and only polls.
            return true;
        };
        let name = self.ask.claim.name();
        let delivered = self.subscriptions.publish(channel, name, owner, news);
        delivered || self.bug == Some(Bug::DeadWaiterKept)
    }
}

//! One name on a node during one request: the record on which the library's own rules vote.

use std::time::Duration;

use leasehold::node::rules::Constants;
use leasehold::node::rules::{View, Write};
use leasehold::node::{Claim, Line, News, Record, Seat, Verb};
use leasehold::{Mode, Name};

use crate::bug::Bug;
use crate::message::Ask;
use crate::store::Entry;
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
    /// The name in whose line waiters stand.
    pub fn key_of_line(&self) -> &Name {
        let claim = &self.ask.claim;
        claim.seat().map_or(claim.name(), Seat::semaphore)
    }

    fn until(&self, span: Duration) -> u64 {
        self.now.saturating_add(span.as_micros() as u64)
    }

    /// How long the rules require a fence to be kept: F + S, the time of the lock, and an hour.
    pub fn fence_until(&self, span: Duration) -> u64 {
        let Constants {
            skew,
            fence_retention,
            ..
        } = self.constants;
        let margin = match self.bug {
            Some(Bug::FenceKeptTooShort) => Duration::ZERO,
            _ => Duration::from_secs(3600),
        };
        self.until(fence_retention + skew + margin + span)
    }

    /// The time by which the rules vote. In the common case of ACQUIRE the scripts do not look at the
    /// clock, if the connection knows that it has been late enough for the token.
    fn voting_time(&self) -> u64 {
        let (entry, token) = (&*self.entry, self.ask.claim.token());
        let floor = self.ask.epoch.floor(&self.constants);
        let is_above = floor < token && entry.fence.is_some_and(|(fence, _)| fence < token);
        let is_plain = self.ask.claim.seat().is_none();
        let is_free = is_plain && entry.lock.is_none() && !entry.lined;
        match self.ask.verb {
            Verb::Acquire if self.ask.is_within_cap && is_free && is_above => {
                let skew = self.constants.skew.as_micros() as u64;
                self.now.max(token.saturating_sub(skew))
            }
            _ => self.now,
        }
    }

    /// Planted bug: a waiter whose ticket was overtaken stays in line.
    pub fn keeps_stale(&self) -> bool {
        let stands_for_lock = self.ask.verb == Verb::Wait && self.ask.claim.seat().is_none();
        self.bug == Some(Bug::StaleTicketGranted) && stands_for_lock
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
            _ => self.tamper_shared(view),
        }
    }

    /// Alters the view for a planted bug of readers and writers.
    fn tamper_shared(&self, view: &mut View<'_>) {
        let (verb, mode) = (self.ask.verb, self.ask.claim.mode());
        let marked = self.entry.is_shared();
        match (self.bug, mode, verb) {
            (Some(Bug::ReaderIgnoresWriteFence), Mode::Shared, Verb::Acquire | Verb::Wait)
            | (Some(Bug::ReaderJoinsAnyway), Mode::Shared, Verb::Extend) => {
                view.write_fence = Some(0);
            }
            (Some(Bug::WriterIgnoresMarker), Mode::Exclusive, _) if marked => view.lock = None,
            (Some(Bug::NoFloorForReaders), Mode::Shared, _) => view.floor = 0,
            _ => {}
        }
    }

    /// Stores what a rule says of a claim.
    fn store(&mut self, write: Write, owner: &[u8], token: u64) {
        match write {
            Write::Nothing => {}
            Write::Lock { fence, remaining } => {
                let (locked, fenced) = (self.until(remaining), self.fence_until(remaining));
                let extends = self.ask.verb == Verb::Extend;
                let fence = match self.bug {
                    Some(Bug::ExtendIgnoresFence) if extends => Some(token),
                    _ => fence,
                };
                self.entry.note_taking(owner);
                self.entry.lock = Some((owner.into(), locked));
                self.set_fence(fence, fenced);
            }
            Write::Unlock { fence } => {
                self.entry.unlock(self.bug);
                // Where no message can arrive late, the fence may stay as it is.
                let dies = self.bug == Some(Bug::FenceDiesWithLock);
                let raised = fence.filter(|_| !dies && !self.ask.is_plain_delete);
                self.set_fence(raised, self.fence_until(Duration::ZERO));
                if fence.is_some() {
                    self.entry.note_release(&self.ask.claim);
                }
            }
            Write::Keep {
                value,
                remaining,
                fence,
            } => {
                self.entry.lock = Some((value.into(), self.until(remaining)));
                self.set_fence(fence, self.fence_until(remaining));
            }
            Write::Share {
                fence,
                write_fence,
                remaining,
            } => {
                if !self.entry.is_shared() {
                    self.entry.readers.clear();
                }
                let until = self.until(remaining);
                self.entry.readers.insert(owner.into(), until);
                self.mark(marker_of(owner));
                if self.bug == Some(Bug::MarkerOfTheLast) {
                    self.entry.lock = Some((marker_of(owner), until));
                }
                let known = self.entry.fence.map_or(0, |(fence, _)| fence);
                let fence = match self.bug {
                    Some(Bug::ReaderLeavesFence) => known.max(write_fence),
                    _ => fence,
                };
                let longest = self.entry.lock.as_ref().map_or(until, |(_, until)| *until);
                let kept = Duration::from_micros(longest.saturating_sub(self.now));
                self.entry.fence = Some((fence, self.fence_until(kept)));
                let forgets = self.bug == Some(Bug::DowngradeForgetsWriter);
                let replaces = self.ask.claim.replaces().is_some();
                self.entry.write_fence = match forgets && replaces && write_fence + 15 == token {
                    false => Some(write_fence),
                    true => Some(write_fence - 16),
                };
            }
            Write::Unshare { kept } => {
                self.entry.readers.remove(owner);
                if let Some((value, time)) = kept {
                    let until = self.until(time);
                    let known = self.entry.readers.entry(value.into()).or_insert(until);
                    *known = until.max(*known);
                }
                let marker = self.entry.owner().map(Box::from);
                self.mark(marker.unwrap_or_default());
            }
        }
    }

    fn set_fence(&mut self, fence: Option<u64>, until: u64) {
        if let Some(fence) = fence {
            self.entry.fence = Some((fence, until));
            if self.bug != Some(Bug::ExclusiveKeepsWriteFence) {
                self.entry.write_fence = None;
            }
        }
    }

    /// Makes the marker expire with the reader that stays longest.
    fn mark(&mut self, marker: Box<[u8]>) {
        let now = self.now;
        self.entry.readers.retain(|_, until| *until > now);
        let longest = self.entry.readers.values().max();
        self.entry.lock = longest.map(|until| (marker, *until));
    }
}

/// The marker of the reader with this owner value.
fn marker_of(owner: &[u8]) -> Box<[u8]> {
    let public = String::from_utf8_lossy(owner.get(40..).unwrap_or_default()).into_owned();
    format!("shared{}", public.replacen("s:", ":", 1))
        .into_bytes()
        .into()
}

impl Record for NameRecord<'_> {
    type Line = Self;

    fn view(&self, owner: &[u8]) -> View<'_> {
        let (entry, now) = (&*self.entry, self.now);
        let left = |until: u64| Duration::from_micros(until.saturating_sub(now));
        let mut view = View {
            lock: entry.owner(),
            remaining: entry.lock.as_ref().map(|(_, until)| left(*until)),
            fence: entry.fence.map(|(fence, _)| fence),
            write_fence: entry.write_fence,
            share: entry
                .readers
                .get(owner)
                .filter(|until| **until > now)
                .map(|until| left(*until)),
            floor: self.ask.epoch.floor(&self.constants),
            now: self.voting_time(),
            constants: self.constants,
        };
        self.tamper(&mut view);
        view
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        self.store(write, claim.owner(), claim.token());
    }

    fn grant(&mut self, owner: &[u8], token: u64, write: Write) {
        self.store(write, owner, token);
    }

    fn line(&mut self) -> &mut Self {
        self
    }
}

impl Line for NameRecord<'_> {
    fn is_empty(&self) -> bool {
        match self.ask.claim.seat() {
            Some(_) => self.entry.line.is_empty(),
            None => !self.entry.lined,
        }
    }

    fn join(&mut self, claim: &Claim) {
        // The mark of a line is part of the fence, so there must be a fence.
        let fence = self.view(claim.owner()).fence.unwrap_or_else(|| {
            let retention = self.constants.fence_retention.as_micros() as u64;
            let floor = self.ask.epoch.floor(&self.constants);
            self.now.saturating_sub(retention).max(floor)
        });
        if self.entry.fence.is_none() && self.ask.claim.seat().is_none() {
            self.entry.fence = Some((fence, self.fence_until(Duration::ZERO)));
        }
        self.entry.note_taking(claim.owner());
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
        let asks_to_read = self.ask.claim.mode() == Mode::Shared && self.ask.verb == Verb::Acquire;
        let first = match self.bug {
            // Planted bug: a reader that joins others does not look at the line.
            Some(Bug::ReadersPassTheLine) if asks_to_read && self.entry.is_shared() => None,
            _ => self.entry.first(),
        }?;
        let (lock, bug) = (self.entry.owner(), self.bug);
        // Planted bug: the first in line is hidden while another claim has the lock, so that its
        // ticket is not checked before the grant.
        let unseen = bug == Some(Bug::StaleTicketGranted) && lock.is_some_and(|l| *l != *first.0);
        (!unseen).then_some(first)
    }

    fn front(&self, at_most: usize) -> Vec<Box<[u8]>> {
        match self.bug {
            Some(Bug::KeptNotifiesNobody) => Vec::new(),
            _ => self.entry.line.front(at_most),
        }
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
        let name = self.key_of_line().clone();
        let delivered = self.subscriptions.publish(channel, &name, owner, news);
        delivered || self.bug == Some(Bug::DeadWaiterKept)
    }
}

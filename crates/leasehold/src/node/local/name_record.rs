//! One name during a vote: a [`Record`] on the rows of the file.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rusqlite::Connection;

use super::failure::Failure;
use super::line::{self, Waiter};
use super::notify::{Notification, Notifications};
use super::process;
use super::readers::{self, Reader};
use super::rows::{Now, Row};
use crate::base::holder::{marker_value, owner_mode};
use crate::base::name::Name;
use crate::node::rules::{View, Write};
use crate::node::{Claim, Line, Mode, News, Record};

/// The state that all votes of a transaction share.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Connection,
    pub(super) now: Now,
    pub(super) floor: u64,
    pub(super) notifications: &'a Notifications,
    /// Notifications, to be sent after the commit.
    ///
    /// They must not be sent earlier: a failed commit has granted nothing, and a waiter that sends
    /// a request at once would find the file locked, and sleep. Whether a waiter is dead is known
    /// before anything is sent. If this process dies after the commit, waiters find out with their
    /// next WAIT.
    pub(super) outgoing: RefCell<Vec<Notification>>,
}

/// The record of one name.
pub(super) struct NameRecord<'a> {
    row: Row,
    line: NameLine<'a>,
    /// The processes of readers that are alive, if this is a claim of a writer.
    reading: Option<Vec<u32>>,
}

/// The line of one name.
pub(super) struct NameLine<'a> {
    transaction: &'a Transaction<'a>,
    claim: &'a Claim,
    /// The name of the line: that of the claim, or its semaphore.
    name: &'a Name,
    had_waiters: bool,
    /// Whether there may be waiters. It is set when a claim joins, and reset when the line turns
    /// out to be empty.
    has_waiters: Cell<bool>,
    /// The first in line, if known.
    first: RefCell<Option<Waiter>>,
    /// A waiter that was first and has left. It may still be notified.
    left: Option<Waiter>,
    silent_removed: bool,
    /// The first failure. Then the transaction is rolled back.
    failure: RefCell<Option<Failure>>,
}

impl<'a> NameRecord<'a> {
    pub(super) fn open(
        transaction: &'a Transaction<'a>,
        claim: &'a Claim,
    ) -> Result<Self, Failure> {
        let row = Row::read(transaction.connection, claim.name(), &transaction.now)?;
        let line = NameLine::new(transaction, claim, claim.name(), row.line);
        let mut record = Self {
            row,
            line,
            reading: None,
        };
        // A reader whose process died ends at once. Only a writer needs to know.
        if record.row.is_shared() && claim.mode() == Mode::Exclusive {
            record.remove_dead_readers();
        }
        Ok(record)
    }

    fn remove_dead_readers(&mut self) {
        let (name, now) = (self.line.claim.name(), &self.line.transaction.now);
        let readers = self.line.query(|file| readers::all(file, name, now));
        let (dead, living): (Vec<_>, Vec<_>) =
            readers.into_iter().partition(|reader| reader.is_dead());
        for reader in &dead {
            self.line
                .query(|file| readers::remove(file, name, &reader.owner));
        }
        let holders = living.iter().filter_map(|reader| reader.holders.as_deref());
        self.reading = Some(holders.flat_map(process::living).collect());
        if !dead.is_empty() || living.is_empty() {
            self.mark_longest();
        }
    }

    /// Makes the marker expire with the reader that stays longest.
    fn mark_longest(&mut self) {
        let (name, now) = (self.line.claim.name(), &self.line.transaction.now);
        let readers = self.line.query(|file| readers::all(file, name, now));
        let longest = readers.iter().map(|reader| reader.remaining).max();
        let lock = self.row.lock.take();
        let marker = lock.map(|lock| lock.owner).unwrap_or_default();
        self.row.mark(&marker, longest);
    }

    /// Stores what a rule says. `holders` are the processes of the claim.
    fn store(&mut self, write: Write, owner: &[u8], token: u64, holders: Option<String>) {
        let (name, now) = (self.line.claim.name(), &self.line.transaction.now);
        match write {
            Write::Share {
                fence,
                write_fence,
                remaining,
            } => {
                // Rule: a new marker has no readers yet.
                let known = match self.row.is_shared() {
                    true => self
                        .line
                        .query(|file| readers::find(file, name, owner, now)),
                    false => {
                        self.line.query(|file| readers::clear(file, name));
                        None
                    }
                };
                let reader = Reader {
                    owner: owner.to_vec(),
                    // A waiter that was granted the lock has left the line.
                    holders: holders.or(known.and_then(|reader| reader.holders)),
                    remaining,
                };
                self.line
                    .query(|file| readers::add(file, name, &reader, now));
                let lock = self.row.lock.as_ref().filter(|_| self.row.is_shared());
                let longest = lock.and_then(|lock| lock.remaining).unwrap_or_default();
                let marker = marker_value(owner);
                self.row.mark(&marker, Some(longest.max(remaining)));
                self.row.set_shared_fence(token, fence, write_fence);
            }
            Write::Unshare { kept } => {
                self.line.query(|file| readers::remove(file, name, owner));
                if let Some((owner, time)) = kept {
                    let known = self
                        .line
                        .query(|file| readers::find(file, name, &owner, now));
                    let known = known.map(|reader| reader.remaining).unwrap_or_default();
                    let reader = Reader {
                        owner,
                        holders: None,
                        remaining: known.max(time),
                    };
                    self.line
                        .query(|file| readers::add(file, name, &reader, now));
                }
                self.mark_longest();
            }
            write => self.row.apply(write, self.line.claim),
        }
    }

    /// The processes that hold the lock and can be watched; `None` if that was not looked at.
    pub(super) fn living_holders(&self) -> Option<Vec<u32>> {
        match (&self.row.lock, self.row.is_shared()) {
            (Some(lock), false) => Some(lock.living_holders()),
            (Some(_), true) => self.reading.clone(),
            (None, _) => None,
        }
    }

    /// Writes the changes of the vote. Returns the row.
    pub(super) fn close(self) -> Result<Row, Failure> {
        let Self { mut row, line, .. } = self;
        let (connection, now) = (line.transaction.connection, &line.transaction.now);
        let (name, had_waiters) = (line.name, line.had_waiters);
        row.line = line.close()?;
        row.write(connection, name, had_waiters, now)?;
        Ok(row)
    }
}

impl<'a> Record for NameRecord<'a> {
    type Line = NameLine<'a>;

    fn view(&self, owner: &[u8]) -> View<'_> {
        let Transaction { floor, now, .. } = self.line.transaction;
        let reads = self.row.is_shared() && owner_mode(owner) == Mode::Shared;
        let name = self.line.claim.name();
        let reader = match reads {
            true => self
                .line
                .query(|file| readers::find(file, name, owner, now)),
            false => None,
        };
        View {
            share: reader.map(|reader| reader.remaining),
            ..self.row.view(*floor, now.unix_us)
        }
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        let holders = process::describe(&claim.holders());
        self.store(write, claim.owner(), claim.token(), holders);
    }

    fn grant(&mut self, owner: &[u8], token: u64, write: Write) {
        let process = self.line.waiter(owner).and_then(|waiter| waiter.holders);
        match write {
            Write::Lock { remaining, .. } => self.row.grant(owner, process, token, remaining),
            write => self.store(write, owner, token, process),
        }
    }

    fn line(&mut self) -> &mut NameLine<'a> {
        &mut self.line
    }
}

impl<'a> NameLine<'a> {
    /// The line of this name, which may have waiters.
    pub(super) fn new(
        transaction: &'a Transaction<'a>,
        claim: &'a Claim,
        name: &'a Name,
        has_waiters: bool,
    ) -> Self {
        Self {
            transaction,
            claim,
            name,
            had_waiters: has_waiters,
            has_waiters: Cell::new(has_waiters),
            first: RefCell::default(),
            left: None,
            silent_removed: false,
            failure: RefCell::default(),
        }
    }

    /// Whether there may be waiters, after the vote; or the first failure.
    pub(super) fn close(self) -> Result<bool, Failure> {
        match self.failure.into_inner() {
            Some(failure) => Err(failure),
            None => Ok(self.has_waiters.get()),
        }
    }

    /// Accesses the file, unless an earlier access failed.
    pub(super) fn query<T: Default>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> T {
        let mut failure = self.failure.borrow_mut();
        if failure.is_some() {
            return T::default();
        }
        work(self.transaction.connection).unwrap_or_else(|why| {
            *failure = Some(why);
            T::default()
        })
    }

    fn waiter(&self, owner: &[u8]) -> Option<Waiter> {
        let first = self.first.borrow();
        let mut known = first.iter().chain(&self.left);
        match known.find(|waiter| *waiter.owner == *owner) {
            Some(waiter) => Some(waiter.clone()),
            None => self.query(|file| line::find(file, self.name, owner)),
        }
    }
}

impl Line for NameLine<'_> {
    fn is_empty(&self) -> bool {
        !self.has_waiters.get()
    }

    fn join(&mut self, claim: &Claim) {
        let Transaction {
            notifications, now, ..
        } = self.transaction;
        let address = notifications.address(claim.owner());
        self.query(|file| line::join(file, claim, &address, now));
        self.has_waiters.set(true);
        self.first.take();
    }

    fn leave(&mut self, owner: &[u8]) {
        self.query(|file| line::leave(file, self.name, owner));
        let first = self.first.take();
        self.left = first.filter(|first| *first.owner == *owner);
    }

    fn remove_silent(&mut self, before: u64) {
        let now = &self.transaction.now;
        // Once is enough: waiters that joined since then are not silent.
        if !std::mem::replace(&mut self.silent_removed, true) {
            let silence = Duration::from_micros(now.unix_us.saturating_sub(before));
            self.query(|file| line::remove_silent(file, self.name, silence, now));
            self.first.take();
        }
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            *first = self.query(|file| line::first(file, self.name, &self.transaction.now));
            self.has_waiters.set(first.is_some());
        }
        let first = first.as_ref()?;
        Some((first.owner.clone(), first.ticket))
    }

    fn front(&self, at_most: usize) -> Vec<Box<[u8]>> {
        self.query(|file| line::front(file, self.name, at_most))
    }

    fn is_order_known(&self, _owner: &[u8]) -> bool {
        // A store is never one of several nodes.
        true
    }

    fn before(&self, owner: &[u8]) -> u32 {
        let ticket = match *owner == *self.claim.owner() {
            true => Some(self.claim.token()),
            false => self.waiter(owner).map(|waiter| waiter.ticket),
        };
        let ticket = ticket.unwrap_or(u64::MAX);
        self.query(|file| line::before(file, self.name, ticket, owner))
    }

    fn notify(&mut self, owner: &[u8], news: News) -> bool {
        let Some(waiter) = self.waiter(owner) else {
            return false;
        };
        let notification = self
            .transaction
            .notifications
            .prepare(&waiter.address, news);
        let is_alive = notification.is_ok();
        let mut outgoing = self.transaction.outgoing.borrow_mut();
        outgoing.extend(notification.ok().flatten());
        is_alive
    }
}

//! One name during a vote: a [`Record`] on the rows of the file.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rusqlite::Connection;

use super::failure::Failure;
use super::line::{self, Waiter};
use super::notify::{Notification, Notifications};
use super::rows::{Now, Row};
use crate::node::rules::{View, Write};
use crate::node::{Claim, News, Record};

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
    transaction: &'a Transaction<'a>,
    claim: &'a Claim,
    row: Row,
    had_line: bool,
    /// The line is known to be empty.
    line_is_empty: Cell<bool>,
    /// The first in line, if known.
    first: RefCell<Option<Waiter>>,
    /// A waiter that was first and has left. It may still be notified.
    left: Option<Waiter>,
    silent_removed: Cell<bool>,
    /// The first failure. Then the transaction is rolled back.
    failure: RefCell<Option<Failure>>,
}

impl<'a> NameRecord<'a> {
    pub(super) fn open(
        transaction: &'a Transaction<'a>,
        claim: &'a Claim,
    ) -> Result<Self, Failure> {
        let row = Row::read(transaction.connection, claim.name(), &transaction.now)?;
        Ok(Self {
            transaction,
            claim,
            had_line: row.line,
            row,
            line_is_empty: Cell::new(false),
            first: RefCell::default(),
            left: None,
            silent_removed: Cell::new(false),
            failure: RefCell::default(),
        })
    }

    /// Writes the changes of the vote. Returns the row.
    pub(super) fn close(self) -> Result<Row, Failure> {
        let (transaction, mut row) = (self.transaction, self.row);
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        row.line &= !self.line_is_empty.get();
        row.write(
            transaction.connection,
            self.claim.name(),
            self.had_line,
            &transaction.now,
        )?;
        Ok(row)
    }

    /// Accesses the file, unless an earlier access failed.
    fn query<T: Default>(&self, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> T {
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
            None => self.query(|file| line::find(file, self.claim.name(), owner)),
        }
    }
}

impl Record for NameRecord<'_> {
    fn view(&self) -> View<'_> {
        self.row
            .view(self.transaction.floor, self.transaction.now.unix_us)
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        self.row.apply(write, claim);
    }

    fn grant(&mut self, owner: &[u8], token: u64, time: Duration) {
        let process = self.waiter(owner).and_then(|waiter| waiter.holders);
        self.row.grant(owner, process, token, time);
    }

    fn has_line(&self) -> bool {
        self.row.line && !self.line_is_empty.get()
    }

    fn join(&mut self, claim: &Claim) {
        let Transaction {
            notifications, now, ..
        } = self.transaction;
        let address = notifications.address(claim.owner());
        self.query(|file| line::join(file, claim, &address, now));
        self.row.line = true;
        self.line_is_empty.set(false);
        self.first.take();
    }

    fn leave(&mut self, owner: &[u8]) {
        self.query(|file| line::leave(file, self.claim.name(), owner));
        let first = self.first.take();
        self.left = first.filter(|first| *first.owner == *owner);
    }

    fn remove_silent(&mut self, before: u64) {
        let now = &self.transaction.now;
        // Once is enough: waiters that joined since then are not silent.
        if !self.silent_removed.replace(true) {
            let silence = Duration::from_micros(now.unix_us.saturating_sub(before));
            self.query(|file| line::remove_silent(file, self.claim.name(), silence, now));
            self.first.take();
        }
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            *first = self.query(|file| line::first(file, self.claim.name(), &self.transaction.now));
            self.line_is_empty.set(first.is_none());
        }
        let first = first.as_ref()?;
        Some((first.owner.clone(), first.ticket))
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
        self.query(|file| line::before(file, self.claim.name(), ticket, owner))
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

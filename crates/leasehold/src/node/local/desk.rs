//! One name at the moment of a vote: a [`Record`] over the rows of the file.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rusqlite::Connection;

use super::failure::Failure;
use super::line::{self, Waiter};
use super::post::{Letter, Post};
use super::rows::{Now, Row};
use crate::node::rules::{View, Write};
use crate::node::{Claim, News, Record};

/// What all votes of a transaction share.
pub(super) struct Office<'a> {
    pub(super) connection: &'a Connection,
    pub(super) now: Now,
    pub(super) floor: u64,
    pub(super) post: &'a Post,
    /// What to tell, once the transaction has taken effect.
    ///
    /// Not before: a failed commit has reserved nothing, and who is told to ask at once would
    /// find the file locked, and sleep. Whether somebody is dead shows before anything is
    /// sent. If this process dies between the two, those who wait ask by themselves.
    pub(super) letters: RefCell<Vec<Letter>>,
}

/// One name.
pub(super) struct Desk<'a> {
    office: &'a Office<'a>,
    claim: &'a Claim,
    row: Row,
    had_line: bool,
    /// Nobody stands in line any more.
    deserted: Cell<bool>,
    /// The first in line, if that is known.
    first: RefCell<Option<Waiter>>,
    /// One that was first and has left: it may yet be told why.
    left: Option<Waiter>,
    buried: Cell<bool>,
    /// What went wrong: then nothing of this vote counts.
    failure: RefCell<Option<Failure>>,
}

impl<'a> Desk<'a> {
    pub(super) fn open(office: &'a Office<'a>, claim: &'a Claim) -> Result<Self, Failure> {
        let row = Row::read(office.connection, claim.name(), &office.now)?;
        Ok(Self {
            office,
            claim,
            had_line: row.line,
            row,
            deserted: Cell::new(false),
            first: RefCell::default(),
            left: None,
            buried: Cell::new(false),
            failure: RefCell::default(),
        })
    }

    /// Writes what the vote has changed. What is known of the name from now on.
    pub(super) fn close(self) -> Result<Row, Failure> {
        let (office, mut row) = (self.office, self.row);
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        row.line &= !self.deserted.get();
        row.write(
            office.connection,
            self.claim.name(),
            self.had_line,
            &office.now,
        )?;
        Ok(row)
    }

    /// Does something with the file, unless something went wrong before.
    fn attempt<T: Default>(&self, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> T {
        let mut failure = self.failure.borrow_mut();
        if failure.is_some() {
            return T::default();
        }
        work(self.office.connection).unwrap_or_else(|why| {
            *failure = Some(why);
            T::default()
        })
    }

    fn waiter(&self, owner: &[u8]) -> Option<Waiter> {
        let first = self.first.borrow();
        let mut known = first.iter().chain(&self.left);
        match known.find(|waiter| *waiter.owner == *owner) {
            Some(waiter) => Some(waiter.clone()),
            None => self.attempt(|file| line::find(file, self.claim.name(), owner)),
        }
    }
}

impl Record for Desk<'_> {
    fn view(&self) -> View<'_> {
        self.row.view(self.office.floor, self.office.now.unix_us)
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        self.row.apply(write, claim);
    }

    fn grant(&mut self, owner: &[u8], token: u64, time: Duration) {
        let process = self.waiter(owner).and_then(|waiter| waiter.holders);
        self.row.grant(owner, process, token, time);
    }

    fn has_line(&self) -> bool {
        self.row.line && !self.deserted.get()
    }

    fn join(&mut self, claim: &Claim) {
        let Office { post, now, .. } = self.office;
        let address = post.address(claim.owner());
        self.attempt(|file| line::join(file, claim, &address, now));
        self.row.line = true;
        self.deserted.set(false);
        self.first.take();
    }

    fn leave(&mut self, owner: &[u8]) {
        self.attempt(|file| line::leave(file, self.claim.name(), owner));
        let first = self.first.take();
        self.left = first.filter(|first| *first.owner == *owner);
    }

    fn bury(&mut self, before: u64) {
        let now = &self.office.now;
        // Once is enough: whoever came since then has asked.
        if !self.buried.replace(true) {
            let silence = Duration::from_micros(now.unix_us.saturating_sub(before));
            self.attempt(|file| line::bury(file, self.claim.name(), silence, now));
            self.first.take();
        }
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            *first = self.attempt(|file| line::first(file, self.claim.name(), &self.office.now));
            self.deserted.set(first.is_none());
        }
        let first = first.as_ref()?;
        Some((first.owner.clone(), first.ticket))
    }

    fn is_settled(&self, _owner: &[u8]) -> bool {
        // A store is never one of several nodes.
        true
    }

    fn before(&self, owner: &[u8]) -> u32 {
        let ticket = match *owner == *self.claim.owner() {
            true => Some(self.claim.token()),
            false => self.waiter(owner).map(|waiter| waiter.ticket),
        };
        let ticket = ticket.unwrap_or(u64::MAX);
        self.attempt(|file| line::before(file, self.claim.name(), ticket, owner))
    }

    fn tell(&mut self, owner: &[u8], news: News) -> bool {
        let Some(waiter) = self.waiter(owner) else {
            return false;
        };
        let letter = self.office.post.write(&waiter.address, news);
        let lives = letter.is_ok();
        let mut letters = self.office.letters.borrow_mut();
        letters.extend(letter.ok().flatten());
        lives
    }
}

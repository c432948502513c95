//! A lease, as it is reported and traced.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Span;

use super::guard::Lease;
use crate::base::error::Loss;
use crate::observe::End;
use crate::observe::sight::{EndedLease, Subject};

/// The lock of a lease in events, and the span of the lease.
pub(crate) struct Holding {
    pub(crate) subject: Option<Subject>,
    /// It is closed when the lease ends.
    span: Mutex<Span>,
}

impl Holding {
    pub(crate) fn new(subject: Option<Subject>, span: Span) -> Box<Self> {
        let span = Mutex::new(span);
        Box::new(Self { subject, span })
    }

    /// For the lease that continues this one.
    pub(crate) fn take(&self) -> Box<Self> {
        let span = std::mem::replace(&mut *self.span(), Span::none());
        Self::new(self.subject.clone(), span)
    }

    /// The lease has ended.
    pub(crate) fn end(&self, end: End) {
        let span = std::mem::replace(&mut *self.span(), Span::none());
        span.record("outcome", end.as_str());
    }

    /// The span of the lease.
    pub(crate) fn current(&self) -> Span {
        self.span().clone()
    }

    fn span(&self) -> MutexGuard<'_, Span> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that a call has closed. Dropping this reports how it ended.
pub(super) struct Ending<'a> {
    lease: &'a Lease,
    end: End,
    loss: Option<Loss>,
    held: Duration,
    continues: bool,
}

impl<'a> Ending<'a> {
    /// Create this after the lease was closed, and let it report after the release was sent.
    pub(super) fn new(lease: &'a Lease, end: End) -> Self {
        Self {
            lease,
            end,
            loss: None,
            held: lease.held.held_for(&lease.core.clock),
            continues: false,
        }
    }

    /// It turns out that the lease had been lost.
    pub(super) fn lost(&mut self, why: Loss) {
        self.end = self.lease.held.end_by(why);
        self.loss = Some(why);
    }

    /// Another lease continues this one.
    pub(super) fn continues(mut self) {
        self.continues = true;
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if self.continues {
            return;
        }
        let held = &self.lease.held;
        let ended = EndedLease {
            token: held.token,
            end: self.end,
            loss: self.loss,
            held: self.held,
        };
        held.end_span(self.end);
        self.lease.core.sight().ended(held.subject(), ended);
    }
}

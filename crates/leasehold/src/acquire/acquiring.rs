//! A call to acquire a lock, as it is counted, reported and traced.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Span;
use tracing::level_filters::LevelFilter;

use crate::Lease;
use crate::base::clock::Moment;
use crate::base::error::{Error, Refusal};
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{Goal, Options};
use crate::lease::holding::Holding;
use crate::observe::sight::{Finished, Subject};
use crate::observe::{HandOver, Outcome};

/// Whether spans are recorded at all. Without a subscriber this is all that they cost.
pub(crate) fn is_traced() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// A call to acquire a lock. Dropping it before it is [finished](Self::finish) reports that the call
/// was cancelled.
pub(crate) struct Acquiring<'a> {
    core: &'a Core,
    key: &'a Name,
    mode: Mode,
    pub(crate) started: Moment,
    goal: Goal,
    may_wait: bool,
    contended: AtomicBool,
    /// Nodes said that the lock is taken.
    contended_on_nodes: AtomicBool,
    warned: AtomicBool,
    /// `None` if nothing observes the call.
    seen: Option<&'a Seen>,
    hand_over: Option<HandOver>,
    is_finished: bool,
}

/// A call as observers and spans see it. In a box, because most programs have neither.
pub(crate) struct Seen {
    name: Name,
    subject: Option<Subject>,
    span: Span,
    /// The span of the caller.
    outer: Span,
}

impl<'a> Acquiring<'a> {
    pub(crate) fn begin(
        core: &'a Core,
        (key, mode): (&'a Name, Mode),
        options: &Options,
        seen: Option<&'a Seen>,
    ) -> Self {
        Self {
            core,
            key,
            mode,
            started: core.clock.now(),
            goal: options.goal,
            may_wait: options.may_wait(),
            contended: AtomicBool::new(false),
            contended_on_nodes: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            seen,
            hand_over: None,
            is_finished: false,
        }
    }

    /// Notes that the lock is taken, and the call waits if it may. Counts once.
    pub(crate) fn contend(&self) {
        if !self.contended.swap(true, Ordering::Relaxed) {
            let sight = self.core.sight();
            sight.contended();
            if self.may_wait {
                sight.waiting(self.subject());
            }
        }
    }

    /// Notes that nodes said that the lock is taken.
    pub(crate) fn contend_on_nodes(&self) {
        self.contended_on_nodes.store(true, Ordering::Relaxed);
        self.contend();
    }

    pub(crate) fn is_contended_on_nodes(&self) -> bool {
        self.contended_on_nodes.load(Ordering::Relaxed)
    }

    /// Notes a refusal: after a long wait, logs who holds the lock.
    pub(crate) fn refused(&self, refusal: &Refusal, now: Moment) {
        if self.is_slow(now) {
            let place = refusal.place();
            match refusal.holder() {
                Some(holder) => self.warn(now, &format!("held by {holder}"), place),
                None => self.warn(now, "no node named a holder", place),
            }
        }
    }

    /// When the call has waited so long that it is worth a warning. `None` if nothing would receive it,
    /// and for candidates of an election, which are meant to stand by.
    pub(crate) fn slow_at(&self) -> Option<Moment> {
        if self.goal == Goal::Lead {
            return None;
        }
        let after = self.core.sight().warn_slow_acquire?;
        (LevelFilter::current() >= LevelFilter::WARN).then(|| self.started + after)
    }

    /// Logs that the call still waits for another task of its process.
    pub(crate) fn warn_of_task(&self) {
        let now = self.core.clock.now();
        if self.is_slow(now) {
            self.warn(now, "another task of this process holds or wants it", None);
        }
    }

    fn is_slow(&self, now: Moment) -> bool {
        let slow_at = self.slow_at();
        slow_at.is_some_and(|at| now >= at) && !self.warned.swap(true, Ordering::Relaxed)
    }

    fn warn(&self, now: Moment, why: &str, ahead: Option<u32>) {
        let name = self.core.event_name(self.key);
        let waited = now.saturating_duration_since(self.started);
        let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        tracing::warn!(%name, ?waited, why, ahead, "still waiting for a lock");
    }

    /// Notes that the lease was handed over.
    pub(crate) fn handed_over(&mut self, by: HandOver) {
        self.hand_over = Some(by);
    }

    fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// What a lease of this call takes along. Its span belongs to the caller's span, not to that of the
    /// call, which ends before.
    pub(crate) fn holding(&self, token: u64) -> Option<Box<Holding>> {
        let seen = self.seen?;
        let span = match seen.span.is_disabled() {
            true => Span::none(),
            false => {
                let span = tracing::info_span!(
                    parent: &seen.outer,
                    "leasehold.hold",
                    name = %seen.name,
                    token,
                    outcome = tracing::field::Empty
                );
                span.follows_from(&seen.span);
                span
            }
        };
        Some(Holding::new(seen.subject.clone(), span))
    }

    /// Reports how the call ended.
    pub(crate) fn finish(&mut self, acquired: &Result<Lease, Error>) {
        let (outcome, token) = match acquired {
            Ok(lease) => (Outcome::Granted, Some(lease.token())),
            Err(error) => (Outcome::of_error(error, self.goal), None),
        };
        self.report(outcome, token);
    }

    /// Reports a lease that the caller does not get.
    pub(crate) fn granted(&mut self, lease: &Lease) {
        self.report(Outcome::Granted, Some(lease.token()));
    }

    fn report(&mut self, outcome: Outcome, token: Option<u64>) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        if let Some(seen) = self.seen {
            seen.span.record("outcome", outcome.as_str());
            token.map(|token| seen.span.record("token", token));
        }
        let call = Finished {
            started: self.started,
            mode: self.mode,
            outcome,
            token,
            contended: self.is_contended(),
            did_wait: self.is_contended() && self.may_wait,
            hand_over: self.hand_over,
        };
        self.core.sight().acquired(self.subject(), call);
    }

    fn subject(&self) -> Option<&Subject> {
        self.seen?.subject.as_ref()
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.report(Outcome::Cancelled, None);
    }
}

impl Seen {
    /// `None` if there are neither observers nor spans.
    pub(crate) fn of(core: &Core, key: &Name, mode: Mode, options: &Options) -> Option<Box<Self>> {
        let is_seen = core.sight().is_observed() || is_traced();
        is_seen.then(|| Self::new(core, key, mode, options))
    }

    /// Does the work of a call in its span.
    pub(crate) fn enter<F: Future>(
        seen: Option<&Self>,
        mut work: Pin<&mut F>,
    ) -> impl Future<Output = F::Output> {
        poll_fn(move |cx| match seen {
            None => work.as_mut().poll(cx),
            Some(seen) => seen.span.in_scope(|| work.as_mut().poll(cx)),
        })
    }

    fn new(core: &Core, key: &Name, mode: Mode, options: &Options) -> Box<Self> {
        let name = core.event_name(key);
        let span = match is_traced() {
            false => Span::none(),
            true => tracing::info_span!(
                "leasehold.acquire",
                %name,
                ?mode,
                token = tracing::field::Empty,
                outcome = tracing::field::Empty
            ),
        };
        Box::new(Self {
            subject: core.sight().subject(options.class.as_ref(), &name),
            outer: match span.is_disabled() {
                true => Span::none(),
                false => Span::current(),
            },
            name,
            span,
        })
    }
}

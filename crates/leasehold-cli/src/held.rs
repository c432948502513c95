//! The leases that a command runs under.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Lease, Moment};

/// One lease or several, in the order in which their names were given. They count as one: they end
/// when the first of them ends.
#[derive(Clone)]
pub(crate) struct Held<'a>(Vec<&'a Lease>);

impl<'a> Held<'a> {
    pub(crate) fn one(lease: &'a Lease) -> Self {
        Self(vec![lease])
    }

    /// At least one lease.
    pub(crate) fn all(leases: impl IntoIterator<Item = &'a Lease>) -> Self {
        Self(leases.into_iter().collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Lease> {
        self.0.iter().copied()
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = u64> {
        self.iter().map(Lease::token)
    }

    /// Until when all leases are valid.
    pub(crate) fn deadline(&self) -> Moment {
        let deadlines = self.iter().map(Lease::deadline);
        deadlines.min().unwrap_or_else(Moment::now)
    }

    /// How long all leases are still valid.
    pub(crate) fn remaining(&self) -> Duration {
        self.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// The lease that has ended or ends first.
    pub(crate) fn first_to_end(&self) -> Option<&'a Lease> {
        self.iter()
            .min_by_key(|lease| (lease.is_valid(), lease.deadline()))
    }

    /// Resolves when one of the leases is lost, with that lease. Never resolves without leases.
    pub(crate) fn lost(&self) -> impl Future<Output = &'a Lease> + use<'a> {
        let mut all: Vec<_> = self
            .iter()
            .map(|lease| (lease, Box::pin(lease.lost())))
            .collect();
        poll_fn(move |cx| {
            let mut lost = all.iter_mut().filter_map(|(lease, lost)| {
                let lost = lost.as_mut().poll(cx);
                lost.is_ready().then_some(*lease)
            });
            lost.next().map_or(Poll::Pending, Poll::Ready)
        })
    }

    pub(crate) fn remove(&mut self, lease: &Lease) {
        self.0.retain(|held| !std::ptr::eq(*held, lease));
    }
}

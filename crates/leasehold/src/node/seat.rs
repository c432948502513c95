//! What a claim has to do with a semaphore.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::name::Name;

/// How many permits a node looks at when it searches for one that is free. Every search begins
/// elsewhere.
pub const SEARCHED: u32 = 64;

/// The semaphore of a [`Claim`](super::Claim).
#[derive(Debug)]
pub struct Seat {
    semaphore: Name,
    /// The permit that the claim is for; `None`: the claim is a ticket.
    permit: Option<u32>,
    /// How many permits there are; `None` if the claim is only to be released.
    permits: Option<u32>,
    /// The owner value of the client's ticket.
    ticket: Option<Box<[u8]>>,
    /// A release of the ticket sets the number of permits.
    resizes: bool,
    search_from: AtomicU32,
}

impl Seat {
    /// The seat of a claim with this name, if that is the key of a permit. Enough for a release.
    pub(super) fn of_permit(name: &Name) -> Option<Self> {
        let (semaphore, permit) = name.as_permit()?;
        Some(Self {
            semaphore,
            permit: Some(permit),
            permits: None,
            ticket: None,
            resizes: false,
            search_from: AtomicU32::new(permit),
        })
    }

    /// The seat of a claim for a permit of a semaphore with this many permits. `ticket` is the owner
    /// value of the client's place in line, if it has one.
    pub(crate) fn permit(
        semaphore: Name,
        permits: u32,
        permit: u32,
        ticket: Option<&[u8]>,
    ) -> Self {
        Self {
            semaphore,
            permit: Some(permit),
            permits: Some(permits),
            ticket: ticket.map(Into::into),
            resizes: false,
            search_from: AtomicU32::new(permit),
        }
    }

    /// The seat of a claim that waits in line.
    pub(crate) fn ticket(semaphore: Name, permits: u32) -> Self {
        Self {
            semaphore,
            permit: None,
            permits: Some(permits),
            ticket: None,
            resizes: false,
            search_from: AtomicU32::new(0),
        }
    }

    /// The seat of a claim whose release sets the number of permits.
    pub(crate) fn resizing(semaphore: Name, permits: u32) -> Self {
        Self {
            resizes: true,
            ..Self::ticket(semaphore, permits)
        }
    }

    /// The key of the semaphore: the name of its line.
    #[must_use]
    pub fn semaphore(&self) -> &Name {
        &self.semaphore
    }

    /// The number of the permit that the claim is for; `None`: the claim is a ticket.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.permit
    }

    /// How many permits there are; `None` if the claim is only to be released.
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        self.permits
    }

    /// Whether a release sets the number of permits.
    #[must_use]
    pub fn resizes(&self) -> bool {
        self.resizes
    }

    /// The owner value under which the client stands in line, if it does. `owner` is that of the claim.
    #[must_use]
    pub fn place<'a>(&'a self, owner: &'a [u8]) -> Option<&'a [u8]> {
        match self.permit {
            None => Some(owner),
            Some(_) => self.ticket.as_deref(),
        }
    }

    /// Makes the next search begin at some permit. All nodes begin at the same one, so that they find
    /// the same.
    pub(crate) fn search_from(&self, seed: u64) {
        let permits = u64::from(self.permits.unwrap_or(1).max(1));
        let from = u32::try_from(seed % permits).unwrap_or(0);
        self.search_from.store(from, Ordering::Relaxed);
    }

    /// The permits to search, in order. If their number is unknown, only that of the claim.
    pub fn searched(&self) -> impl Iterator<Item = u32> + use<> {
        let from = self.search_from.load(Ordering::Relaxed);
        let permits = self.permits;
        let count = permits.map_or(1, |permits| permits.min(SEARCHED));
        (0..count).map(move |step| match permits {
            Some(permits) => (from + step) % permits.max(1),
            None => from,
        })
    }

    /// The same seat for another owner value of the ticket, for nodes that see other owner values than
    /// the clients.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ticket(self, ticket: impl Into<Box<[u8]>>) -> Self {
        Self {
            ticket: Some(ticket.into()),
            ..self
        }
    }

    /// The same, for nodes that make a claim of their own for each request.
    #[doc(hidden)]
    #[must_use]
    pub fn copied(&self) -> Self {
        Self {
            semaphore: self.semaphore.clone(),
            permit: self.permit,
            permits: self.permits,
            ticket: self.ticket.clone(),
            resizes: self.resizes,
            search_from: AtomicU32::new(self.search_from.load(Ordering::Relaxed)),
        }
    }
}

//! Notifying waiters, so that they need not ask again and again.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What a waiter is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// The lock is free here, and only this waiter can acquire it: it should send ACQUIRE.
    YourTurn,
    /// The lock was granted to it here, for 2 s.
    Granted,
    /// This permit of the semaphore is free here, and only this waiter can acquire it.
    Free(u32),
    /// It should send WAIT again, because the earlier answer of the node may be outdated.
    AskAgain,
}

impl News {
    /// Writes the news for messages: a letter, and the number of the permit if there is one.
    #[cfg_attr(
        not(any(feature = "local", all(feature = "redis", feature = "doctor"))),
        expect(dead_code)
    )]
    pub(crate) fn to_text(self) -> String {
        match self {
            Self::YourTurn => "T".to_owned(),
            Self::Granted => "G".to_owned(),
            Self::AskAgain => "A".to_owned(),
            Self::Free(permit) => format!("F{permit}"),
        }
    }

    /// Reads the news from a letter and, if it is about a permit, its number.
    #[cfg_attr(not(any(feature = "local", feature = "redis")), expect(dead_code))]
    pub(crate) fn read(letter: u8, permit: &[u8]) -> Option<Self> {
        match letter {
            b'T' => Some(Self::YourTurn),
            b'G' => Some(Self::Granted),
            b'A' => Some(Self::AskAgain),
            b'F' => Some(Self::Free(std::str::from_utf8(permit).ok()?.parse().ok()?)),
            _ => None,
        }
    }
}

/// Receives the notifications for a waiter.
pub(crate) trait Listener: Send + Sync {
    /// The node with this index has news.
    fn notified(&self, node: usize, news: News);
}

/// Notifies one waiter, on behalf of one node.
///
/// [`News::Granted`] counts as the node's vote, so it must reach no other claim than the one to which
/// the lock was granted. The rest are hints, after which the waiter sends a request. A notification
/// that comes while the waiter is busy is not lost.
#[derive(Clone)]
pub struct Notifier {
    listener: Arc<dyn Listener>,
    node: usize,
}

impl Notifier {
    pub(crate) fn new(listener: Arc<dyn Listener>, node: usize) -> Self {
        Self { listener, node }
    }

    /// Notifies the waiter.
    pub fn notify(&self, news: News) {
        self.listener.notified(self.node, news);
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

/// A node's promise to notify a waiter. Ends when dropped.
#[must_use = "a watch that is dropped has ended"]
pub struct Watch {
    _guard: Box<dyn Any + Send + Sync>,
}

impl Watch {
    /// Creates a watch that drops `guard` when it ends.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self {
            _guard: Box::new(guard),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

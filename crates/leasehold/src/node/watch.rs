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
    /// The lock was granted to it here, for [`HANDED_OVER`](super::HANDED_OVER).
    Granted,
    /// It should send WAIT again: what the node said before may no longer be so.
    AskAgain,
}

impl News {
    /// Every kind, and the letter that stands for it in messages.
    const LETTERS: [(Self, u8); 3] = [
        (Self::YourTurn, b'T'),
        (Self::Granted, b'G'),
        (Self::AskAgain, b'A'),
    ];

    /// The letter that stands for it in messages.
    #[cfg_attr(not(feature = "local"), expect(dead_code))]
    pub(crate) fn letter(self) -> char {
        let letter = Self::LETTERS.iter().find(|(news, _)| *news == self);
        letter.map_or('A', |(_, letter)| char::from(*letter))
    }

    /// What a letter stands for.
    #[cfg_attr(not(any(feature = "local", feature = "redis")), expect(dead_code))]
    pub(crate) fn from_letter(letter: u8) -> Option<Self> {
        let news = Self::LETTERS.iter().find(|(_, known)| *known == letter);
        news.map(|(news, _)| *news)
    }
}

/// Hears what nodes notify a waiter of.
pub(crate) trait Listener: Send + Sync {
    /// The node with this index has news.
    fn notified(&self, node: usize, news: News);
}

/// What a node notifies one waiter with.
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
    /// A watch that ends by dropping `guard`.
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

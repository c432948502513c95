//! Being told that it is one's turn, instead of asking again and again.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::record::News;

/// What a node rings when it has news for one who waits.
///
/// [`News::Granted`] counts as the node's vote, so it must reach nobody else than the one to whom
/// the lock was granted. The rest are hints: whoever hears them asks like anybody else. A ring
/// that nobody listens to at the moment is heard by the next who does.
#[derive(Clone)]
pub struct Bell {
    ears: Arc<Ears>,
    node: usize,
}

impl Bell {
    /// Tells the one who waits.
    pub fn ring(&self, news: News) {
        self.ears.hear(self.node, news);
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

/// What one who waits has heard from its nodes, of which there are at most 64.
#[derive(Default)]
pub(crate) struct Ears {
    /// The nodes that have reserved or granted the lock, one bit each.
    turns: AtomicU64,
    /// Those that have granted it.
    granted: AtomicU64,
    /// A bell has told of one more of them.
    rung: AtomicBool,
    /// What was known is no longer so.
    again: AtomicBool,
    heard: Notify,
}

impl Ears {
    pub(crate) fn bell(self: &Arc<Self>, node: usize) -> Bell {
        let ears = Arc::clone(self);
        Bell { ears, node }
    }

    fn hear(&self, node: usize, news: News) {
        match news {
            // Told again, it is no news: asking again for each would never end.
            News::YourTurn if !self.is_turn(node) => return,
            News::Granted if !self.grant(node) => return,
            News::YourTurn | News::Granted => self.rung.store(true, Ordering::Release),
            News::AskAgain => {
                self.turns.fetch_and(!(1 << node), Ordering::AcqRel);
                self.again.store(true, Ordering::Release);
            }
        }
        self.heard.notify_one();
    }

    /// The node says that it is the listener's turn. `false` if it has said so before.
    fn is_turn(&self, node: usize) -> bool {
        set(&self.turns, node)
    }

    /// The node says that it has granted the lock. `false` if it has said so before.
    fn grant(&self, node: usize) -> bool {
        let news = set(&self.granted, node);
        self.is_turn(node);
        news
    }

    /// The node has answered that it is the listener's turn, or that this was so and the lock
    /// is its.
    pub(crate) fn answered(&self, node: usize, granted: bool) {
        let news = match granted {
            true => self.grant(node),
            false => self.is_turn(node),
        };
        if news {
            self.heard.notify_one();
        }
    }

    /// How many nodes have said that it is the listener's turn.
    pub(crate) fn turns(&self) -> usize {
        let turns = self.turns.load(Ordering::Acquire) | self.granted.load(Ordering::Acquire);
        turns.count_ones() as usize
    }

    /// Whether this node has granted the lock to the listener.
    pub(crate) fn is_granted_by(&self, node: usize) -> bool {
        self.granted.load(Ordering::Acquire) >> node & 1 == 1
    }

    /// Whether a bell has told of one more node since this was asked last.
    pub(crate) fn take_rung(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Whether what the nodes have answered since [`clear`](Self::clear) may no longer be so.
    pub(crate) fn is_to_ask(&self) -> bool {
        self.again.load(Ordering::Acquire)
    }

    /// Forgets what was heard, before everybody is asked again; but not who has granted the
    /// lock, which is not taken back.
    pub(crate) fn clear(&self) {
        self.turns.store(0, Ordering::Release);
        self.rung.store(false, Ordering::Release);
        self.again.store(false, Ordering::Release);
    }

    /// Resolves when something is or has been heard.
    ///
    /// Cancel safety: what came meanwhile is kept.
    pub(crate) async fn heard(&self) {
        self.heard.notified().await;
    }
}

/// Sets a bit; `false` if it was set.
fn set(bits: &AtomicU64, node: usize) -> bool {
    bits.fetch_or(1 << node, Ordering::AcqRel) >> node & 1 == 0
}

/// A node's promise to ring a [`Bell`]. Ends when dropped.
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
        f.write_str("Watch")
    }
}

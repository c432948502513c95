//! Being told that a lock may be free, instead of asking again and again.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

/// What a node rings when a lock that somebody waits for may be free.
///
/// Ringing is a hint: whoever hears it asks for the lock like anybody else. A ring that
/// nobody listens to at the moment is heard by the next who does; several count as one.
#[derive(Clone, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Wakes the waiter.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Resolves when the bell is or has been rung.
    ///
    /// Cancel safety: a ring that came meanwhile is kept.
    pub(crate) async fn rung(&self) {
        self.0.notified().await;
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
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

//! Callers that drop a future half-way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Polls a future a given number of times, and then drops it.
pub struct Cancel<F> {
    future: Option<Pin<Box<F>>>,
    polls_left: u32,
}

impl<F: Future> Cancel<F> {
    /// Drops `future` after `polls` polls that returned `Pending`.
    pub fn after(polls: u32, future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
            polls_left: polls,
        }
    }
}

impl<F: Future> Future for Cancel<F> {
    /// `None` if it was dropped.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls_left > 0
            && let Some(future) = &mut self.future
            && let Poll::Ready(value) = future.as_mut().poll(cx)
        {
            self.future = None;
            return Poll::Ready(Some(value));
        }
        self.polls_left = self.polls_left.saturating_sub(1);
        if self.polls_left > 0 {
            return Poll::Pending;
        }
        self.future = None;
        Poll::Ready(None)
    }
}

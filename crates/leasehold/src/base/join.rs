//! Several futures at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Waits for all futures. They are first polled in order, so that what they send goes out together.
///
/// Cancel safety: dropping the future drops all of them.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Waits for the first of the futures. Never resolves if there are none.
///
/// Cancel safety: dropping the future drops all of them.
pub(crate) async fn any<F: Future>(futures: impl IntoIterator<Item = F>) -> F::Output {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|cx| {
        let mut polls = running.iter_mut().map(|future| future.as_mut().poll(cx));
        polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn after(ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    #[tokio::test(start_paused = true)]
    async fn results_keep_the_order_of_the_futures() {
        assert_eq!(all([30, 10, 20].map(after)).await, [30, 10, 20]);
        assert_eq!(any([30, 10, 20].map(after)).await, 10);
        assert!(all([0; 0].map(after)).await.is_empty());
    }
}

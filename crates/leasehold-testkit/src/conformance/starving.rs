//! Nobody starves while others never pause.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::Lease;
use tokio::task::JoinSet;

use super::{Case, pause};

const CONTENDERS: usize = 8;
const TURNS: usize = 15;

/// The longest wait, in turns of others between a call and its lease. Under steady load the mean
/// wait is about one turn of each contender, so this is three times the mean.
const MOST: usize = 3 * CONTENDERS;

/// Waits are counted in turns, and not in time, so that a slow machine makes none longer. It may
/// still stop a caller before its request is sent. Of several attempts one must succeed.
async fn nobody_starves<A, F>(contenders: Vec<A>)
where
    A: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Lease> + Send,
{
    let mut longest = Vec::new();
    for _ in 0..3 {
        longest.push(longest_wait(&contenders).await);
        if longest.last() <= Some(&MOST) {
            return;
        }
    }
    panic!("the longest waits are {longest:?} turns, and must be at most {MOST}");
}

/// Everybody acquires and releases, at once and without a pause.
async fn longest_wait<A, F>(contenders: &[A]) -> usize
where
    A: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Lease> + Send,
{
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for acquire in contenders {
        let (acquire, served) = (acquire.clone(), Arc::clone(&served));
        tasks.spawn(async move {
            let mut longest = 0;
            for _ in 0..TURNS {
                let before = served.load(Ordering::SeqCst);
                let lease = acquire().await;
                longest = longest.max(served.fetch_add(1, Ordering::SeqCst) - before);
                pause(3).await;
                lease.release().await;
            }
            longest
        });
    }
    tasks.join_all().await.into_iter().max().unwrap_or(0)
}

/// Two of eight clients write. Neither the readers nor the writers are overtaken for long.
pub async fn no_reader_and_no_writer_starves(case: Case) {
    let mut contenders = Vec::new();
    for index in 0..CONTENDERS {
        let lock = case.client().await.rw_lock("a");
        contenders.push(move || {
            let lock = lock.clone();
            async move {
                let lease = if index % 4 == 0 {
                    lock.write().await
                } else {
                    lock.read().await
                };
                lease.expect("a lease")
            }
        });
    }
    nobody_starves(contenders).await;
}

/// Eight clients share two permits.
pub async fn nobody_starves_for_a_permit(case: Case) {
    let mut contenders = Vec::new();
    for _ in 0..CONTENDERS {
        let semaphore = case.client().await.semaphore("a", 2);
        contenders.push(move || {
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.expect("a lease") }
        });
    }
    nobody_starves(contenders).await;
}

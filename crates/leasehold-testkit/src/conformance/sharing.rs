//! Several readers or one writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Error, Invalid, Lease, Moment, Released, RwLock};

use super::{Case, LONG, RENEWED, SHORT, is_taken, pause, taken};

async fn reading(lock: &RwLock) -> Lease {
    lock.try_read().await.expect("a majority").expect("free")
}

async fn is_unreadable(lock: &RwLock) -> bool {
    lock.try_read().await.expect("a majority").is_none()
}

async fn is_unwritable(lock: &RwLock) -> bool {
    lock.try_write().await.expect("a majority").is_none()
}

/// Readers of one client and of another hold the lock together. No writer does, and no mutex.
pub async fn readers_share_the_lock(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let leases = [
        reading(&one.rw_lock("a")).await,
        reading(&one.rw_lock("a")).await,
        reading(&two.rw_lock("a")).await,
    ];
    assert!(leases.iter().all(|lease| lease.is_shared()));
    assert!(case.locked("a") > 0);
    for lease in leases {
        assert!(is_unwritable(&two.rw_lock("a")).await);
        assert!(is_taken(&one.mutex("a")).await);
        assert_eq!(lease.release().await, Released::Released);
    }
    case.until_free("a").await;
    drop(taken(&one.mutex("a")).await);
}

/// A writer, which is a holder of the mutex, excludes readers.
pub async fn a_writer_excludes_readers(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let writing = one.rw_lock("a").write().await.expect("a lease");
    assert!(!writing.is_shared());
    assert!(is_unreadable(&one.rw_lock("a")).await);
    assert!(is_unreadable(&two.rw_lock("a")).await);
    assert!(is_unwritable(&two.rw_lock("a")).await);
    writing.release().await;
    let holding = taken(&one.mutex("a")).await;
    assert!(is_unreadable(&two.rw_lock("a")).await);
    let timeout = Duration::from_millis(50);
    let late = two.rw_lock("a").read_timeout(timeout).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    holding.release().await;
    drop(reading(&two.rw_lock("a")).await);
}

/// A lock of another library excludes readers, also one whose value looks like a marker.
pub async fn readers_respect_foreign_owners(case: Case) {
    let client = case.client().await;
    for (name, value) in [("a", &b"3f2a9c0e5b7d4f61"[..]), ("b", b"shared:mine")] {
        let ttl = Some(Duration::from_secs(300));
        case.deployment.set_foreign(name.as_bytes(), value, ttl);
        assert!(is_unreadable(&client.rw_lock(name)).await);
        let values = case.deployment.values(name.as_bytes());
        assert!(values.iter().all(|v| v.as_deref() == Some(value)));
    }
    // The key is taken while there are readers, so `SET … NX` of another library fails.
    let _reading = reading(&client.rw_lock("c")).await;
    assert!(case.locked("c") > 0);
}

/// The order of arrival is r r w r, each of another client. The first two hold the lock together.
pub async fn readers_and_writers_are_served_in_order(case: Case) {
    let holder = case.client().await.rw_lock("a").write().await;
    let holder = holder.expect("a lease");
    let served = Arc::new(AtomicU64::new(0));
    let mut waiting = Vec::new();
    for mode in [Side::Reader, Side::Reader, Side::Writer, Side::Reader] {
        let (lock, served) = (case.client().await.rw_lock("a"), Arc::clone(&served));
        waiting.push(tokio::spawn(async move {
            let lease = match mode {
                Side::Reader => lock.read().await,
                Side::Writer => lock.write().await,
            };
            let place = served.fetch_add(1, Ordering::SeqCst);
            (lease.expect("a lease"), place)
        }));
        // Long enough that the nodes know the order.
        pause(300).await;
    }
    let mut waiting = waiting.into_iter();
    let mut next = async || waiting.next().expect("a waiter").await.expect("no panic");
    holder.release().await;
    let (one, two) = (next().await, next().await);
    assert!(one.1 < 2 && two.1 < 2);
    pause(100).await;
    let so_far = served.load(Ordering::SeqCst);
    assert_eq!(so_far, 2, "no writer, and no reader behind it");
    one.0.release().await;
    two.0.release().await;
    let writer = next().await;
    assert_eq!(writer.1, 2);
    pause(100).await;
    assert_eq!(served.load(Ordering::SeqCst), 3);
    writer.0.release().await;
    assert_eq!(next().await.1, 3);
}

#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

/// The token of the last writer and the largest of readers, as a resource keeps them.
#[derive(Default)]
struct Register {
    written: AtomicU64,
    read: AtomicU64,
    /// Two numbers that are equal whenever no writer is at work.
    numbers: [AtomicU64; 2],
}

impl Register {
    fn read(&self, token: u64) {
        assert!(
            self.written.load(Ordering::SeqCst) < token,
            "behind a writer"
        );
        self.read.fetch_max(token, Ordering::SeqCst);
    }

    fn write(&self, token: u64) {
        assert!(self.read.load(Ordering::SeqCst) < token, "behind a reader");
        let before = self.written.swap(token, Ordering::SeqCst);
        assert!(before < token, "behind a writer");
    }
}

/// Readers see what one writer left, and tokens grow between the two sides. Neither side starves:
/// everybody gets all of its turns while the others never pause.
pub async fn readers_and_writers_take_turns(case: Case) {
    let register = Arc::new(Register::default());
    let mut tasks = Vec::new();
    for index in 0..6 {
        let lock = case.client().await.rw_lock("a");
        let register = Arc::clone(&register);
        tasks.push(tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..15 {
                let asked = Moment::now();
                if index % 3 == 0 {
                    let lease = lock.write().await.expect("a lease");
                    longest = longest.max(Moment::now().saturating_duration_since(asked));
                    register.write(lease.token());
                    let [one, two] = &register.numbers;
                    let seen = one.fetch_add(1, Ordering::SeqCst);
                    pause(1).await;
                    assert_eq!(two.fetch_add(1, Ordering::SeqCst), seen, "two writers");
                    lease.release().await;
                } else {
                    let lease = lock.read().await.expect("a lease");
                    longest = longest.max(Moment::now().saturating_duration_since(asked));
                    register.read(lease.token());
                    let [one, two] = &register.numbers;
                    let seen = one.load(Ordering::SeqCst);
                    pause(1).await;
                    assert_eq!(two.load(Ordering::SeqCst), seen, "a writer is at work");
                    lease.release().await;
                }
            }
            longest
        }));
    }
    for task in tasks {
        let longest = task.await.expect("no panic");
        assert!(longest < Duration::from_secs(20), "starved for {longest:?}");
    }
    assert_eq!(
        register.numbers[0].load(Ordering::SeqCst),
        30,
        "lost updates"
    );
}

/// A writer becomes a reader. Readers that wait at the head of the line join it; a writer does not
/// get in between.
pub async fn a_downgrade_admits_readers_and_no_writer(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let writing = one.rw_lock("a").write().await.expect("a lease");
    let (token, lock) = (writing.token(), two.rw_lock("a"));
    let reader = tokio::spawn(lock.read());
    pause(300).await;
    let writer = tokio::spawn(lock.write());
    pause(300).await;
    let reading = writing.downgrade().await.expect("a majority");
    assert!(reading.is_shared() && reading.is_valid());
    assert!(reading.token() > token);
    let joined = reader.await.expect("no panic").expect("a lease");
    assert!(joined.token() > token);
    pause(100).await;
    assert!(!writer.is_finished(), "a writer came in between");
    assert!(
        is_unreadable(&one.rw_lock("a")).await,
        "a reader passed a writer"
    );
    reading
        .extend()
        .await
        .expect("it is a lease like any other");
    assert_eq!(reading.release().await, Released::Released);
    let last = joined.token();
    joined.release().await;
    let writing = writer.await.expect("no panic").expect("a lease");
    assert!(writing.token() > last);
    writing.release().await;
    case.until_free("a").await;
}

/// What a dropped downgrade leaves behind is released.
pub async fn a_cancelled_downgrade_leaves_nothing(case: Case) {
    let client = case.client().await;
    for ms in [0, 0, 1, 2, 5] {
        let lease = client.rw_lock("a").write().await.expect("a lease");
        let downgrading = tokio::spawn(lease.downgrade());
        pause(ms).await;
        downgrading.abort();
    }
    case.until_free("a").await;
}

/// A reader that is not released ends with its TTL, and no earlier.
pub async fn a_reader_is_gone_after_its_ttl(case: Case) {
    let client = case.client().await;
    let lock = client.rw_lock("a");
    let short = lock
        .clone()
        .with_options(|o| o.ttl(SHORT).node_timeout(SHORT));
    let asked = Moment::now();
    let lease = short.read().await.expect("a lease");
    let _detached = lease.detach().await.expect("a majority");
    let writing = lock.write().await.expect("a lease");
    let waited = Moment::now().saturating_duration_since(asked);
    assert!(waited >= SHORT, "{waited:?}");
    writing.release().await;
}

/// Readers are renewed like any other lease.
pub async fn readers_survive_three_ttls_by_renewal(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lock = one.rw_lock("a");
    let lock = lock.with_options(|o| o.ttl(RENEWED).node_timeout(RENEWED));
    let leases = [reading(&lock).await, reading(&lock).await];
    tokio::time::sleep(RENEWED * 3).await;
    assert!(leases.iter().all(Lease::is_valid));
    assert!(is_unwritable(&two.rw_lock("a")).await);
}

/// A writer after the nodes have forgotten its readers has a larger token, and the readers find out.
pub async fn readers_that_nodes_forgot_are_lost(case: Case) {
    let client = case.client().await;
    let lease = client.rw_lock("a").read().await.expect("a lease");
    case.deployment.forget().await;
    let writing = client.rw_lock("a").write().await.expect("a lease");
    assert!(writing.token() > lease.token());
    let lost = lease.extend().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    writing.release().await;
    let reading = client.rw_lock("a").read().await.expect("a lease");
    assert!(reading.token() > lease.token());
}

/// `min_hold` of a reader keeps writers out, and lets other readers in.
pub async fn a_reader_stays_for_min_hold(case: Case) {
    let client = case.client().await;
    let hold = Duration::from_millis(1500);
    let lock = client.rw_lock("a");
    let asked = Moment::now();
    let lease = lock.clone().with_options(|o| o.min_hold(hold));
    let lease = lease.read().await.expect("a lease");
    assert_eq!(lease.release().await, Released::Released);
    if Moment::now().saturating_duration_since(asked) < hold / 2 {
        assert!(is_unwritable(&lock).await);
        reading(&lock).await.release().await;
    }
    let writing = lock.write().await.expect("a lease");
    let waited = Moment::now().saturating_duration_since(asked);
    assert!(waited >= hold, "{waited:?}");
    drop(writing);
}

/// Callers that wait to read, and are dropped at any moment, leave nothing behind.
pub async fn a_cancelled_reader_leaves_nothing(case: Case) {
    let client = case.client().await;
    let lock = client.rw_lock("a");
    let writing = lock.write().await.expect("a lease");
    for ms in [0, 1, 5, 50] {
        let waiting = tokio::spawn(lock.read());
        pause(ms).await;
        waiting.abort();
    }
    writing.release().await;
    let writing = lock.write().await.expect("a lease");
    writing.release().await;
    for ms in [0, 0, 1, 2] {
        let asking = tokio::spawn(lock.read());
        pause(ms).await;
        asking.abort();
    }
    case.until_free("a").await;
    drop(lock.write().await.expect("a lease"));
}

/// The owner value identifies a detached reader.
pub async fn a_detached_reader_is_identified_by_its_owner(case: Case) {
    let client = case.client().await;
    let lease = client.rw_lock("a").read().await.expect("a lease");
    let other = client.rw_lock("a").read().await.expect("a lease");
    let owner = lease.detach().await.expect("a majority").owner().to_owned();
    let detached = client.mutex("a").detached(&owner).expect("an owner value");
    detached.extend().await.expect("it is held");
    assert_eq!(
        detached.release().await.expect("a majority"),
        Released::Released
    );
    let detached = client.mutex("a").detached(&owner).expect("an owner value");
    assert_eq!(
        detached.release().await.expect("a majority"),
        Released::WasLost
    );
    assert!(other.is_valid() && is_unwritable(&client.rw_lock("a")).await);
}

/// Without fences, no node could tell whether a writer came between two renewals.
pub async fn a_reader_needs_a_token(case: Case) {
    let client = case.client().await;
    let lock = client.rw_lock("a").with_options(|o| o.without_fencing());
    let refused = lock.read().await.expect_err("invalid");
    let is_invalid = matches!(refused, Error::Invalid(Invalid::SharedWithoutFencing));
    assert!(is_invalid, "{refused}");
    let plain = lock.write().await.expect("a plain lock");
    let refused = plain.downgrade().await.expect_err("invalid");
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    case.until_free("a").await;
}

/// A plain lock and readers exclude each other.
pub async fn a_plain_lock_excludes_readers(case: Case) {
    let client = case.client().await;
    let plain = client.mutex("a").with_options(|o| o.without_fencing());
    let lease = taken(&plain).await;
    assert!(is_unreadable(&client.rw_lock("a")).await);
    lease.release().await;
    let reading = reading(&client.rw_lock("a")).await;
    assert!(is_taken(&plain).await);
    reading.release().await;
    drop(taken(&plain).await);
}

/// All readers are shown, and one of them can be removed.
pub async fn shows_and_breaks_readers(case: Case) {
    let client = case.client().await;
    let lock = client.rw_lock("a");
    let labelled = |label: &str| lock.clone().with_options(|o| o.label(label));
    let one = labelled("one").read().await.expect("a lease");
    let two = labelled("two").read().await.expect("a lease");
    let inspection = client.inspect("a").await.expect("a majority");
    let mut labels: Vec<_> = inspection.holders().into_iter().collect();
    labels.sort_by_key(|reader| reader.holder.label.clone());
    let ids: Vec<_> = labels.iter().map(|reader| reader.owner_id()).collect();
    assert_eq!(ids, [one.owner_id(), two.owner_id()]);
    assert!(labels.iter().all(|reader| reader.holder.shared));
    let listing = client.inspect_all().await.expect("a majority");
    assert_eq!(listing.locks.len(), 1);
    assert_eq!(listing.locks[0].holders().len(), 2);
    assert!(
        client
            .break_lock("a", &one.owner_id())
            .await
            .expect("a majority")
    );
    let inspection = client.inspect("a").await.expect("a majority");
    let left: Vec<_> = inspection.holders().iter().map(|r| r.owner_id()).collect();
    assert_eq!(left, [two.owner_id()]);
    assert!(is_unwritable(&lock).await);
    two.release().await;
    // A writer that comes before the next renewal ends the lease of the one that was removed.
    let writing = lock.write().await.expect("a lease");
    let lost = one.extend().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    drop(writing);
}

/// A name that `min_hold` keeps for a reader can be freed.
pub async fn a_kept_reader_can_be_broken(case: Case) {
    let client = case.client().await;
    let lock = client.rw_lock("a");
    let kept = lock.clone().with_options(|o| o.min_hold(LONG));
    let lease = kept.read().await.expect("a lease");
    assert_eq!(lease.release().await, Released::Released);
    assert!(is_unwritable(&lock).await);
    let inspection = client.inspect("a").await.expect("a majority");
    let seen = inspection.lock().expect("it is kept");
    assert!(seen.holder.kept && seen.holder.shared);
    let broken = client.break_lock("a", &seen.owner_id()).await;
    assert!(broken.expect("a majority"));
    case.until_free("a").await;
    lock.write().await.expect("a lease").release().await;
}

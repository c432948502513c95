//! A turn of contenders for one name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::ledger::Ledger;
use crate::contenders::{Contender, Kind, Lock, with_lock};
use crate::tally::Tally;

/// A release that takes longer counts as a hang.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// The limit for connecting and for the first lock of all contenders, with an additional time for
/// each.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
const SETUP_LIMIT_EACH: Duration = Duration::from_millis(4);
/// The number of clients that connect at once: fewer than the server's backlog.
const CONNECTING: usize = 64;
/// The number of waiters that line up at once, and the delay before the next group. If all
/// arrived at the same moment, the server would seem silent.
const LINING_UP: usize = 100;
const NEXT_IN_LINE: Duration = Duration::from_millis(10);
/// How long after the last request all waiters stand in line.
const IN_LINE: Duration = Duration::from_millis(500);

/// The contended name, and the length of the turn.
pub(super) struct Contest {
    pub(super) name: String,
    pub(super) contenders: usize,
    pub(super) clients: Clients,
    pub(super) start: Start,
    /// Zero releases a lock as soon as it is acquired.
    pub(super) hold: Duration,
    pub(super) length: Duration,
}

/// Which contenders have separate connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clients {
    /// Every contender, as if it were a separate process.
    OneEach,
    /// None: they are tasks of one process.
    OneForAll,
}

/// How a turn begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// All contenders start at once.
    AtOnce,
    /// An additional client acquires the lock, all contenders line up, and then it releases the
    /// lock.
    LinedUp,
}

type Book = Arc<Mutex<Ledger>>;

fn write(book: &Book) -> MutexGuard<'_, Ledger> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets contenders of this kind take turns at one name. Waits that are not over at the end are
/// cut off.
pub(super) async fn contend(
    kind: Kind,
    urls: &[String],
    contest: Contest,
) -> Result<Tally, String> {
    let limit = SETUP_LIMIT + SETUP_LIMIT_EACH * u32::try_from(contest.contenders).unwrap_or(0);
    let set_up = timeout(limit, connect(kind, urls, &contest)).await;
    let mut contenders = set_up.map_err(|_| format!("hangs: not ready in {limit:?}"))??;
    let (contest, book) = (Arc::new(contest), Book::default());
    let mut running = JoinSet::new();
    let first = match contest.start {
        Start::AtOnce => None,
        Start::LinedUp => contenders.pop(),
    };
    let gate = match first {
        Some(first) => Some(with_lock!(first, lock => shut(lock, &contest, &mut running).await?)),
        None => None,
    };
    if gate.is_none() {
        write(&book).begin(Instant::now());
    }
    for (who, contender) in contenders.into_iter().enumerate() {
        let (contest, book) = (contest.clone(), book.clone());
        with_lock!(contender, lock => running.spawn(take_part(lock, who, contest, book)));
        if gate.is_some() && (who + 1) % LINING_UP == 0 {
            tokio::time::sleep(NEXT_IN_LINE).await;
        }
    }
    if let Some(gate) = gate {
        tokio::time::sleep(IN_LINE).await;
        write(&book).begin(Instant::now());
        let _ = gate.send(());
    }
    let all = async {
        while let Some(task) = running.join_next().await {
            task.map_err(|error| error.to_string())??;
        }
        Ok::<_, String>(())
    };
    if let Ok(ended) = timeout(contest.length, all).await {
        ended?;
    }
    Ok(write(&book).tally(Instant::now()))
}

/// Connects all contenders, and lets each acquire an uncontended lock: some clients connect only
/// then.
async fn connect(kind: Kind, urls: &[String], contest: &Contest) -> Result<Vec<Contender>, String> {
    let ready = |who: usize| async move {
        let name = format!("{}/{who:05}", contest.name);
        let contender = kind.connect(urls).await?;
        with_lock!(&contender, lock => pair(lock, &name).await?);
        Ok::<_, String>(contender)
    };
    let count = contest.contenders + usize::from(contest.start == Start::LinedUp);
    if contest.clients == Clients::OneForAll {
        return Ok(vec![ready(0).await?; count]);
    }
    let all = stream::iter(0..count).map(ready);
    all.buffer_unordered(CONNECTING).try_collect().await
}

async fn pair<L: Lock>(lock: &L, name: &str) -> Result<(), String> {
    let held = lock.acquire(name).await?;
    lock.release(name, held).await
}

/// Acquires the lock. It is released when the returned sender is used.
async fn shut<L: Lock>(
    lock: L,
    contest: &Arc<Contest>,
    running: &mut JoinSet<Result<(), String>>,
) -> Result<oneshot::Sender<()>, String> {
    let held = lock.acquire(&contest.name).await?;
    let (open, opened) = oneshot::channel();
    let contest = contest.clone();
    running.spawn(async move {
        let _ = opened.await;
        lock.release(&contest.name, held).await
    });
    Ok(open)
}

async fn take_part<L: Lock>(
    lock: L,
    who: usize,
    contest: Arc<Contest>,
    book: Book,
) -> Result<(), String> {
    let name = &contest.name;
    while !write(&book).is_over(contest.length) {
        write(&book).ask(who, Instant::now());
        let held = lock.acquire(name).await?;
        let entered = Instant::now();
        write(&book).enter(who, L::token(&held), entered)?;
        if !contest.hold.is_zero() {
            hold(contest.hold).await?;
        }
        write(&book).leave(entered.elapsed());
        let released = timeout(RELEASE_LIMIT, lock.release(name, held)).await;
        released.map_err(|_| format!("hangs: no release within {RELEASE_LIMIT:?}"))??;
    }
    Ok(())
}

/// Holds the lock for a time. This uses a thread beside the runtime, whose timers have a
/// resolution of a millisecond, which is as long as the lock is held.
pub(super) async fn hold(time: Duration) -> Result<(), String> {
    let slept = spawn_blocking(move || std::thread::sleep(time)).await;
    slept.map_err(|error| error.to_string())
}

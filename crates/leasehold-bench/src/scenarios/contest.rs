//! A turn of contenders for one name: who held it, and how long the others waited.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use crate::contenders::{Contender, Kind, Lock};
use crate::tally::Tally;

/// A release that takes longer is said to hang.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// So long may connecting and the first lock of all contenders take.
const SETUP_LIMIT: Duration = Duration::from_secs(10);

/// What is contended for, and for how long.
pub(super) struct Contest {
    pub(super) name: String,
    pub(super) contenders: usize,
    pub(super) hold: Duration,
    pub(super) length: Duration,
}

/// What the contenders of a turn write down together.
#[derive(Default)]
struct Ledger {
    last: Option<usize>,
    inside: bool,
    handovers: u64,
    held: Vec<Duration>,
    waits: Vec<Duration>,
}

/// Has contenders of this kind, each with connections of its own, take turns at one name.
pub(super) async fn contend(
    kind: Kind,
    urls: &[String],
    contest: Contest,
) -> Result<Tally, String> {
    let set_up = timeout(SETUP_LIMIT, connect(kind, urls, &contest)).await;
    let contenders = set_up.map_err(|_| format!("hangs: not ready in {SETUP_LIMIT:?}"))??;
    let start = Instant::now();
    let end = start + contest.length;
    let (contest, ledger) = (Arc::new(contest), Arc::new(Mutex::default()));
    let mut running = JoinSet::new();
    for (who, contender) in contenders.into_iter().enumerate() {
        let (contest, ledger) = (contest.clone(), ledger.clone());
        match contender {
            Contender::Raw(lock) => running.spawn(take_part(lock, who, end, contest, ledger)),
            Contender::Rslock(lock) => running.spawn(take_part(lock, who, end, contest, ledger)),
            Contender::Leasehold(lock) => running.spawn(take_part(lock, who, end, contest, ledger)),
        };
    }
    while let Some(task) = running.join_next().await {
        task.map_err(|error| error.to_string())??;
    }
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(ledger.tally(contest.length))
}

/// Connects, and takes a lock that nobody contends for: some connect only then.
async fn connect(kind: Kind, urls: &[String], contest: &Contest) -> Result<Vec<Contender>, String> {
    let mut contenders = Vec::new();
    for who in 0..contest.contenders {
        let name = format!("{}/{who:02}", contest.name);
        let contender = kind.connect(urls).await?;
        match &contender {
            Contender::Raw(lock) => pair(lock, &name).await?,
            Contender::Rslock(lock) => pair(lock, &name).await?,
            Contender::Leasehold(lock) => pair(lock, &name).await?,
        }
        contenders.push(contender);
    }
    Ok(contenders)
}

async fn pair<L: Lock>(lock: &L, name: &str) -> Result<(), String> {
    let held = lock.acquire(name).await?;
    lock.release(name, held).await
}

async fn take_part<L: Lock>(
    lock: L,
    who: usize,
    end: Instant,
    contest: Arc<Contest>,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<(), String> {
    let ledger = || ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let name = &contest.name;
    while Instant::now() < end {
        let asked = Instant::now();
        let Ok(held) = timeout_at(end, lock.acquire(name)).await else {
            ledger().waits.push(asked.elapsed());
            break;
        };
        let held = held?;
        ledger().enter(who, asked.elapsed())?;
        let entered = Instant::now();
        hold(contest.hold).await?;
        ledger().leave(entered.elapsed());
        let released = timeout(RELEASE_LIMIT, lock.release(name, held)).await;
        released.map_err(|_| format!("hangs: no release within {RELEASE_LIMIT:?}"))??;
    }
    Ok(())
}

/// Keeps the lock for a time. On a thread beside the runtime, since the runtime's timers
/// go by whole milliseconds, which is as long as the lock is held at all.
pub(super) async fn hold(time: Duration) -> Result<(), String> {
    let slept = spawn_blocking(move || std::thread::sleep(time)).await;
    slept.map_err(|error| error.to_string())
}

impl Ledger {
    fn enter(&mut self, who: usize, waited: Duration) -> Result<(), String> {
        if std::mem::replace(&mut self.inside, true) {
            return Err("two held the lock at once".into());
        }
        if self.last.replace(who).is_some_and(|last| last != who) {
            self.handovers += 1;
        }
        self.waits.push(waited);
        Ok(())
    }

    fn leave(&mut self, held: Duration) {
        self.inside = false;
        self.held.push(held);
    }

    fn tally(&self, length: Duration) -> Tally {
        Tally {
            length,
            pairs: self.held.len() as u64,
            handovers: self.handovers,
            mean_wait: mean(&self.waits),
            longest_wait: self.waits.iter().max().copied().unwrap_or_default(),
            held: mean(&self.held),
            errors: 0,
        }
    }
}

fn mean(times: &[Duration]) -> Duration {
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX).max(1);
    times.iter().sum::<Duration>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_contender_is_a_hand_over() {
        let mut ledger = Ledger::default();
        let ms = Duration::from_millis;
        for (who, waited) in [(3, 1), (3, 2), (4, 9), (3, 4)] {
            ledger.enter(who, ms(waited)).unwrap();
            ledger.leave(ms(1));
        }
        let tally = ledger.tally(ms(500));
        assert_eq!((tally.pairs, tally.handovers), (4, 2));
        assert_eq!((tally.mean_wait, tally.longest_wait), (ms(4), ms(9)));
        assert_eq!(tally.handovers_per_s(), 4.0);
    }

    #[test]
    fn two_at_once_are_found_out() {
        let mut ledger = Ledger::default();
        ledger.enter(0, Duration::ZERO).unwrap();
        assert!(ledger.enter(1, Duration::ZERO).is_err());
    }
}

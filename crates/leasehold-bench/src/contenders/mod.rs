//! What is measured: each takes and gives back locks by name.

mod leasehold;
mod raw;
mod rslock;

use std::future::Future;

pub(crate) use self::leasehold::Leasehold;
pub(crate) use self::raw::Raw;
use self::rslock::Rslock;
use crate::peers::Peer;

/// A lock client. Generic code is written against this trait, so that no contender pays
/// for dynamic dispatch or a boxed future.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    /// What proves that the lock is held.
    type Held: Send;

    /// The fencing token, of those that have one.
    fn token(_: &Self::Held) -> Option<u64> {
        None
    }

    /// Takes the lock of this name.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Gives it back, and waits until that is confirmed as far as the client does.
    fn release(
        &self,
        name: &str,
        held: Self::Held,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// Which client, and how it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two commands and nothing else.
    Raw,
    /// rslock as `LockManager::new` makes it.
    Rslock,
    /// rslock with `TCP_NODELAY`.
    RslockNodelay,
    /// rslock with `TCP_NODELAY` that tries again after at most 2 ms.
    Rslock2Ms,
    /// The same with 5 ms. Which is better depends on the number of nodes.
    Rslock5Ms,
    Leasehold,
    /// leasehold without fencing.
    LeaseholdUnfenced,
    /// What no lock can surpass: one round trip after each hold, and nobody else.
    Ideal,
    /// A program of its own.
    Peer(&'static Peer),
}

impl Kind {
    /// Those of this process that are measured without contention.
    pub(crate) const UNCONTENDED: [Self; 5] = [
        Self::Raw,
        Self::Rslock,
        Self::RslockNodelay,
        Self::Leasehold,
        Self::LeaseholdUnfenced,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Rslock => "rslock",
            Self::RslockNodelay => "rslock, nodelay",
            Self::Rslock2Ms => "rslock, 2 ms",
            Self::Rslock5Ms => "rslock, 5 ms",
            Self::Leasehold => "leasehold",
            Self::LeaseholdUnfenced => "leasehold, unfenced",
            Self::Ideal => "ideal",
            Self::Peer(peer) => peer.label,
        }
    }

    /// What the names of this contender's locks start with. All have the same length, so
    /// that none sends longer requests; and no contender can run into a lock of another.
    pub(crate) fn prefix(self) -> char {
        match self {
            Self::Raw => 'a',
            Self::Rslock => 'b',
            Self::RslockNodelay => 'c',
            Self::Leasehold => 'd',
            Self::LeaseholdUnfenced => 'g',
            Self::Rslock2Ms => 'e',
            Self::Rslock5Ms => 'f',
            // They take no locks here; peers choose their names themselves.
            Self::Ideal | Self::Peer(_) => 'z',
        }
    }

    /// Connects, inside of the runtime that the contender is going to be measured on.
    pub(crate) async fn connect(self, urls: &[String]) -> Result<Contender, String> {
        Ok(match self {
            Self::Raw | Self::Ideal => Contender::Raw(Raw::connect(urls).await?),
            Self::Rslock => Contender::Rslock(Rslock::by_default(urls)),
            Self::RslockNodelay => Contender::Rslock(Rslock::with_nodelay(urls)?),
            Self::Rslock2Ms => Contender::Rslock(Rslock::with_retries(urls, 2)?),
            Self::Rslock5Ms => Contender::Rslock(Rslock::with_retries(urls, 5)?),
            Self::Leasehold => Contender::Leasehold(Leasehold::connect(urls).await?),
            Self::LeaseholdUnfenced => {
                Contender::Leasehold(Leasehold::without_fencing(urls).await?)
            }
            Self::Peer(peer) => return Err(format!("{} is a program of its own", peer.label)),
        })
    }
}

/// A connected client. Measurements match on it once per turn, not once per lock.
#[derive(Clone)]
pub(crate) enum Contender {
    Raw(Raw),
    Rslock(Rslock),
    Leasehold(Leasehold),
}

/// Does the same with whatever client it is, compiled for each.
macro_rules! with_lock {
    ($contender:expr, $lock:ident => $work:expr) => {
        match $contender {
            $crate::contenders::Contender::Raw($lock) => $work,
            $crate::contenders::Contender::Rslock($lock) => $work,
            $crate::contenders::Contender::Leasehold($lock) => $work,
        }
    };
}
pub(crate) use with_lock;

/// A client of one server with `TCP_NODELAY`, as leasehold makes it too.
fn client_with_nodelay(url: &str) -> Result<redis::Client, String> {
    use redis::IntoConnectionInfo;
    let info = url.into_connection_info().map_err(|e| e.to_string())?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(tcp)).map_err(|e| e.to_string())
}

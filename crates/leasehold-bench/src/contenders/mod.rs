//! The measured clients. Each acquires and releases locks by name.

mod leasehold;
mod observed;
mod raw;
mod rslock;

use std::future::Future;

pub(crate) use self::leasehold::Leasehold;
pub(crate) use self::raw::Raw;
use self::rslock::Rslock;
use crate::peers::Peer;

/// A lock client. The code is generic over this trait, so that no contender pays for dynamic
/// dispatch or a boxed future.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    /// The proof that the lock is held.
    type Held: Send;

    /// The fencing token, if the client has one.
    fn token(_: &Self::Held) -> Option<u64> {
        None
    }

    /// Acquires the lock of this name.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Releases it, and waits for the confirmation if the client does.
    fn release(
        &self,
        name: &str,
        held: Self::Held,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// The client, and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two commands only.
    Raw,
    /// rslock as `LockManager::new` makes it.
    Rslock,
    /// rslock with `TCP_NODELAY`.
    RslockNodelay,
    /// rslock with `TCP_NODELAY` and a retry delay of at most 2 ms.
    Rslock2Ms,
    /// The same with 5 ms. Which is better depends on the number of nodes.
    Rslock5Ms,
    Leasehold,
    /// leasehold without fencing.
    LeaseholdUnfenced,
    /// The upper bound for any lock: one round trip after each hold, without other contenders.
    Ideal,
    /// A separate program.
    Peer(&'static Peer),
}

impl Kind {
    /// The contenders in this process that are measured without contention.
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

    /// The prefix of this contender's lock names. All have the same length, so that no contender
    /// sends longer requests, and no contender meets a lock of another.
    pub(crate) fn prefix(self) -> char {
        match self {
            Self::Raw => 'a',
            Self::Rslock => 'b',
            Self::RslockNodelay => 'c',
            Self::Leasehold => 'd',
            Self::LeaseholdUnfenced => 'g',
            Self::Rslock2Ms => 'e',
            Self::Rslock5Ms => 'f',
            // These acquire no locks here, and peers choose their own names.
            Self::Ideal | Self::Peer(_) => 'z',
        }
    }

    /// Connects, on the runtime that the contender is measured on.
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
            Self::Peer(peer) => return Err(format!("{} is a separate program", peer.label)),
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

/// Runs the same code with any client, compiled for each.
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

/// A client of one server with `TCP_NODELAY`, which leasehold sets, too.
fn client_with_nodelay(url: &str) -> Result<redis::Client, String> {
    use redis::IntoConnectionInfo;
    let info = url.into_connection_info().map_err(|e| e.to_string())?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(tcp)).map_err(|e| e.to_string())
}

//! The faults that strike.

use std::fmt;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A message, and what follows it on its connection, never arrives.
    Lost,
    /// A message takes long, or arrives when its sender has long given up.
    Delayed,
    /// A message takes effect twice.
    Repeated,
    /// A message takes effect after one that was sent later.
    Reordered,
    /// A minority of the nodes is cut off.
    Minority,
    /// A majority of the nodes is cut off.
    Majority,
    /// Messages arrive in one direction only.
    OneWay,
    /// A connection is closed in the middle.
    HungUp,
    /// A node restarts with everything it knew.
    CrashKept,
    /// A node restarts with what it knew a while ago.
    CrashSnapshot,
    /// A node restarts with nothing.
    CrashAmnesia,
    /// A node becomes a replica for a while, and is promoted with what another server knew: it
    /// has forgotten something, and neither its run nor any connection ends.
    RolledBack,
    /// A node's clock runs too fast or too slow.
    NodeDrift,
    /// A node's clock jumps.
    NodeStep,
    /// A process's clock runs too fast or too slow.
    ClientDrift,
    /// A process's wall clock is far off, or jumps.
    ClientStep,
    /// A process is stopped for a while.
    Stopped,
    /// A process's machine is suspended for a while.
    Suspended,
    /// A process is killed, and started again.
    Killed,
    /// A process is killed when the lock is handed over to it: before it hears of that, or just
    /// after.
    KilledInTurn,
    /// A node takes its time.
    Slow,
    /// A caller drops a future half-way.
    Cancelled,
    /// A node's memory is wiped while it runs (FLUSHALL).
    Flushed,
    /// A node forgets its scripts.
    ForgotScripts,
    /// Nothing is asked for so long that nodes forget the tokens of names.
    Lull,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::Lost,
        Self::Delayed,
        Self::Repeated,
        Self::Reordered,
        Self::Minority,
        Self::Majority,
        Self::OneWay,
        Self::HungUp,
        Self::CrashKept,
        Self::CrashSnapshot,
        Self::CrashAmnesia,
        Self::RolledBack,
        Self::NodeDrift,
        Self::NodeStep,
        Self::ClientDrift,
        Self::ClientStep,
        Self::Stopped,
        Self::Suspended,
        Self::Killed,
        Self::KilledInTurn,
        Self::Slow,
        Self::Cancelled,
        Self::Flushed,
        Self::ForgotScripts,
        Self::Lull,
    ];

    /// Those that strike at intervals, each at its own rate.
    pub const STRIKING: [Self; 16] = [
        Self::Minority,
        Self::Majority,
        Self::OneWay,
        Self::HungUp,
        Self::CrashKept,
        Self::CrashSnapshot,
        Self::CrashAmnesia,
        Self::NodeStep,
        Self::ClientStep,
        Self::Stopped,
        Self::Suspended,
        Self::Killed,
        Self::Slow,
        Self::Flushed,
        Self::ForgotScripts,
        Self::RolledBack,
    ];

    /// Whether it breaks an assumption of mutual exclusion. (Tokens need none of these
    /// assumptions.) A node that loses its memory does not where the restart guard is on.
    pub fn is_beyond(self, guarded: bool) -> bool {
        match self {
            Self::CrashSnapshot | Self::CrashAmnesia | Self::RolledBack => !guarded,
            Self::NodeStep | Self::Flushed => true,
            _ => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lost => "message lost",
            Self::Delayed => "message delayed",
            Self::Repeated => "message repeated",
            Self::Reordered => "messages reordered",
            Self::Minority => "minority cut off",
            Self::Majority => "majority cut off",
            Self::OneWay => "one-way partition",
            Self::HungUp => "connection closed",
            Self::CrashKept => "node restarts, all kept",
            Self::CrashSnapshot => "node restarts, old snapshot",
            Self::CrashAmnesia => "node restarts, amnesia",
            Self::RolledBack => "node promoted, old data",
            Self::NodeDrift => "node's clock drifts",
            Self::NodeStep => "node's clock jumps",
            Self::ClientDrift => "client's clock drifts",
            Self::ClientStep => "client's clock jumps",
            Self::Stopped => "process stopped",
            Self::Suspended => "machine suspended",
            Self::Killed => "process killed",
            Self::KilledInTurn => "process killed in its turn",
            Self::Slow => "slow node",
            Self::Cancelled => "caller cancelled",
            Self::Flushed => "FLUSHALL",
            Self::ForgotScripts => "scripts forgotten",
            Self::Lull => "lull of hours",
        })
    }
}

/// How often each kind of fault struck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; Fault::ALL.len()]);

impl FaultCounts {
    /// One more.
    pub fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// All of another's.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }

    /// How often this one struck.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

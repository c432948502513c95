//! The faults that the nemesis injects.

use std::fmt;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A message is lost, and with it everything behind it on its connection.
    Lost,
    /// A message is delayed, or arrives long after its sender's timeout.
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
    /// A connection is closed during use.
    HungUp,
    /// A node restarts with its whole memory.
    CrashKept,
    /// A node restarts with an old snapshot.
    CrashSnapshot,
    /// A node restarts with empty memory.
    CrashAmnesia,
    /// A node becomes a replica for a while, and is promoted with the data of another server: it
    /// has lost some of its memory, though neither its run nor any connection ended.
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
    /// A process is killed when the lock is handed over to it: before it is notified, or just
    /// after.
    KilledInTurn,
    /// A node answers slowly.
    Slow,
    /// A caller drops a future before it is complete.
    Cancelled,
    /// A node's memory is wiped while it runs (FLUSHALL).
    Flushed,
    /// A node forgets its scripts.
    ForgotScripts,
    /// No requests are sent for so long that the nodes forget the tokens of names.
    Lull,
    /// After a lull in which fences have nearly expired, the nodes' clocks jump ahead by up to an
    /// hour, and back.
    JumpThereAndBack,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 26] = [
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
        Self::JumpThereAndBack,
    ];

    /// The faults that occur at intervals, each at its own rate.
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

    /// Whether the fault breaks an assumption of mutual exclusion. (Tokens depend on none of
    /// these assumptions.) With the restart guard, the loss of a node's memory does not break
    /// one.
    pub fn is_beyond(self, guarded: bool) -> bool {
        match self {
            Self::CrashSnapshot | Self::CrashAmnesia | Self::RolledBack => !guarded,
            Self::NodeStep | Self::Flushed | Self::JumpThereAndBack => true,
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
            Self::JumpThereAndBack => "clocks jump there and back",
        })
    }
}

/// How often each kind of fault occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; Fault::ALL.len()]);

impl FaultCounts {
    /// Counts a fault.
    pub fn add(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }

    /// How often this fault occurred.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// How often faults occurred.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

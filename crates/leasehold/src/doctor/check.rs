//! The checks: their ids, and why each of them matters.

use std::fmt;

/// Declares the checks: a variant, its id, what it looks at, and why that matters.
macro_rules! checks {
    ($($variant:ident $id:literal $what:literal $why:literal)*) => {
        /// A check of [`Builder::doctor`](crate::Builder::doctor).
        ///
        /// ```
        /// use leasehold::doctor::Check;
        ///
        /// assert_eq!(Check::Eviction.id(), "eviction");
        /// assert_eq!(Check::from_id("eviction"), Some(Check::Eviction));
        /// assert!(Check::ALL.contains(&Check::Quorum));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Check {
            $(#[doc = $what] $variant,)*
        }

        impl Check {
            /// All checks, in the order of a report.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the id, which never changes: `eviction`, `same-server`, …
            #[must_use]
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// Returns why the check matters.
            #[must_use]
            pub fn why(self) -> &'static str {
                match self {
                    $(Self::$variant => $why,)*
                }
            }
        }
    };
}

checks! {
    Reach "reach"
        "Whether the node answers."
        "A node that does not answer does not vote. Without a majority, no lock can be acquired or renewed."
    Auth "auth"
        "Whether the server accepts the user and the password."
        "A server that refuses the login refuses every request."
    Permissions "permissions"
        "Whether the user may run the commands that locks need, on their keys."
        "A command that the server refuses fails an acquire, a renewal or a release in the middle of its work."
    Tls "tls"
        "Whether the connection is encrypted, and how long the certificate is valid."
        "Without TLS, everybody on the path can read owner values and passwords. When the certificate expires, no client can connect."
    Role "role"
        "Whether the server is a master."
        "A replica refuses writes, so it never votes."
    SameServer "same-server"
        "Whether two nodes are the same server."
        "A server that is named twice votes twice, so a majority of nodes is not a majority of servers. Clients acquire no lock."
    Related "related"
        "Whether a node is a replica of another node, or of the same master."
        "Related servers fail together and copy each other's data, so they are not independent voters."
    Cluster "cluster"
        "Whether the server is a member of a Redis Cluster, or a Sentinel."
        "A member of a cluster serves only some of the names, and may hand them to another server at any time."
    Sentinels "sentinels"
        "Whether the sentinels of the node answer and agree."
        "A failover needs a majority of the sentinels, and so does a client that looks for the master."
    Replicas "replicas"
        "What a failover of this server would lose."
        "Replication is asynchronous. A replica that is promoted may not have the last locks, and then two clients hold the same lock."
    SplitBrain "split-brain"
        "Whether a master that lost its replicas stops accepting writes."
        "While two servers both act as the master of one node, that node votes twice."
    Eviction "eviction"
        "Whether the server may delete keys when its memory is full."
        "An evicted lock is free although its holder relies on it, and an evicted fence allows smaller tokens."
    Memory "memory"
        "How much of its memory the server has left."
        "A server without memory refuses to grant locks (OOM), or the system kills it."
    Persistence "persistence"
        "Whether locks survive a restart of the server."
        "A server that restarts without its data forgets the locks that are held. Tokens stay safe."
    Fsync "fsync"
        "Whether the disk or a fork stalls the server."
        "While the server waits for its disk or forks, it answers nobody. A stall that is longer than the time limit of a request costs renewals."
    Restart "restart"
        "Whether the node votes, or waits for the restart guard to end."
        "A node that started recently may have forgotten locks that are held, so it does not vote yet."
    Clock "clock"
        "Whether the clocks of the nodes agree, and run at the right speed."
        "A clock that jumps or runs fast expires locks early. Nodes whose clocks differ by more than the allowed skew refuse each other's tokens."
    Latency "latency"
        "How long 200 round trips to the node take."
        "A request that takes longer than its time limit counts as no answer. Too many of them lose leases."
    SlowCommands "slow-commands"
        "Whether commands have blocked the server for longer than a request may take."
        "The server executes one command at a time. While a slow one runs, renewals wait."
    Load "load"
        "How much of one processor the server uses."
        "A server that is busy all the time answers late."
    Clients "clients"
        "How many connections the server has left."
        "A server that has reached maxclients refuses new connections, those of lock holders included."
    IdleTimeout "idle-timeout"
        "Whether the server closes connections that are idle."
        "Waiters are notified over open connections. A client whose connection was closed connects again, and its next request takes longer."
    Push "push"
        "Whether the server can notify waiters (RESP3 and PUBLISH)."
        "Without notifications, waiters poll every 1.1 s, so each handover takes longer."
    Scripts "scripts"
        "Whether the server runs Lua scripts."
        "Every vote is a script. A server that refuses scripts cannot be a node."
    Version "version"
        "Whether the version of the server is supported."
        "leasehold is not tested with servers before Redis 6.2."
    Constants "constants"
        "Whether the constants on record are those of this client."
        "Fences and the restart guard protect only clients that use the same values. A client with other values is refused."
    Set "set"
        "Whether the set of nodes on record is the one of this client."
        "Majorities of different sets need not have a server in common. A client with another set is refused."
    Leftovers "leftovers"
        "Whether there are locks that never expire, or expire later than a lease may."
        "A lock without a TTL stays held for ever if its holder fails. leasehold always sets one; other programs may not."
    StoreAccess "store-access"
        "Whether this user can read and write the embedded store and its directory."
        "SQLite creates files beside the store. Other users who can read the store can release its locks."
    StoreLocation "store-location"
        "On which file system the embedded store is."
        "On a network file system, processes of different machines corrupt the store. In memory, the store does not survive a reboot."
    StoreSpace "store-space"
        "How much space the disk of the embedded store has left."
        "On a full disk, no lock can be acquired or renewed."
    StoreProcesses "store-processes"
        "Whether the processes that hold locks can be watched from here."
        "The lock of a dead process is free at once only if the reader can see that it is dead. Otherwise the lock is free when its TTL is over."
    Quorum "quorum"
        "How many nodes may fail before no majority is left."
        "No lock can be acquired or renewed without a majority of all nodes."
}

impl Check {
    /// Returns the check with this [id](Self::id).
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|check| check.id() == id)
    }

    /// Returns the section of the documentation about this check.
    #[must_use]
    pub fn docs(self) -> String {
        format!("docs/doctor.md#{}", self.id())
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

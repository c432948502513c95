//! Clients in other languages, or with dependencies that this workspace is spared: each is
//! driven by a small program under `peers/`, which is started for every turn.

mod child;
mod install;

use std::time::Duration;

pub(crate) use child::{Work, turn};
use install::Toolchain;

/// One client at certain settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) label: &'static str,
    toolchain: Toolchain,
    /// What the program knows the client by.
    client: &'static str,
    settings: Settings,
    several_nodes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settings {
    /// Those that a user gets who sets none, apart from the TTL.
    Default,
    /// Those under which it hands over most often, of the few that were tried.
    Best,
}

const fn peer(
    label: &'static str,
    toolchain: Toolchain,
    client: &'static str,
    settings: Settings,
    several_nodes: bool,
) -> Peer {
    Peer {
        label,
        toolchain,
        client,
        settings,
        several_nodes,
    }
}

/// Every client that there is a program for.
pub(crate) const ALL: &[Peer] = {
    use Settings::{Best, Default};
    use Toolchain::{Go, Jvm, Node, Python, Rust};
    &[
        peer("redlock (crate)", Rust, "redlock", Default, true),
        peer("redlock (crate), best", Rust, "redlock", Best, true),
        peer("redis-lock", Rust, "redis-lock", Default, false),
        peer("redis-lock, best", Rust, "redis-lock", Best, false),
        peer("npm redlock 4", Node, "redlock4", Default, true),
        peer("npm redlock 4, best", Node, "redlock4", Best, true),
        peer("npm redlock 5", Node, "redlock5", Default, true),
        peer("npm redlock 5, best", Node, "redlock5", Best, true),
        peer("redis-py", Python, "redis-py", Default, false),
        peer("redis-py, best", Python, "redis-py", Best, false),
        // It wakes one waiter by a list; there is no retry to set.
        peer(
            "python-redis-lock",
            Python,
            "python-redis-lock",
            Best,
            false,
        ),
        // Its retries cannot be set.
        peer("pottery", Python, "pottery", Best, true),
        peer("redsync", Go, "redsync", Default, true),
        peer("redsync, best", Go, "redsync", Best, true),
        peer("redisson", Jvm, "redisson", Default, true),
        peer("redisson, best", Jvm, "redisson", Best, true),
    ]
};

impl Peer {
    /// Whether it can use so many nodes.
    pub(crate) fn takes(&self, nodes: usize) -> bool {
        nodes == 1 || self.several_nodes
    }

    /// Whether these are its best settings, or its only ones.
    pub(crate) fn is_at_its_best(&self) -> bool {
        self.settings == Settings::Best
    }

    /// Whether it is one of npm's.
    pub(crate) fn is_npm(&self) -> bool {
        self.toolchain == Toolchain::Node
    }
}

/// The peers that this machine can have, and why it cannot have the others.
pub(crate) struct Available {
    pub(crate) peers: Vec<&'static Peer>,
    pub(crate) missing: Vec<(&'static str, String)>,
}

/// Installs what is needed and not there yet. With `quick`, only peers at their best.
pub(crate) fn install(quick: bool) -> Available {
    let mut found = Available {
        peers: Vec::new(),
        missing: Vec::new(),
    };
    for toolchain in Toolchain::ALL {
        let clients = ALL.iter().filter(|peer| peer.toolchain == toolchain);
        match install::install(toolchain) {
            Ok(()) => found
                .peers
                .extend(clients.filter(|peer| !quick || peer.is_at_its_best())),
            Err(why) => {
                eprintln!("  SKIPPED, all peers on {}: {why}", toolchain.name());
                found
                    .missing
                    .extend(clients.map(|peer| (peer.label, why.clone())));
            }
        }
    }
    found
}

/// Beyond its turn, so long may a program take to start, connect and end.
const GRACE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_everyone_is_there_at_its_best() {
        for peer in ALL {
            let same = ALL.iter().filter(|other| other.label == peer.label);
            assert_eq!(same.count(), 1, "{}", peer.label);
            let mut settings = ALL.iter().filter(|other| other.client == peer.client);
            assert!(settings.any(Peer::is_at_its_best), "{}", peer.client);
        }
    }
}

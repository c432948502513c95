//! Clients in other languages, or with dependencies that this workspace avoids. A small program
//! under `peers/`, which is started for every turn, drives each of them.

mod child;
mod install;

use std::time::Duration;

pub(crate) use child::{Work, turn};
use install::Toolchain;

/// One client with certain settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) label: &'static str,
    toolchain: Toolchain,
    /// The program's name for the client.
    client: &'static str,
    settings: Settings,
    several_nodes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settings {
    /// The defaults, apart from the TTL.
    Default,
    /// The settings with the most hand-overs, of the few that were tried.
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

/// Every client that has a program.
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
        // It wakes one waiter through a list, so it has no retry delay.
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
    /// Whether it supports this number of nodes.
    pub(crate) fn takes(&self, nodes: usize) -> bool {
        nodes == 1 || self.several_nodes
    }

    /// Whether these are its best settings, or its only ones.
    pub(crate) fn is_at_its_best(&self) -> bool {
        self.settings == Settings::Best
    }

    /// Whether it is an npm package.
    pub(crate) fn is_npm(&self) -> bool {
        self.toolchain == Toolchain::Node
    }
}

/// The peers that are available on this machine, and why the others are not.
pub(crate) struct Available {
    pub(crate) peers: Vec<&'static Peer>,
    pub(crate) missing: Vec<(&'static str, String)>,
}

/// Installs the missing peers. With `quick`, only peers with their best settings.
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

/// How long a program may take beyond its turn, to start, connect and end.
const GRACE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_every_client_has_its_best_settings() {
        for peer in ALL {
            let same = ALL.iter().filter(|other| other.label == peer.label);
            assert_eq!(same.count(), 1, "{}", peer.label);
            let mut settings = ALL.iter().filter(|other| other.client == peer.client);
            assert!(settings.any(Peer::is_at_its_best), "{}", peer.client);
        }
    }
}

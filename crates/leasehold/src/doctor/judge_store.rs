//! What the facts of an embedded store mean.

use super::Check;
use super::facts::{FileSystem, StoreFacts};
use super::judge::{Verdict, bytes, fail, ok, unknown, warn};
use super::shell::quoted;

/// Less free space is a warning, and a failure.
const SPACE_WARN: u64 = 100 << 20;
const SPACE_FAIL: u64 = 5 << 20;

type Judge = fn(&StoreFacts) -> Verdict;

/// The checks of an embedded store.
pub(super) const STORE_CHECKS: &[(Check, Judge)] = &[
    (Check::Reach, reach),
    (Check::StoreAccess, access),
    (Check::StoreLocation, location),
    (Check::StoreSpace, space),
    (Check::StoreProcesses, processes),
];

fn reach(store: &StoreFacts) -> Verdict {
    match &store.opened {
        Ok(()) => ok("the store can be opened"),
        Err(error) => fail(error.to_string(), ""),
    }
}

fn access(store: &StoreFacts) -> Verdict {
    let path = store.path.display();
    let shell_path = quoted(&path.to_string());
    let Some((file, dir)) = store.modes else {
        return unknown(
            format!("the permissions of {path} cannot be read"),
            format!("`ls -ld {shell_path} {shell_path}/..`"),
        );
    };
    let parent = store.path.parent().unwrap_or(&store.path).display();
    match (file & 0o006, dir & 0o1002) {
        (0, 0o002) => warn(
            format!(
                "every user may delete the store: its directory has mode {:04o}",
                dir & 0o7777
            ),
            format!("`chmod o-w {}`", quoted(&parent.to_string())),
        ),
        (0, _) => ok(format!("mode {:04o}", file & 0o7777)),
        _ => warn(
            format!(
                "every user may read or write the store: it has mode {:04o}",
                file & 0o7777
            ),
            format!("`chmod o-rw {shell_path}`"),
        ),
    }
}

fn location(store: &StoreFacts) -> Verdict {
    let path = quoted(&store.path.to_string_lossy());
    let elsewhere = "use a file on a local disk: --node local:/path/to/file.db";
    match &store.file_system {
        Err(why) => unknown(
            format!("the kind of file system is not known: {why}"),
            format!("`df -T {path}`"),
        ),
        Ok(FileSystem::Local) => ok("a local file system"),
        Ok(FileSystem::Network(kind)) => fail(format!("a network file system ({kind})"), elsewhere),
        Ok(FileSystem::Other(kind)) => unknown(
            format!("a kind of file system that is not known here ({kind:#x})"),
            format!("`df -T {path}`; it must be on a local disk"),
        ),
        Ok(FileSystem::Memory) => warn(
            "a file system in memory (tmpfs): a reboot forgets all fences",
            elsewhere,
        ),
    }
}

fn space(store: &StoreFacts) -> Verdict {
    let path = quoted(&store.path.to_string_lossy());
    let (free, all) = match store.space {
        Ok(space) => space,
        Err(ref why) => return unknown(why.clone(), format!("`df {path}`")),
    };
    let seen = format!("{} of {} free", bytes(free), bytes(all));
    let remedy = format!("free some space: `df -h {path}`");
    match free {
        free if free < SPACE_FAIL => fail(seen, remedy),
        free if free < SPACE_WARN => warn(seen, remedy),
        _ => ok(seen),
    }
}

fn processes(store: &StoreFacts) -> Verdict {
    match &store.processes {
        Err(why) => unknown(why.clone(), "see `reach`"),
        Ok(seen) if !seen.visible => warn(
            "it cannot be found out here whether a process lives: /proc is missing or belongs to another \
             pid namespace",
            "mount /proc in this pid namespace; until then, locks of dead processes expire with their TTL",
        ),
        Ok(seen) if seen.elsewhere > 0 => warn(
            format!(
                "{} locks are held by processes of another container, or from before the last boot",
                seen.elsewhere
            ),
            "let the containers share a pid namespace (docker run --pid=host), or use short TTLs",
        ),
        Ok(_) => ok("the holders of all locks can be watched from here"),
    }
}

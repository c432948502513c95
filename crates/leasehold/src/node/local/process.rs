//! Which processes hold a lock, and whether they are dead.
//!
//! A process is known by its id and its start time: an id alone is given to another process
//! one day. Both mean something only within one boot of one kernel and one pid namespace; a
//! reader elsewhere (another container that shares the file) must not judge.

use std::sync::OnceLock;

use crate::node::Holders;

/// Where process ids and clocks mean what they mean here.
pub(super) struct Realm {
    /// This boot of this kernel, and this pid namespace.
    processes: Option<String>,
    /// This boot, and this time namespace: within it, boot-time clocks agree.
    pub(super) clock: String,
}

impl Realm {
    pub(super) fn here() -> &'static Self {
        static HERE: OnceLock<Realm> = OnceLock::new();
        HERE.get_or_init(|| {
            let boot = boot_id();
            let namespace = |kind: &str| {
                let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
                Some(link.to_string_lossy().into_owned())
            };
            let processes = boot
                .as_ref()
                .zip(namespace("pid"))
                .filter(|_| proc_is_ours());
            Self {
                processes: processes.map(|(boot, pids)| format!("{boot}/{pids}")),
                clock: format!(
                    "{}/{}",
                    boot.unwrap_or_default(),
                    namespace("time").unwrap_or_default()
                ),
            }
        })
    }
}

/// Whether the ids in `/proc` mean what they mean to this process. It may be that of another
/// namespace, where the same ids are other processes, living or dead.
fn proc_is_ours() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|id| id.as_os_str() == own.as_str())
}

/// This boot of this kernel, where that can be told.
pub(super) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The processes that hold a claim, as the store keeps them: `realm pid:start pid:start`.
/// `None` if nobody must be alive for it, or if that cannot be told here.
pub(super) fn describe(holders: &Holders) -> Option<String> {
    let own = [std::process::id()];
    let pids: &[u32] = match holders {
        Holders::Nobody => return None,
        Holders::ThisProcess => &own,
        Holders::Processes(pids) => pids,
    };
    let mut text = Realm::here().processes.clone()?;
    for pid in pids {
        let start = match start_of(*pid) {
            Some((start, _)) => start,
            // Hidden: others may see it, and would take it for another one.
            None if exists(*pid) => return None,
            // One that is dead already has no start time; it stays dead.
            None => 0,
        };
        text += &format!(" {pid}:{start}");
    }
    Some(text)
}

/// The processes in such a text, if it is of this realm.
fn parse(holders: &str) -> Option<Vec<(u32, u64)>> {
    let mut words = holders.split(' ');
    if words.next() != Realm::here().processes.as_deref() {
        return None;
    }
    words
        .map(|word| {
            let (pid, start) = word.split_once(':')?;
            Some((pid.parse().ok()?, start.parse().ok()?))
        })
        .collect()
}

/// Whether all holders are certainly dead.
pub(super) fn all_dead(holders: &str) -> bool {
    parse(holders).is_some_and(|all| all.iter().all(|(pid, start)| is_dead(*pid, *start)))
}

/// The ids of those that are alive as far as can be told.
pub(super) fn living(holders: &str) -> Vec<u32> {
    let all = parse(holders).unwrap_or_default();
    let living = all.iter().filter(|(pid, start)| !is_dead(*pid, *start));
    living.map(|(pid, _)| *pid).collect()
}

fn is_dead(pid: u32, start: u64) -> bool {
    match start_of(pid) {
        Some((now, running)) => now != start || !running,
        None => !exists(pid),
    }
}

/// When a process started, in ticks since boot, and whether it still runs: one that has
/// ended and was not waited for yet does not.
fn start_of(pid: u32) -> Option<(u64, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    // The first thread may have ended while others run on.
    let running = !matches!(state, "Z" | "X") || threads(pid) > 1;
    Some((start, running))
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// `/proc` may hide the processes of others; whether there is one can be told all the same.
fn exists(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    else {
        return false;
    };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_is_alive() {
        let text = describe(&Holders::ThisProcess).unwrap();
        assert!(!all_dead(&text), "{text}");
        assert_eq!(living(&text), [std::process::id()]);
        assert_eq!(describe(&Holders::Nobody), None);
    }

    #[test]
    fn a_child_is_dead_when_it_has_ended_and_also_before_it_is_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let text = describe(&Holders::Processes([child.id()].into())).unwrap();
        assert!(!all_dead(&text));
        drop(child.stdin.take());
        while !all_dead(&text) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(all_dead(&text));
        // As long as one of several lives, the lock does.
        let both = format!("{text} {}", text.split(' ').next_back().unwrap());
        assert!(all_dead(&both));
        let own = describe(&Holders::ThisProcess).unwrap();
        let with_own = format!("{text} {}", own.split(' ').next_back().unwrap());
        assert!(!all_dead(&with_own));
    }

    #[test]
    fn another_start_time_is_another_process() {
        let text = describe(&Holders::ThisProcess).unwrap();
        let (before, start) = text.rsplit_once(':').unwrap();
        let earlier = format!("{before}:{}", start.parse::<u64>().unwrap() - 1);
        assert!(all_dead(&earlier));
    }

    /// Two containers that share the file must not take each other's processes for dead.
    #[test]
    fn nobody_is_judged_from_another_boot_or_namespace() {
        for realm in ["another-boot/pid:[4026531836]", "", "x"] {
            let text = format!("{realm} 4000000:1");
            assert!(!all_dead(&text), "{text}");
            assert!(living(&text).is_empty());
        }
        assert!(!all_dead("garbage"));
    }
}

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
    /// This boot, and this time namespace: within it, boot-time clocks agree. `None` if that
    /// cannot be told: then wall clocks must do.
    pub(super) clock: Option<String>,
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
                clock: boot.map(|boot| format!("{boot}/{}", namespace("time").unwrap_or_default())),
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

/// A process that holds a lock, or a whole process group.
struct Process {
    pid: u32,
    start: u64,
    /// It leads a process group, and stands for all of it.
    group: bool,
}

/// The processes that hold a claim, as the store keeps them: `realm pid:start pid:start:group`.
/// `None` if nobody must be alive for it, or if that cannot be told here.
pub(super) fn describe(holders: &Holders) -> Option<String> {
    match holders {
        Holders::Nobody => None,
        Holders::ThisProcess => own().map_or_else(
            // After a fork: rare enough to look.
            || describe_all(&[std::process::id()]),
            |own| own.map(str::to_owned),
        ),
        Holders::Processes(pids) => describe_all(pids),
    }
}

/// This process, in those words, which stay the same for as long as it lives. `None` if it is
/// a copy of the process in which they were found.
fn own() -> Option<Option<&'static str>> {
    static OWN: OnceLock<(u32, Option<String>)> = OnceLock::new();
    let id = std::process::id();
    let (pid, text) = OWN.get_or_init(|| (id, describe_all(&[id])));
    (*pid == id).then_some(text.as_deref())
}

fn describe_all(pids: &[u32]) -> Option<String> {
    let mut text = Realm::here().processes.clone()?;
    // Our own group has others in it, who have nothing to do with the lock.
    let our_group = stat_of(std::process::id()).map(|stat| stat.group);
    for &pid in pids {
        let (start, group) = match stat_of(pid) {
            Some(stat) => (stat.start, stat.group),
            // Hidden: others may see it, and would take it for another one.
            None if exists(pid) => return None,
            // One that is dead already has no start time; it stays dead.
            None => (0, 0),
        };
        let leads = group == pid && our_group != Some(group);
        text += &format!(" {pid}:{start}{}", if leads { ":group" } else { "" });
    }
    Some(text)
}

/// The processes in such a text, if it is of this realm.
fn parse(holders: &str) -> Option<Vec<Process>> {
    let mut words = holders.split(' ');
    if words.next() != Realm::here().processes.as_deref() {
        return None;
    }
    words
        .map(|word| {
            let mut parts = word.split(':');
            Some(Process {
                pid: parts.next()?.parse().ok()?,
                start: parts.next()?.parse().ok()?,
                group: parts.next() == Some("group"),
            })
        })
        .collect()
}

/// Whether all holders are certainly dead.
pub(super) fn all_dead(holders: &str) -> bool {
    // The common case, for which nobody needs to look.
    if own() == Some(Some(holders)) {
        return false;
    }
    parse(holders).is_some_and(|all| all.iter().all(Process::is_dead))
}

/// The ids of those that are alive as far as can be told, and not only in their group.
pub(super) fn living(holders: &str) -> Vec<u32> {
    let all = parse(holders).unwrap_or_default();
    let living = all.iter().filter(|process| !process.has_ended());
    living.map(|process| process.pid).collect()
}

impl Process {
    fn is_dead(&self) -> bool {
        // What it started may live on in its group.
        self.has_ended() && !(self.group && group_lives(self.pid))
    }

    fn has_ended(&self) -> bool {
        match stat_of(self.pid) {
            Some(stat) => stat.start != self.start || !stat.running,
            None => !exists(self.pid),
        }
    }
}

fn to_pid(pid: u32) -> Option<rustix::process::Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
}

/// Whether anybody lives in a process group. Those that have ended and were not waited for
/// do not; if nobody can be seen, there may be somebody all the same.
fn group_lives(group: u32) -> bool {
    let Some(id) = to_pid(group) else {
        return false;
    };
    if rustix::process::test_kill_process_group(id) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let members: Vec<_> = pids
        .filter_map(stat_of)
        .filter(|stat| stat.group == group)
        .collect();
    members.is_empty() || members.iter().any(|stat| stat.running)
}

/// What is known of a process.
struct Stat {
    group: u32,
    /// In ticks since boot.
    start: u64,
    /// Not if it has ended and was not waited for yet.
    running: bool,
}

fn stat_of(pid: u32) -> Option<Stat> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let state = *fields.first()?;
    Some(Stat {
        group: fields.get(2)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        // The first thread may have ended while others run on.
        running: !matches!(state, "Z" | "X") || threads(pid) > 1,
    })
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// `/proc` may hide the processes of others; whether there is one can be told all the same.
fn exists(pid: u32) -> bool {
    to_pid(pid)
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
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

    /// What a process started may live on when it is dead, in its process group.
    #[test]
    fn a_process_that_leads_a_group_stands_for_all_of_it() {
        use std::io::{BufRead, BufReader};
        use std::os::unix::process::CommandExt;
        let mut leader = Command::new("sh")
            .args(["-c", "sleep 1000 <&- >&- & echo up; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = leader.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let text = describe(&Holders::Processes([leader.id()].into())).unwrap();
        assert!(text.ends_with(":group"), "{text}");
        drop(leader.stdin.take());
        leader.wait().unwrap();
        assert!(!all_dead(&text));
        let group = to_pid(leader.id()).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        while !all_dead(&text) {
            std::thread::yield_now();
        }
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

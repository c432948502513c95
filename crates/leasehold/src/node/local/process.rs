//! The processes that hold a lock, and whether they are dead.
//!
//! A process is identified by its id and its start time, because ids are reused. Both are valid
//! only within one boot of one kernel and one pid namespace. A process elsewhere (in another
//! container that shares the file) must not judge.

use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

use crate::node::Holders;

/// The scope within which process ids and clocks can be compared.
pub(super) struct Realm {
    /// This boot of this kernel and this pid namespace. `None` if unknown.
    processes: Option<String>,
    /// This boot and this time namespace, within which boot-time clocks agree. `None` if unknown;
    /// then wall clocks are compared.
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
            let processes = boot.zip(namespace("pid")).filter(|_| proc_is_ours());
            Self {
                processes: processes.map(|(boot, pids)| format!("{boot}/{pids}")),
                clock: boot.map(|boot| format!("{boot}/{}", namespace("time").unwrap_or_default())),
            }
        })
    }
}

#[cfg(feature = "doctor")]
impl Realm {
    /// Whether the processes of this realm can be recognised.
    pub(super) fn can_watch(&self) -> bool {
        self.processes.is_some()
    }

    /// Whether processes, as [`describe`] names them, are of this realm.
    pub(super) fn has(&self, holders: &str) -> bool {
        holders.split(' ').next() == self.processes.as_deref()
    }
}

/// Whether `/proc` belongs to the pid namespace of this process. If not, its ids are those of other
/// processes.
fn proc_is_ours() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|id| id.as_os_str() == own.as_str())
}

/// Returns the id of this boot of this kernel, if known.
pub(super) fn boot_id() -> Option<&'static str> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(id.trim().to_owned())
    };
    BOOT.get_or_init(read).as_deref()
}

/// A process that holds a lock, or a whole process group.
struct Process {
    pid: u32,
    start: u64,
    /// The process leads a process group and stands for all of it.
    group: bool,
}

/// Describes the processes that hold a claim as text for the store: `realm pid:start
/// pid:start:group`. `None` if no process must be alive, or if that cannot be determined here.
pub(super) fn describe(holders: &Holders) -> Option<String> {
    match holders {
        Holders::Nobody => None,
        Holders::ThisProcess => match own() {
            Some(own) => own.text.clone(),
            None => describe_all(&[std::process::id()]),
        },
        Holders::Processes(pids) => describe_all(pids),
    }
}

/// This process, which stays the same as long as it lives.
struct Own {
    pid: u32,
    start: Option<u64>,
    /// Its description.
    text: Option<String>,
}

/// `None` if this is a fork of the process for which it was looked up, which is rare.
fn own() -> Option<&'static Own> {
    static OWN: OnceLock<Own> = OnceLock::new();
    let pid = std::process::id();
    let own = OWN.get_or_init(|| {
        let text = describe_all(&[pid]);
        let start = text.as_ref().and_then(|text| text.rsplit(':').next());
        Own {
            pid,
            start: start.and_then(|start| start.parse().ok()),
            text,
        }
    });
    (own.pid == pid).then_some(own)
}

fn describe_all(pids: &[u32]) -> Option<String> {
    let mut text = Realm::here().processes.clone()?;
    // The group of this process contains processes that have nothing to do with the lock.
    let is_ours = |group| stat_of(std::process::id()).is_some_and(|stat| stat.group == group);
    for &pid in pids {
        let (start, group) = match stat_of(pid) {
            Some(stat) => (stat.start, stat.group),
            // The process is hidden from this one. Other processes may see it, and would take it
            // for another.
            None if exists(pid) => return None,
            // The process is dead already, so it has no start time. It stays dead.
            None => (0, 0),
        };
        let leads = group == pid && !is_ours(group);
        text += &format!(" {pid}:{start}{}", if leads { ":group" } else { "" });
    }
    Some(text)
}

/// Parses such a text, if it is of this realm.
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
    // The common case, without a look at `/proc`.
    if own().is_some_and(|own| own.text.as_deref() == Some(holders)) {
        return false;
    }
    parse(holders).is_some_and(|all| all.iter().all(Process::is_dead))
}

/// Returns the ids of the processes that are alive as far as known. A dead leader of a live group
/// is not included.
pub(super) fn living(holders: &str) -> Vec<u32> {
    let all = parse(holders).unwrap_or_default();
    let living = all.iter().filter(|process| !process.has_ended());
    living.map(|process| process.pid).collect()
}

impl Process {
    fn is_dead(&self) -> bool {
        // Its children may still be alive in its group.
        self.has_ended() && !(self.group && group_is_alive(self.pid))
    }

    fn has_ended(&self) -> bool {
        let is_own = |own: &Own| (own.pid, own.start) == (self.pid, Some(self.start));
        if own().is_some_and(is_own) {
            return false;
        }
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

/// Whether a process group has a live process. Zombies are not alive. If no member is visible,
/// there may be one nevertheless.
fn group_is_alive(group: u32) -> bool {
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

/// The fields of `/proc/<pid>/stat` that are needed.
struct Stat {
    group: u32,
    /// In ticks since boot.
    start: u64,
    /// False for zombies.
    running: bool,
}

fn stat_of(pid: u32) -> Option<Stat> {
    // One read returns all of it: some 400 bytes, of which the first half is needed.
    let mut bytes = [0; 1024];
    let length = File::open(format!("/proc/{pid}/stat"))
        .and_then(|mut file| file.read(&mut bytes))
        .ok()?;
    // The program's name is in parentheses and may contain anything, also what is not UTF-8.
    let stat = String::from_utf8_lossy(&bytes[..length]);
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let state = *fields.first()?;
    Some(Stat {
        group: fields.get(2)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        // The main thread may have ended while other threads still run.
        running: !matches!(state, "Z" | "X") || threads(pid) > 1,
    })
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Whether a process exists. `/proc` may hide processes of other users, but a signal can still be
/// tested.
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
    fn a_child_is_dead_when_it_has_exited_even_as_a_zombie() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let text = describe(&Holders::Processes([child.id()].into())).unwrap();
        assert!(!all_dead(&text));
        drop(child.stdin.take());
        while !all_dead(&text) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(all_dead(&text));
        // The lock stays held as long as one of several processes is alive.
        let both = format!("{text} {}", text.split(' ').next_back().unwrap());
        assert!(all_dead(&both));
        let own = describe(&Holders::ThisProcess).unwrap();
        let with_own = format!("{text} {}", own.split(' ').next_back().unwrap());
        assert!(!all_dead(&with_own));
    }

    /// A process can give itself any name with `prctl`, and a program any file name.
    #[test]
    fn a_name_that_is_not_utf_8() {
        use std::os::unix::ffi::OsStrExt;
        let dir = leasehold_testkit::TempDir::new();
        let program = dir.path().join(std::ffi::OsStr::from_bytes(b") R \xff"));
        std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let stat = stat_of(child.id()).expect("it can be parsed");
        assert!(stat.running && stat.start > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// Children of a dead process may still be alive in its process group.
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

    /// Containers that share the file must not take each other's processes for dead.
    #[test]
    fn processes_of_another_boot_or_namespace_are_not_judged() {
        for realm in ["another-boot/pid:[4026531836]", "", "x"] {
            let text = format!("{realm} 4000000:1");
            assert!(!all_dead(&text), "{text}");
            assert!(living(&text).is_empty());
        }
        assert!(!all_dead("garbage"));
    }
}

//! Child processes: signals, their state, and what they print.

use std::io::{BufRead, BufReader, Read};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::setup::blocking;

/// Sends a signal, such as `"TERM"`, to a process.
///
/// # Panics
/// If it cannot be sent.
pub fn signal(pid: u32, signal: &str) {
    let pid = pid.to_string();
    let status = Command::new("kill").args(["-s", signal, &pid]).status();
    let sent = status.is_ok_and(|status| status.success());
    assert!(sent, "kill -s {signal} {pid} failed");
}

/// Sends SIGSTOP to a process, and waits until it has stopped with all its threads. The signal
/// takes effect only when one thread handles it. Until then the others continue, which may take
/// long on a busy machine.
///
/// Without `/proc` it does not wait.
///
/// # Panics
/// If the process does not stop.
pub fn stop(pid: u32) {
    signal(pid, "STOP");
    blocking::until("the process has stopped", || {
        is_stopped(pid).unwrap_or(!cfg!(target_os = "linux"))
    });
}

/// `None` if a thread ended during the check.
fn is_stopped(pid: u32) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for thread in threads {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        if fields(&stat)?.next() != Some("T") {
            return Some(false);
        }
    }
    Some(true)
}

/// The fields of a `stat` file from the state on. The name before them may contain spaces and
/// parentheses.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' '))
}

/// The kernel's state of a process: `S` sleeps, `T` is stopped, `Z` is a zombie. `None` if there
/// is no such process (Linux only).
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    fields(&stat)?.next()?.chars().next()
}

/// The processor time that a process has used (Linux only).
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let stat = stat.expect("the process exists");
    let ticks = fields(&stat).expect("fields").skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    // USER_HZ, which is 100 on every Linux.
    Duration::from_millis(ticks * 10)
}

/// The lines that a process prints, without blocking it.
#[must_use]
pub fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The test may have ended.
            let _ = sender.send(line);
        }
    });
    lines
}

//! Processes that are stopped by a signal.

use std::time::{Duration, Instant};

/// Waits until a process that was sent SIGSTOP has stopped, with all its threads. The signal
/// takes effect only when one of them handles it: until then the others go on, and on a busy
/// machine that may be long.
///
/// Where there is no `/proc` it returns at once.
///
/// # Panics
/// If it does not stop within 30 s.
pub fn until_stopped(pid: u32) {
    let start = Instant::now();
    while !is_stopped(pid).unwrap_or(!cfg!(target_os = "linux")) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "process {pid} does not stop"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing if a thread ended as it was looked at.
fn is_stopped(pid: u32) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for thread in threads {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        // The name before it may have spaces and parentheses of its own.
        let (_, fields) = stat.rsplit_once(") ")?;
        if !fields.starts_with('T') {
            return Some(false);
        }
    }
    Some(true)
}

//! Processes that are stopped by a signal.

use std::time::{Duration, Instant};

/// Waits until a process that was sent SIGSTOP has stopped, with all its threads. The signal
/// takes effect only when one thread handles it. Until then the others continue, which may take
/// long on a busy machine.
///
/// Without `/proc` it returns at once.
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

/// `None` if a thread ended during the check.
fn is_stopped(pid: u32) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    for thread in threads {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        // The name before it may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(") ")?;
        if !fields.starts_with('T') {
            return Some(false);
        }
    }
    Some(true)
}

//! The processor time and the memory of processes, from `/proc`.

use std::collections::HashMap;
use std::fs::{read_dir, read_to_string};
use std::time::Duration;

/// The processor times of the threads of some processes at one moment.
pub(crate) struct CpuClock {
    pids: Vec<u32>,
    at_start: HashMap<(u32, String), u64>,
}

impl CpuClock {
    /// Starts to measure these processes.
    ///
    /// # Errors
    ///
    /// If the system does not report the times.
    pub(crate) fn start(pids: &[u32]) -> Result<Self, String> {
        let at_start = thread_times(pids)?;
        let pids = pids.to_vec();
        Ok(Self { pids, at_start })
    }

    /// Starts to measure this process.
    ///
    /// # Errors
    ///
    /// If the system does not report the times.
    pub(crate) fn of_this_process() -> Result<Self, String> {
        Self::start(&[std::process::id()])
    }

    /// The processor time since then. A thread that has ended meanwhile is not counted.
    ///
    /// # Errors
    ///
    /// If one of the processes has ended.
    pub(crate) fn elapsed(&self) -> Result<Duration, String> {
        let now = thread_times(&self.pids)?;
        let used = now.iter().map(|(thread, nanos)| {
            let before = self.at_start.get(thread).copied().unwrap_or(0);
            nanos.saturating_sub(before)
        });
        Ok(Duration::from_nanos(used.sum()))
    }
}

/// Nanoseconds on a processor, by process and thread.
fn thread_times(pids: &[u32]) -> Result<HashMap<(u32, String), u64>, String> {
    let mut times = HashMap::new();
    for &pid in pids {
        let threads = format!("/proc/{pid}/task");
        for thread in read_dir(&threads).map_err(|error| format!("{threads}: {error}"))? {
            let thread = thread.map_err(|error| error.to_string())?;
            // A thread that has ended since it was listed has no file any more.
            let Ok(stat) = read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok());
            let nanos = nanos.ok_or("the times of threads are not known")?;
            times.insert((pid, thread.file_name().to_string_lossy().into()), nanos);
        }
    }
    Ok(times)
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> Result<u64, String> {
    let status = read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| "the size of this process is not known".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn time_on_a_processor_is_counted_and_sleep_is_not() {
        let clock = CpuClock::of_this_process().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let (asleep, start) = (clock.elapsed().unwrap(), Instant::now());
        while clock.elapsed().unwrap() < asleep + Duration::from_millis(20) {
            assert!(start.elapsed() < Duration::from_secs(30), "no time passes");
        }
        assert!(resident_bytes().unwrap() > 100_000);
    }
}

//! How much processor time other programs used meanwhile. On a busy machine the ratios are not
//! reliable, and the report must say so.

use std::fs::read_to_string;

/// The start of the measured time.
pub(crate) struct Noise {
    machine_at_start: Option<CpuTime>,
    /// Installing peers before it is not part of the measured time.
    ours_at_start: Option<u64>,
}

/// The machine's total times, in clock ticks.
#[derive(Clone, Copy)]
struct CpuTime {
    busy: u64,
    all: u64,
}

impl Noise {
    pub(crate) fn start() -> Self {
        Self {
            machine_at_start: machine(),
            ours_at_start: ours(),
        }
    }

    /// The share of the machine's time, 0 to 1, that other programs used. Call this when the
    /// servers have been stopped: only then is their time known. `None` if the system does not
    /// report it.
    pub(crate) fn end(self) -> Option<f64> {
        let (start, end) = (self.machine_at_start?, machine()?);
        let busy = end.busy.saturating_sub(start.busy);
        let all = end.all.saturating_sub(start.all).max(1);
        let ours = ours()?.saturating_sub(self.ours_at_start?);
        let others = busy.saturating_sub(ours);
        Some(others as f64 / all as f64)
    }
}

fn machine() -> Option<CpuTime> {
    let stat = read_to_string("/proc/stat").ok()?;
    let mut fields = stat.lines().next()?.split_whitespace();
    (fields.next()? == "cpu").then_some(())?;
    // user, nice, system, idle, iowait, irq, softirq, steal. The fields after that are already
    // included in the first two.
    let ticks: Vec<u64> = fields
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let all = ticks.iter().sum::<u64>();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let busy = all - idle;
    Some(CpuTime { busy, all })
}

/// The time of this process and of its ended children.
fn ours() -> Option<u64> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The program's name is in parentheses and may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    times.map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_between_0_and_1() {
        let share = Noise::start().end();
        assert!(
            share.is_none_or(|share| (0.0..=1.0).contains(&share)),
            "{share:?}"
        );
    }
}

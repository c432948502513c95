//! Progress: a moving line on a terminal, and a line from time to time elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold_sim::Report;

/// How often a line is printed where it cannot be overwritten.
const EVERY: Duration = Duration::from_secs(10);

/// Shows how far a batch is.
pub struct Meter {
    bar: Option<ProgressBar>,
    state: Mutex<State>,
    started: Instant,
    seeds: u64,
}

#[derive(Default)]
struct State {
    done: u64,
    leases: u64,
    handed_over: u64,
    faults: u64,
    simulated: Duration,
    printed: Duration,
}

impl Meter {
    /// A meter for this many seeds.
    pub fn new(seeds: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left; {msg}",
            );
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(seeds).with_style(style)
        });
        Self {
            bar,
            state: Mutex::default(),
            started: Instant::now(),
            seeds,
        }
    }

    /// Counts a finished run.
    pub fn count(&self, report: &Report) {
        let state = &mut *self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.done += 1;
        state.leases += report.leases as u64;
        state.handed_over += report.handed_over;
        state.faults += report.faults.total();
        state.simulated += report.simulated;
        let elapsed = self.started.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_message(state.line());
            bar.inc(1);
        } else if elapsed - state.printed >= EVERY {
            state.printed = elapsed;
            let rate = state.done as f64 / elapsed.as_secs_f64();
            let (done, seeds) = (state.done, self.seeds);
            eprintln!("{done}/{seeds} seeds, {rate:.0} a second; {}", state.line());
        }
    }

    /// Ends the display, and returns the summary.
    pub fn finish(&self) -> String {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let elapsed = self.started.elapsed();
        format!(
            "{} seeds in {:.0} s ({:.0} a second): {}",
            state.done,
            elapsed.as_secs_f64(),
            state.done as f64 / elapsed.as_secs_f64(),
            state.line()
        )
    }
}

impl State {
    fn line(&self) -> String {
        let hours = self.simulated.as_secs() / 3600;
        let (faults, leases, waited) = (self.faults, self.leases, self.handed_over);
        format!(
            "{hours} simulated hours, {faults} faults, {leases} leases, {waited} of them after a wait in line"
        )
    }
}

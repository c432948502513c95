//! The command line arguments.

use clap::Parser;
use leasehold_sim::Bug;

/// Runs leasehold's own code on simulated nodes, networks and clocks, from seeds.
#[derive(Parser)]
#[command(name = "simulate")]
pub struct Args {
    /// Run one seed, and show its timeline of holders and faults
    #[arg(long, conflicts_with_all = ["seeds", "from", "ci"])]
    pub seed: Option<u64>,

    /// The number of seeds to run
    #[arg(long, default_value_t = 1_000)]
    pub seeds: u64,

    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub from: u64,

    /// Run half of the seeds from 1 on, and the other half from a fresh one
    #[arg(long, conflicts_with = "from")]
    pub ci: bool,

    /// Leave the answers of the nodes out of the timeline
    #[arg(long)]
    pub brief: bool,

    /// Plant a bug, to see that the checkers find it; `list` shows the names
    #[arg(long, value_name = "NAME")]
    pub bug: Option<String>,

    /// The number of threads [default: one for each core]
    #[arg(long)]
    pub threads: Option<usize>,

    /// Print the table of docs/reliability.md
    #[arg(long)]
    pub table: bool,
}

impl Args {
    /// The seeds to run, and the first fresh one among them.
    pub fn seeds(&self) -> (Vec<u64>, Option<u64>) {
        if !self.ci {
            return (
                (0..self.seeds).map(|n| self.from.wrapping_add(n)).collect(),
                None,
            );
        }
        // Far from the fixed seeds, and short enough to be typed.
        let fresh = fastrand::u64(1_000_000..1_000_000_000_000);
        let half = self.seeds / 2;
        let fixed = 1..=self.seeds - half;
        (fixed.chain(fresh..fresh + half).collect(), Some(fresh))
    }

    /// The planted bug.
    ///
    /// # Errors
    ///
    /// The known names, if the name is unknown.
    pub fn bug(&self) -> Result<Option<Bug>, String> {
        let Some(name) = &self.bug else {
            return Ok(None);
        };
        let known = Bug::ALL.map(|(name, _)| name).join("\n  ");
        let bug = Bug::named(name).ok_or(format!("planted bugs:\n  {known}"))?;
        Ok(Some(bug))
    }

    /// The command that replays a seed.
    pub fn replay(&self, seed: u64) -> String {
        match &self.bug {
            None => format!("./simulate --seed {seed}"),
            Some(bug) => format!("./simulate --seed {seed} --bug {bug}"),
        }
    }
}

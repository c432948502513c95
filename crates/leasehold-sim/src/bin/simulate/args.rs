//! The arguments, and what they mean.

use clap::Parser;
use leasehold_sim::Bug;

/// Runs leasehold's own code on simulated nodes, networks and clocks, from seeds.
#[derive(Parser)]
#[command(name = "simulate")]
pub struct Args {
    /// Run one seed, and show who held what and which fault struck
    #[arg(long, conflicts_with_all = ["seeds", "from", "ci"])]
    pub seed: Option<u64>,

    /// Run so many seeds
    #[arg(long, default_value_t = 1_000)]
    pub seeds: u64,

    /// The first of them
    #[arg(long, default_value_t = 1)]
    pub from: u64,

    /// Run one half of the seeds from 1 on, the other half from a fresh one
    #[arg(long, conflicts_with = "from")]
    pub ci: bool,

    /// Leave the answers of the nodes out of the timeline
    #[arg(long)]
    pub brief: bool,

    /// Break a rule on purpose, to see that it is found; `list` names them
    #[arg(long, value_name = "NAME")]
    pub bug: Option<String>,

    /// Run on so many threads [default: one for each core]
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
        // Far from the fixed ones, and short enough to be typed.
        let fresh = fastrand::u64(1_000_000..1_000_000_000_000);
        let half = self.seeds / 2;
        let fixed = 1..=self.seeds - half;
        (fixed.chain(fresh..fresh + half).collect(), Some(fresh))
    }

    /// The rule to break.
    ///
    /// # Errors
    /// The names that there are, if it is none of them.
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

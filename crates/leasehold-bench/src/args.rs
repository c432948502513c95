//! The command line, turned into a plan.

use std::time::Duration;

use lexopt::prelude::*;

/// What `--help` prints.
pub(crate) const HELP: &str = "\
./bench [OPTIONS]

  --quick          fewer and shorter rounds, peers only at their best; under three minutes
  --rounds N       so many rounds per scenario (1 to 1000)
  --no-peers       only what this program itself can run: nothing is installed
  --only PATTERN   only the scenarios whose id contains PATTERN, such as `1/` or `silent`
  --help           this text";

/// How much to measure.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// Rounds of each scenario; in each, every contender has one turn.
    pub(crate) rounds: usize,
    /// How long one contender's turn is.
    pub(crate) turn: Duration,
    /// Rounds of the scenarios with faults, which need new servers for each turn.
    pub(crate) fault_rounds: usize,
    /// How long latencies are taken before the fault, and again after it.
    pub(crate) fault_phase: Duration,
    /// Rounds of the scenarios with contention.
    pub(crate) contest_rounds: usize,
    /// How long one contender's turn in them is. A wait cannot be longer.
    pub(crate) contest: Duration,
    /// Whether peers that are programs of their own take part.
    pub(crate) peers: bool,
    only: Option<String>,
}

impl Plan {
    fn new(quick: bool, rounds: Option<usize>, only: Option<String>) -> Self {
        let (usual_rounds, fault_rounds) = if quick { (3, 2) } else { (9, 5) };
        let contest_rounds = if quick { 2 } else { 3 };
        let contest_ms = if quick { 1000 } else { 4000 };
        let (turn_ms, phase_ms) = if quick { (400, 800) } else { (600, 1500) };
        Self {
            quick,
            rounds: rounds.unwrap_or(usual_rounds),
            turn: Duration::from_millis(turn_ms),
            fault_rounds: rounds.unwrap_or(fault_rounds),
            fault_phase: Duration::from_millis(phase_ms),
            contest_rounds: rounds.unwrap_or(contest_rounds),
            contest: Duration::from_millis(contest_ms),
            peers: true,
            only,
        }
    }

    /// Whether the scenario of this id is to be run.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.only.as_ref().is_none_or(|only| id.contains(only))
    }
}

/// Reads the command line. `None` if only help was asked for, which has been given.
pub(crate) fn parse() -> Result<Option<Plan>, lexopt::Error> {
    let (mut quick, mut peers) = (false, true);
    let (mut rounds, mut only) = (None, None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("quick") => quick = true,
            Long("no-peers") => peers = false,
            Long("rounds") => {
                let count: usize = parser.value()?.parse()?;
                if !(1..=1000).contains(&count) {
                    return Err("--rounds takes a number from 1 to 1000".into());
                }
                rounds = Some(count);
            }
            Long("only") => only = Some(parser.value()?.string()?),
            Long("help") | Short('h') => {
                println!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    let plan = Plan::new(quick, rounds, only);
    Ok(Some(Plan { peers, ..plan }))
}

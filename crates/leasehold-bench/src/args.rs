//! The command line, turned into a plan.

use std::time::Duration;

use lexopt::prelude::*;

/// What `--help` prints.
pub(crate) const HELP: &str = "\
./bench [OPTIONS]

  --quick            fewer and shorter rounds, peers only at their best; under three minutes
  --rounds N         so many rounds of everything (1 to 1000)
  --no-peers         only what this program itself can run: nothing is installed
  --only ROW[,ROW]   only these rows of the targets; or scenarios whose id contains a text,
                     such as `silent`
  --help             this text";

/// How much to measure.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// Rounds of each scenario; in each, every contender has one turn.
    pub(crate) rounds: usize,
    /// How long one contender's turn is.
    pub(crate) turn: Duration,
    /// How long it works before its first turn.
    pub(crate) warm_up: Duration,
    /// Rounds of the scenarios with faults, which need new servers for each turn.
    pub(crate) fault_rounds: usize,
    /// How long latencies are taken before the fault, and again after it.
    pub(crate) fault_phase: Duration,
    /// Rounds of the scenarios with contention.
    pub(crate) contest_rounds: usize,
    /// How long one contender's turn in them is. A wait cannot be longer.
    pub(crate) contest: Duration,
    /// Rounds of the scenarios that are set up anew for each turn.
    pub(crate) crowd_rounds: usize,
    /// Rounds of the one with held leases, which takes longest to set up.
    pub(crate) held_rounds: usize,
    /// For how many periods of renewal held leases are watched.
    pub(crate) renewals: u32,
    /// How long those are watched who wait, and how long before that. Both together are less
    /// than the TTL: not everybody renews.
    pub(crate) watch: Duration,
    /// Whether peers that are programs of their own take part.
    pub(crate) peers: bool,
    /// Rows, or parts of ids. Empty: everything.
    only: Vec<String>,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const FULL: Plan = Plan {
    quick: false,
    rounds: 9,
    turn: ms(600),
    warm_up: ms(300),
    fault_rounds: 5,
    fault_phase: ms(1500),
    contest_rounds: 3,
    contest: ms(4000),
    crowd_rounds: 3,
    held_rounds: 3,
    renewals: 3,
    watch: ms(3500),
    peers: true,
    only: Vec::new(),
};

const QUICK: Plan = Plan {
    quick: true,
    rounds: 3,
    turn: ms(250),
    warm_up: ms(150),
    fault_rounds: 2,
    fault_phase: ms(500),
    contest_rounds: 2,
    contest: ms(600),
    crowd_rounds: 1,
    held_rounds: 1,
    renewals: 1,
    watch: ms(1000),
    peers: true,
    only: Vec::new(),
};

impl Plan {
    /// Whether the scenario of this id, such as `5/silent`, is to be run.
    pub(crate) fn wants(&self, id: &str) -> bool {
        let row = id.split('/').next();
        let matches = |only: &String| match only.trim_end_matches('/') {
            number if number.parse::<u8>().is_ok() => row == Some(number),
            text => id.contains(text),
        };
        self.only.is_empty() || self.only.iter().any(matches)
    }

    fn with_rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self.fault_rounds = rounds;
        self.contest_rounds = rounds;
        self.crowd_rounds = rounds;
        self.held_rounds = rounds;
        self
    }
}

/// Reads the command line. `None` if only help was asked for, which has been given.
pub(crate) fn parse() -> Result<Option<Plan>, lexopt::Error> {
    let (mut quick, mut peers) = (false, true);
    let (mut rounds, mut only) = (None, Vec::new());
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
            Long("only") => {
                let list = parser.value()?.string()?;
                only.extend(list.split(',').map(|one| one.trim().to_owned()));
            }
            Long("help") | Short('h') => {
                println!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    let plan = if quick { QUICK } else { FULL };
    let plan = Plan {
        peers,
        only,
        ..plan
    };
    Ok(Some(match rounds {
        Some(rounds) => plan.with_rounds(rounds),
        None => plan,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_not_a_part_of_another() {
        let only = |list: &[&str]| Plan {
            only: list.iter().map(ToString::to_string).collect(),
            ..FULL
        };
        assert!(only(&["1"]).wants("1/same-core") && !only(&["1"]).wants("11/held"));
        assert!(only(&["2/"]).wants("2/100-tasks") && !only(&["2/"]).wants("12/idle"));
        assert!(only(&["6", "silent"]).wants("5/silent") && !only(&["6"]).wants("5/silent"));
        assert!(only(&[]).wants("13/one-task"));
    }
}

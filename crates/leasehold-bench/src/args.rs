//! The command line arguments.

use std::time::Duration;

use lexopt::prelude::*;

/// The text of `--help`.
pub(crate) const HELP: &str = "\
./bench [OPTIONS]

  --quick            fewer and shorter rounds, peers with their best settings only; under
                     three minutes
  --rounds N         the number of rounds of everything (1 to 1000)
  --no-peers         without peers that are separate programs; installs nothing
  --only ROW[,ROW]   only these rows of the targets, or scenarios whose id contains a
                     text, such as `silent`
  --server PATH      (first) the redis-server or valkey-server to measure on
  --help             this text";

/// How much to measure.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// Rounds of each scenario. Every contender has one turn in each.
    pub(crate) rounds: usize,
    /// The length of a contender's turn.
    pub(crate) turn: Duration,
    /// How long it works before its first turn.
    pub(crate) warm_up: Duration,
    /// Rounds of the scenarios with faults, which need new servers for each turn.
    pub(crate) fault_rounds: usize,
    /// How long latencies are measured before the fault, and again after it.
    pub(crate) fault_phase: Duration,
    /// Rounds of the scenarios with contention.
    pub(crate) contest_rounds: usize,
    /// The length of a contender's turn in these. A wait cannot be longer.
    pub(crate) contest: Duration,
    /// Rounds of the scenarios that are set up again for each turn.
    pub(crate) crowd_rounds: usize,
    /// Rounds of the scenario with held leases, which takes longest to set up.
    pub(crate) held_rounds: usize,
    /// For how many renewal periods held leases are observed.
    pub(crate) renewals: u32,
    /// How long idle waiters are observed, and how long before they wait. Both together are less
    /// than the TTL, because not every contender renews.
    pub(crate) watch: Duration,
    /// Whether peers that are separate programs take part.
    pub(crate) peers: bool,
    /// Rows, or parts of ids. Empty means everything.
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
    /// Whether to run the scenario with this id, such as `5/silent`.
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

/// Reads the command line. `None` if it only asked for help, which has been printed.
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

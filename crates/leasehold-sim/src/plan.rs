//! What a seed decides before anything happens.

use std::fmt;
use std::time::Duration;

use leasehold::node::rules::Constants;

use crate::agenda::{MILLI, Nanos, SECOND};
use crate::dice::Dice;
use crate::fault::Fault;

/// What the faults of a run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The assumptions of mutual exclusion hold: clocks drift within the allowance, node
    /// clocks do not jump, and nodes forget only where the restart guard is on.
    Within,
    /// Anything: only tokens, and what is fenced with them, must stay right.
    Beyond,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Within => "within the assumptions",
            Self::Beyond => "beyond the assumptions",
        })
    }
}

/// Everything about a run that is drawn in advance.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it all comes from.
    pub seed: u64,
    /// What the faults may do.
    pub mode: Mode,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many processes.
    pub processes: usize,
    /// How many callers in each.
    pub workers: usize,
    /// How many names they want.
    pub names: usize,
    /// The unit of most times of the run; leases last for half of it to twice of it.
    pub ttl: Duration,
    /// What all clients agree on.
    pub constants: Constants,
    /// How long a message takes, at best.
    pub latency: Nanos,
    /// How many times longer for some processes, which are far away.
    pub distance: Nanos,
    /// Only the first process is far away. In the end it must get every name while the others,
    /// which are near, take it for a moment again and again.
    pub rivals: bool,
    /// Each process cannot reach a minority of its own, as long as faults strike.
    pub islands: bool,
    /// How long faults strike.
    pub turmoil: Nanos,
    /// When nothing is asked, and for how long.
    pub lull: Option<(Nanos, Nanos)>,
    /// How likely a message is lost.
    pub loss: f64,
    /// How likely it takes long.
    pub delay: f64,
    /// How likely it takes effect twice.
    pub repeat: f64,
    /// How likely a caller drops a future half-way.
    pub cancel: f64,
    /// How likely a process is killed when it is told that it is its turn.
    pub kill_in_turn: f64,
    /// How far clients' wall clocks may be off: mostly behind, so that tokens are close.
    pub slow_walls: bool,
    /// How often each kind strikes: the mean time between two.
    pub strikes: Vec<(Fault, Nanos)>,
}

impl Plan {
    /// Draws a plan.
    pub fn draw(seed: u64) -> Self {
        let dice = Dice::new(seed, 0);
        let mode = match dice.chance(0.6) {
            true => Mode::Within,
            false => Mode::Beyond,
        };
        let nodes = dice.pick(&[1, 1, 2, 3, 3, 4, 5, 5, 5, 7]);
        let ttl = Duration::from_millis(dice.pick(&[200, 1_000, 1_000, 5_000, 5_000, 20_000]));
        let ttl_ns = ttl.as_nanos() as Nanos;
        let mut constants = Constants::for_nodes(nodes);
        constants.skew = Duration::from_secs(dice.pick(&[2, 10, 60]));
        constants.fence_retention = Duration::from_secs(dice.pick(&[90, 600, 24 * 3600]));
        if nodes >= 3 {
            let guard = dice.pick(&[ttl * 2, ttl * 4, Duration::from_secs(60)]);
            constants.restart_guard = Some(guard);
        }
        let turmoil = ttl_ns * dice.between(8, 20);
        let rate = |most: f64| match dice.chance(0.6) {
            true => most * dice.fraction(),
            false => 0.0,
        };
        let (loss, delay, repeat, cancel) = (rate(0.02), rate(0.05), rate(0.05), rate(0.3));
        let mut plan = Self {
            seed,
            mode,
            nodes,
            processes: 2 + dice.below(4),
            workers: 1 + dice.below(3),
            names: 1 + dice.below(2),
            ttl,
            constants,
            latency: dice.between(MILLI / 20, ttl_ns / 400),
            distance: dice.pick(&[1, 1, 6, 12]),
            rivals: false,
            islands: dice.chance(0.35),
            turmoil,
            lull: None,
            loss,
            delay,
            repeat,
            cancel,
            kill_in_turn: 0.0,
            slow_walls: dice.chance(0.4),
            strikes: Vec::new(),
        };
        if dice.chance(0.2) {
            // A fence is kept for F + S + an hour.
            let constants = &plan.constants;
            let forgets = constants.fence_retention + constants.skew + Duration::from_secs(3_700);
            plan.lull = Some((turmoil / 2, forgets.as_nanos() as Nanos + 4 * ttl_ns));
        }
        plan.strikes = plan.draw_strikes(&dice, ttl_ns);
        plan.kill_in_turn = match dice.chance(0.4) {
            true => 0.05 * dice.fraction(),
            false => 0.0,
        };
        // By dice of their own: the other plans stay what they were.
        let dice = Dice::new(seed, 3);
        if dice.chance(0.08) {
            plan.rivals = true;
            plan.processes = 4;
            plan.distance = 12;
            plan.latency = dice.between(MILLI / 2, ttl_ns / 2_000);
        }
        plan
    }

    fn draw_strikes(&self, dice: &Dice, ttl: Nanos) -> Vec<(Fault, Nanos)> {
        let guarded = self.constants.restart_guard.is_some();
        Fault::STRIKING
            .into_iter()
            .filter(|fault| self.mode == Mode::Beyond || !fault.is_beyond(guarded))
            .filter(|_| dice.chance(0.55))
            .map(|fault| (fault, dice.between(ttl, 12 * ttl)))
            .collect()
    }

    /// By how many millionths a clock may be too fast or too slow. Two of them together
    /// must stay below the allowance of 1 %.
    pub fn drift_ppm(&self) -> i64 {
        match self.mode {
            Mode::Within => 4_900,
            Mode::Beyond => 300_000,
        }
    }

    /// How long a node may take, if that is not left to the library: far away, its default
    /// would be too short.
    pub fn node_timeout(&self) -> Option<Duration> {
        (self.distance > 1).then(|| self.ttl / 4)
    }

    /// How long a message may take there and back, when all is well.
    pub fn longest_round_trip(&self) -> Nanos {
        4 * self.latency * self.distance
    }

    /// How long a connection may take to be made; more than a round trip.
    pub fn connect_timeout(&self) -> Duration {
        let round_trips = Duration::from_nanos(2 * self.longest_round_trip());
        round_trips.max(Duration::from_secs(1))
    }

    /// How long a node is a replica at least before it has forgotten something: as long as a
    /// client may go without noticing. It looks every second, and what it was told of its turn
    /// before that counts for two more; a request may be under way for its timeout.
    pub fn shortest_demotion(&self) -> Nanos {
        let timeout = self.node_timeout().unwrap_or(Duration::from_millis(250));
        self.by_slow_clocks(4 * SECOND + timeout.as_nanos() as Nanos)
    }

    /// How long it may take, once all is well, until everybody has noticed: connections that
    /// were broken unnoticed are made anew, messages that were late have arrived, and nodes that
    /// restarted vote.
    pub fn longest_settling(&self) -> Nanos {
        self.by_slow_clocks(self.longest_guard() + 5 * self.longest_ttl() + 5 * SECOND)
    }

    /// How long it may take until the clocks of all nodes allow the tokens that one of them
    /// asks for which has just lost its memory: they are apart by S / 4, and stray.
    pub fn longest_catching_up(&self) -> Nanos {
        self.by_slow_clocks(self.constants.skew.as_nanos() as Nanos / 4 + 4 * SECOND)
    }

    /// How long a span may truly be that is counted by a clock of the run.
    pub fn by_slow_clocks(&self, span: Nanos) -> Nanos {
        match self.mode {
            Mode::Within => span + span / 50,
            Mode::Beyond => span + span / 2,
        }
    }

    /// The longest TTL in use.
    pub fn longest_ttl(&self) -> Nanos {
        2 * self.ttl.as_nanos() as Nanos
    }

    /// How long a restarted node may stay away.
    pub fn longest_guard(&self) -> Nanos {
        let guard = self.constants.restart_guard.unwrap_or_default();
        guard.as_nanos() as Nanos + 2 * SECOND
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {}, {} node(s), {} process(es) of {} caller(s), {} name(s)",
            self.seed, self.mode, self.nodes, self.processes, self.workers, self.names
        )?;
        let Constants {
            skew,
            fence_retention,
            restart_guard,
        } = self.constants;
        writeln!(
            f,
            "  ttl {:?}, S {skew:?}, F {fence_retention:?}, restart guard {restart_guard:?}",
            self.ttl
        )?;
        writeln!(
            f,
            "  {}messages lost {:.2} %, late {:.2} %, repeated {:.2} %; callers cancelled {:.0} %, \
             killed in their turn {:.1} %",
            match self.rivals {
                true => "one far process among near rivals; ",
                false => "",
            },
            self.loss * 100.0,
            self.delay * 100.0,
            self.repeat * 100.0,
            self.cancel * 100.0,
            self.kill_in_turn * 100.0
        )?;
        for (fault, mean) in &self.strikes {
            let mean = Duration::from_nanos(*mean);
            writeln!(f, "  {fault:<28} every {mean:.1?} or so")?;
        }
        Ok(())
    }
}

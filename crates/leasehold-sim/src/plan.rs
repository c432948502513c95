//! What a seed determines before the run starts.

use std::fmt;
use std::time::Duration;

use leasehold::node::rules::Constants;

use crate::agenda::{MILLI, Nanos, SECOND};
use crate::dice::Dice;
use crate::fault::Fault;

/// What the faults of a run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The assumptions of mutual exclusion hold: clocks drift within the allowance, node clocks
    /// do not jump, and nodes lose their memory only where the restart guard is on.
    Within,
    /// Any fault. Only tokens, and what is fenced with them, must stay correct.
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

/// How a name is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By exclusive claims only.
    Mutex,
    /// By readers and writers.
    Rw,
    /// As a semaphore.
    Semaphore {
        /// The number of permits.
        permits: u32,
        /// Another number, which some callers use during the faults.
        other: Option<u32>,
    },
}

/// Everything about a run that is drawn in advance.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What the faults may do.
    pub mode: Mode,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of processes.
    pub processes: usize,
    /// The number of callers in each process.
    pub workers: usize,
    /// The number of names they lock.
    pub names: usize,
    /// How each of them is used.
    pub kinds: Vec<Kind>,
    /// The unit of most times of the run. Leases last between half and twice of it.
    pub ttl: Duration,
    /// The constants that all clients agree on.
    pub constants: Constants,
    /// The shortest latency of a message.
    pub latency: Nanos,
    /// The factor by which the latency of far processes is longer.
    pub distance: Nanos,
    /// Only the first process is far away. In the end it must acquire every name while the other
    /// processes, which are near, hold it for a moment again and again.
    pub rivals: bool,
    /// Callers also want work done once per period.
    pub once: bool,
    /// Callers also lock several names at once.
    pub several: bool,
    /// Each process cannot reach a minority of the nodes, a different one for each, during the
    /// faults.
    pub islands: bool,
    /// How long faults occur.
    pub fault_phase: Nanos,
    /// When no requests are sent, and for how long.
    pub lull: Option<(Nanos, Nanos)>,
    /// By how many µs the nodes' clocks jump ahead, and back again, at the end of the lull.
    pub jump_us: Option<i64>,
    /// The probability that a message is lost.
    pub loss: f64,
    /// The probability that it is delayed.
    pub delay: f64,
    /// The probability that it takes effect twice.
    pub repeat: f64,
    /// The probability that a caller drops a future before it is complete.
    pub cancel: f64,
    /// The probability that a process is killed when it is notified of its turn.
    pub kill_in_turn: f64,
    /// Whether the wall clocks of clients are mostly behind, so that tokens are close together.
    pub slow_walls: bool,
    /// Whether the nodes have a compare-and-delete of their own.
    pub native: bool,
    /// The faults that occur at intervals, with the mean time between two.
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
        let fault_phase = ttl_ns * dice.between(8, 20);
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
            kinds: Vec::new(),
            ttl,
            constants,
            latency: dice.between(MILLI / 20, ttl_ns / 400),
            distance: dice.pick(&[1, 1, 6, 12]),
            rivals: false,
            once: Dice::new(seed, 4).chance(0.4),
            several: false,
            islands: dice.chance(0.35),
            fault_phase,
            lull: None,
            jump_us: None,
            loss,
            delay,
            repeat,
            cancel,
            kill_in_turn: 0.0,
            slow_walls: dice.chance(0.4),
            native: false,
            strikes: Vec::new(),
        };
        if dice.chance(0.2) {
            // A fence is kept for F + S + an hour.
            let constants = &plan.constants;
            let forgets = constants.fence_retention + constants.skew + Duration::from_secs(3_700);
            plan.lull = Some((fault_phase / 2, forgets.as_nanos() as Nanos + 4 * ttl_ns));
        }
        plan.strikes = plan.draw_strikes(&dice, ttl_ns);
        plan.kill_in_turn = match dice.chance(0.4) {
            true => 0.05 * dice.fraction(),
            false => 0.0,
        };
        // From a separate stream, so that the other draws of existing seeds do not change.
        let dice = Dice::new(seed, 3);
        if dice.chance(0.08) {
            plan.rivals = true;
            plan.processes = 4;
            plan.distance = 12;
            plan.latency = dice.between(MILLI / 2, ttl_ns / 2_000);
        }
        plan.native = dice.chance(0.5);
        plan.draw_jump(&Dice::new(seed, 4));
        // From other streams, for the same reason.
        if Dice::new(seed, 6).chance(0.25) {
            plan.several = true;
            plan.names = 3;
        }
        let dice = Dice::new(seed, 5);
        let kind = |_| match dice.chance(0.5) {
            true => Kind::Rw,
            false => Kind::Mutex,
        };
        plan.kinds = (0..plan.names).map(kind).collect();
        // Locks of several names and permits of the same names would have nothing to do with each other.
        if !plan.several {
            plan.draw_semaphores(&Dice::new(seed, 7));
        }
        plan
    }

    /// The names that are semaphores, and their numbers of permits.
    pub fn semaphores(&self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let kinds = self.kinds.clone().into_iter().enumerate();
        kinds.filter_map(|(name, kind)| match kind {
            Kind::Semaphore { permits, .. } => Some((name, permits)),
            _ => None,
        })
    }

    fn draw_semaphores(&mut self, dice: &Dice) {
        for kind in &mut self.kinds {
            let permits = dice.between(1, 4) as u32;
            let other = match dice.chance(0.5) {
                true if permits > 1 => permits - 1,
                _ => permits + 1,
            };
            let other = dice.chance(0.2).then_some(other);
            if dice.chance(0.25) {
                *kind = Kind::Semaphore { permits, other };
            }
        }
    }

    /// A lull that ends when a fence is still needed or has just become unnecessary, and a jump of
    /// all nodes' clocks that makes it look older. The hour for which a fence is kept longer must
    /// make up for the jump.
    fn draw_jump(&mut self, dice: &Dice) {
        if self.mode == Mode::Within || self.lull.is_some() || !dice.chance(0.2) {
            return;
        }
        let needed = self.constants.fence_retention + self.constants.skew;
        let needed = needed.as_nanos() as Nanos;
        let hour = 3_600 * SECOND;
        let lull = needed - dice.between(0, needed.min(hour));
        self.lull = Some((self.fault_phase / 2, lull));
        self.jump_us = Some(dice.between(hour / 2, hour) as i64 / 1_000);
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

    /// The largest error of a clock's rate, in millionths. Two such errors together must stay
    /// below the allowance of 1 %.
    pub fn drift_ppm(&self) -> i64 {
        match self.mode {
            Mode::Within => 4_900,
            Mode::Beyond => 300_000,
        }
    }

    /// The node timeout, or `None` for the library's default, which would be too short for far
    /// clients.
    pub fn node_timeout(&self) -> Option<Duration> {
        (self.distance > 1).then(|| self.ttl / 4)
    }

    /// The longest round trip of a message without faults.
    pub fn longest_round_trip(&self) -> Nanos {
        4 * self.latency * self.distance
    }

    /// The connect timeout, which is longer than a round trip.
    pub fn connect_timeout(&self) -> Duration {
        let round_trips = Duration::from_nanos(2 * self.longest_round_trip());
        round_trips.max(Duration::from_secs(1))
    }

    /// The shortest time for which a node must be a replica before it loses memory: the time for
    /// which a client may fail to notice. A client checks every second, a notification of its
    /// turn from before that is valid for two more seconds, and a request may be under way for
    /// its timeout.
    pub fn shortest_demotion(&self) -> Nanos {
        let timeout = self.node_timeout().unwrap_or(Duration::from_millis(250));
        self.by_slow_clocks(4 * SECOND + timeout.as_nanos() as Nanos)
    }

    /// The longest time from the end of the faults until every process has noticed: broken
    /// connections are opened again, late messages have arrived, and restarted nodes vote.
    pub fn longest_settling(&self) -> Nanos {
        self.by_slow_clocks(self.longest_guard() + 5 * self.longest_ttl() + 5 * SECOND)
    }

    /// The longest time until the clocks of all nodes allow the tokens that a node asks for which
    /// has just lost its memory. The clocks differ by up to S / 4, and deviate.
    pub fn longest_catching_up(&self) -> Nanos {
        self.by_slow_clocks(self.constants.skew.as_nanos() as Nanos / 4 + 4 * SECOND)
    }

    /// The longest true time of a span that is measured by a clock of the run.
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

    /// The longest time for which a restarted node may not vote.
    pub fn longest_guard(&self) -> Nanos {
        let guard = self.constants.restart_guard.unwrap_or_default();
        guard.as_nanos() as Nanos + 2 * SECOND
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {}, {} node(s), {} process(es) of {} caller(s), {} name(s): {:?}",
            self.seed, self.mode, self.nodes, self.processes, self.workers, self.names, self.kinds
        )?;
        let Constants {
            skew,
            fence_retention,
            restart_guard,
            ..
        } = self.constants;
        writeln!(
            f,
            "  ttl {:?}, S {skew:?}, F {fence_retention:?}, restart guard {restart_guard:?}",
            self.ttl
        )?;
        writeln!(
            f,
            "  {}{}messages lost {:.2} %, late {:.2} %, repeated {:.2} %; callers cancelled {:.0} %, \
             killed in their turn {:.1} %",
            match self.rivals {
                true => "one far process among near rivals; ",
                false => "",
            },
            match self.several {
                true => "several names at once; ",
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

//! A process: a separate runtime that runs only when the simulation lets it.
//!
//! Everything that reaches a process comes through its inbox: its timers, what the network
//! delivers, and its start. While it is paused the inbox fills, and none of its code runs. When
//! it is killed its runtime is dropped, with every task in it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use leasehold::{Client, Moment};
use tokio::runtime::{Builder, Runtime};

use crate::agenda::Nanos;
use crate::clock::ProcessClock;
use crate::sync::locked;
use crate::world::World;

/// What happens inside a process.
type Stimulus = Box<dyn FnOnce(&Arc<World>) + Send>;

/// Where a stimulus comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The process's own timers.
    Timer,
    /// The world outside the process.
    Outside,
}

/// How a process is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// By a signal: timers that were due during the pause fire at once afterwards.
    Stopped,
    /// With its machine: timers stop, too, and are late by the length of the pause.
    Suspended,
}

/// A process of the simulation.
pub struct Process {
    /// The slot of the process.
    pub slot: usize,
    /// The life of the process in its slot: it may be killed and started again.
    pub life: u32,
    /// Its clocks.
    pub clock: ProcessClock,
    runtime: Mutex<Option<Runtime>>,
    idle: Arc<Idle>,
    inbox: Mutex<Vec<(Source, Stimulus)>>,
    standing: Mutex<Standing>,
    /// The process's client, while it has one.
    pub client: Mutex<Option<Client>>,
}

#[derive(Default)]
struct Standing {
    dead: bool,
    paused: Option<(Pause, Nanos)>,
    /// Past suspends.
    suspends: Vec<(Nanos, Nanos)>,
    resumed_at: Option<Nanos>,
}

/// Set when the runtime has nothing more to do.
#[derive(Default)]
struct Idle {
    reached: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Process {
    /// A process without tasks.
    pub fn new(slot: usize, life: u32, clock: ProcessClock) -> Arc<Self> {
        let idle = Arc::new(Idle::default());
        let parked = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || {
                // Instead of waiting for something from outside, `run` returns.
                parked.reached.store(true, Ordering::Relaxed);
                if let Some(waker) = locked(&parked.waker).take() {
                    waker.wake();
                }
            })
            .build()
            .expect("a runtime without drivers needs nothing that could be missing");
        Arc::new(Self {
            slot,
            life,
            clock,
            runtime: Mutex::new(Some(runtime)),
            idle,
            inbox: Mutex::default(),
            standing: Mutex::default(),
            client: Mutex::default(),
        })
    }

    /// Its name in the timeline.
    pub fn label(&self) -> String {
        match self.life {
            0 => format!("p{}", self.slot),
            life => format!("p{}.{life}", self.slot),
        }
    }

    /// The time by its own clock.
    pub fn now(&self, world: &World) -> Moment {
        self.clock.at(world.agenda.now())
    }

    /// Runs a stimulus inside the process: at once, or when the process runs again.
    pub fn post(
        self: &Arc<Self>,
        world: &Arc<World>,
        from: Source,
        stimulus: impl FnOnce(&Arc<World>) + Send + 'static,
    ) {
        if self.is_dead() {
            return;
        }
        locked(&self.inbox).push((from, Box::new(stimulus)));
        if self.is_running() {
            self.run(world);
        }
    }

    /// Runs a stimulus inside the process after a delay by its own timers.
    pub fn after(
        self: &Arc<Self>,
        world: &Arc<World>,
        duration: Duration,
        stimulus: impl FnOnce(&Arc<World>) + Send + 'static,
    ) {
        let set_at = world.agenda.now();
        let due = set_at.saturating_add(self.clock.true_span(duration));
        self.at(world, set_at, due, Box::new(stimulus));
    }

    fn at(self: &Arc<Self>, world: &Arc<World>, set_at: Nanos, due: Nanos, stimulus: Stimulus) {
        let process = Arc::clone(self);
        world.agenda.enter(due, move |world| {
            let timed = Arc::clone(&process);
            process.post(world, Source::Timer, move |world| {
                // Timers stop during a suspend, so they have that time left.
                match timed.suspended_between(set_at, due) {
                    0 => stimulus(world),
                    left => {
                        let now = world.agenda.now();
                        timed.at(world, now, now + left, stimulus);
                    }
                }
            });
        });
    }

    fn suspended_between(&self, from: Nanos, to: Nanos) -> Nanos {
        let standing = locked(&self.standing);
        let overlap = |&(start, end): &(Nanos, Nanos)| {
            let (start, end) = (start.max(from), end.min(to));
            end.saturating_sub(start)
        };
        standing.suspends.iter().map(overlap).sum()
    }

    /// Runs everything that can run, until all tasks wait for something.
    fn run(&self, world: &Arc<World>) {
        let guard = locked(&self.runtime);
        let Some(runtime) = &*guard else { return };
        let stimuli = std::mem::take(&mut *locked(&self.inbox));
        self.idle.reached.store(false, Ordering::Relaxed);
        runtime.block_on(async {
            for (_, stimulus) in stimuli {
                stimulus(world);
            }
            poll_fn(|cx| {
                if self.idle.reached.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                *locked(&self.idle.waker) = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        });
    }

    /// Pauses it. Returns `false` if it is paused already, or dead.
    pub fn pause(&self, how: Pause, now: Nanos) -> bool {
        let mut standing = locked(&self.standing);
        if standing.dead || standing.paused.is_some() {
            return false;
        }
        standing.paused = Some((how, now));
        true
    }

    /// Resumes it. Returns `false` if it was not paused.
    pub fn resume(self: &Arc<Self>, world: &Arc<World>) -> bool {
        let now = world.agenda.now();
        {
            let mut standing = locked(&self.standing);
            let Some((how, since)) = standing.paused.take() else {
                return false;
            };
            if how == Pause::Suspended {
                standing.suspends.push((since, now));
            }
            standing.resumed_at = Some(now);
        }
        // The runtime may handle the timers that piled up before the sockets, or after them.
        let timers_first = world.dice.chance(0.5);
        locked(&self.inbox).sort_by_key(|(from, _)| (*from == Source::Timer) != timers_first);
        self.run(world);
        true
    }

    /// Ends it at once. Apart from destructors, none of its code runs any more.
    pub fn kill(&self) {
        locked(&self.standing).dead = true;
        let runtime = locked(&self.runtime).take();
        drop(runtime);
        let client = locked(&self.client).take();
        drop(client);
        let inbox = std::mem::take(&mut *locked(&self.inbox));
        drop(inbox);
    }

    /// Whether it has been killed.
    pub fn is_dead(&self) -> bool {
        locked(&self.standing).dead
    }

    /// Whether it is alive and not paused.
    pub fn is_running(&self) -> bool {
        let standing = locked(&self.standing);
        !standing.dead && standing.paused.is_none()
    }

    /// Whether it has been running for at least `span` without a pause.
    pub fn has_run_for(&self, span: Nanos, now: Nanos) -> bool {
        let standing = locked(&self.standing);
        let resumed = standing.resumed_at;
        !standing.dead
            && standing.paused.is_none()
            && resumed.is_none_or(|at| at.saturating_add(span) <= now)
    }

    /// The number of tasks in it that have not ended.
    pub fn tasks(&self) -> usize {
        let runtime = locked(&self.runtime);
        runtime
            .as_ref()
            .map_or(0, |runtime| runtime.metrics().num_alive_tasks())
    }
}

//! Callers that want work done once per period.

use std::time::Duration;

use leasehold::{Done, Lease, Once, Wait};

use crate::agenda::{MILLI, Nanos};
use crate::caller::Caller;
use crate::check::{once, progress};
use crate::clock::sleep;

/// How work ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    InSuccess,
    InFailure,
}

impl Caller {
    /// Wants the result again and again, until the run winds down.
    pub async fn wants_results(self) {
        let _busy = self.world.busy();
        let name = self.world.once_name();
        let period = self.world.plan.ttl * 5;
        while !self.world.is_winding_down() {
            self.pause(0.4).await;
            let once = self.once(name, period);
            let ends = match self.dice.chance(0.4) {
                true => Ends::InFailure,
                false => Ends::InSuccess,
            };
            let work = async |lease: &Lease| self.do_once(name, lease, period, ends).await;
            let call = once.run(work);
            let outcome = match self.dice.chance(self.world.plan.cancel / 2.0) {
                true => self.cancel(call).await,
                false => Some(call.await),
            };
            if let Some(Ok(done)) = outcome {
                self.is_shown(name, &done, period);
            }
        }
    }

    /// One of all processes does the work, and all others are shown its result, soon after it was
    /// stored: without faults, no waiter needs a heartbeat to learn of it.
    pub async fn wants_one_result(self) {
        let _busy = self.world.busy();
        let name = self.world.once_name_in_calm();
        let period = self.world.plan.ttl.max(Duration::from_secs(2));
        let once = self.client.once(self.world.names[name].as_bytes(), period);
        let round_trip = self.world.plan.longest_round_trip();
        let work = async |lease: &Lease| {
            let done = self.do_once(name, lease, period, Ends::InSuccess).await;
            // Until all others stand in line.
            let span = Duration::from_nanos(500 * MILLI + 20 * round_trip);
            sleep(&self.world, &self.process, span).await;
            done
        };
        let outcome = once.run(work).await;
        let now = self.world.agenda.now();
        let broken = match outcome {
            Err(_) => Some("an error".to_owned()),
            Ok(done) => {
                self.is_shown(name, &done, period);
                let runs = &mut *self.world.runs(name);
                if done.ran_here {
                    runs.note_stored(now);
                }
                let waited = now - runs.stored_at().unwrap_or(now).min(now);
                let limit = 300 * MILLI + 12 * round_trip;
                (waited > limit).then(|| format!("the result {:.1?} late", span(waited)))
            }
        };
        if let Some(broken) = broken {
            let what = format!("{} got {broken} without faults", self.process.label());
            self.world.violate(progress::PROMISE, what);
        }
    }

    async fn do_once(
        &self,
        name: usize,
        lease: &Lease,
        period: Duration,
        ends: Ends,
    ) -> Result<Vec<u8>, ()> {
        let (world, token) = (&self.world, lease.token());
        let id = world.granted(
            &self.process,
            name,
            (token, leasehold::Mode::Exclusive),
            None,
        );
        let _in_hand = self.in_hand(id);
        let began = world.runs(name).began(world, token, period);
        if let Err(what) = began {
            world.violate(once::PROMISE, what);
        }
        self.pause(0.5).await;
        if ends == Ends::InFailure {
            return Err(());
        }
        world.runs(name).succeeded(world, token);
        Ok(token.to_string().into_bytes())
    }

    fn is_shown(&self, name: usize, done: &Done, period: Duration) {
        let world = &self.world;
        let shown = world
            .runs(name)
            .shown(world, done.token, &done.bytes, period);
        if let Err(what) = shown {
            world.violate(once::PROMISE, what);
        }
    }

    fn once(&self, name: usize, period: Duration) -> Once {
        let once = self.client.once(self.world.names[name].as_bytes(), period);
        let unit = self.world.plan.ttl;
        let ttl = self.dice.pick(&[unit / 2, unit, unit * 2]);
        let once = once.with_options(|options| options.ttl(ttl).wait(Wait::For(unit * 4)));
        match self.dice.chance(0.2) {
            true => once.skip(),
            false => once,
        }
    }
}

fn span(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

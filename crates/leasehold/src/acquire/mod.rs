//! From a call to a lease.
//!
//! Tasks of one process that want the same name take turns in the [`local_queue`]. The task whose
//! turn it is becomes a [`waiter`]: it makes an [`attempt`] and, if the lock is held, stands in line
//! on the nodes. The [`proposer`] chooses tokens, and [`patience`] decides how long to go on.

use std::sync::Arc;

use crate::Lease;
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{Options, Wait};
use local_queue::LocalQueue;
use patience::Patience;

pub(crate) mod attempt;
pub(crate) mod local_queue;
pub(crate) mod patience;
mod place;
pub(crate) mod proposer;
pub(crate) mod waiter;

/// Acquires a lock as the options say: waits for the turn in this process, then for the lock.
///
/// Cancel safety: if dropped, a claim that was sent is released in the background; at worst it ends
/// with its TTL.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    options: &Options,
) -> Result<Lease, Error> {
    options.validate(core.constants.restart_guard)?;
    core.check_runtime()?;
    let started = core.clock.now();
    let until = match options.wait {
        Wait::No => started,
        Wait::For(wait) => started + wait,
        Wait::Forever => Moment::FAR,
    };
    // Only calls that stand in line take turns: others must not wait behind them.
    let mut turn = match options.queues_in_process() {
        true => LocalQueue::enter(core, name, until).await,
        false => None,
    };
    let passed = turn
        .as_mut()
        .and_then(|turn| turn.take(options, core.clock.now()));
    let won = match passed {
        Some(won) => won,
        None => {
            core.janitor.send_queued(name);
            let outage_since = turn.as_ref().and_then(|turn| turn.outage_since);
            let patience = Patience::new(options, core.next_seed(), started, outage_since);
            let won = waiter::acquire(core, name, options, patience).await;
            if let Some(turn) = &mut turn {
                // The next calls in this process need not find out one after the other.
                let lasts = matches!(won, Err(Error::NoMajority(_)));
                let since = core.clock.now().saturating_sub(options.outage_patience);
                turn.outage_since = lasts.then_some(since);
            }
            won?
        }
    };
    let lease = Lease::new(core, won, options, turn);
    // A shutdown that came meanwhile drops it.
    match core.is_shut_down() {
        false => Ok(lease),
        true => Err(Error::ShutDown),
    }
}

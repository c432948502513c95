//! From a call to a lease.
//!
//! Tasks of one process that want the same name exclusively take turns in the [`local_queue`]. The task whose
//! turn it is becomes a [`waiter`]: it makes an [`attempt`] and, if the lock is held, stands in line
//! on the nodes. The [`proposer`] chooses tokens, and [`patience`] decides how long to go on.

use std::pin::pin;
use std::sync::Arc;

use crate::Lease;
use crate::base::error::{Error, Invalid};
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::Won;
use crate::observe::HandOver;
use acquiring::{Acquiring, Seen};
pub(crate) use handle::{Handle, unless_held};
use local_queue::{LocalQueue, LocalTurn};
use patience::Patience;
pub(crate) use want::Want;

pub(crate) mod acquiring;
pub(crate) mod attempt;
pub(crate) mod handle;
pub(crate) mod local_queue;
pub(crate) mod look;
pub(crate) mod patience;
mod place;
pub(crate) mod proposer;
pub(crate) mod waiter;
mod want;

/// Acquires a lock as the options say: waits for the turn in this process, then for the lock.
///
/// Cancel safety: if dropped, a claim that was sent is released in the background; at worst it ends
/// with its TTL.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    want: &Want,
    options: &Options,
) -> Result<Lease, Error> {
    let Want { name, mode } = want;
    let seen = Seen::of(core, name, *mode, options);
    let mut call = Acquiring::begin(core, (name, *mode), options, seen.as_deref());
    let acquired = {
        let acquiring = pin!(take_turn(core, want, options, &mut call));
        Seen::enter(seen.as_deref(), acquiring).await
    };
    call.finish(&acquired);
    acquired
}

/// Waits for the turn in this process, then for the lock.
async fn take_turn(
    core: &Arc<Core>,
    want: &Want,
    options: &Options,
    call: &mut Acquiring<'_>,
) -> Result<Lease, Error> {
    check(core, want, options)?;
    // Only calls that stand in line take turns: others must not wait behind them. Readers hold the
    // lock together, so each of them stands in line itself.
    let turn = match want.mode {
        Mode::Exclusive if options.queues_in_process() => {
            LocalQueue::enter(core, &want.name, options.until(call.started), call).await
        }
        _ => None,
    };
    acquire_at(core, want, options, call, turn).await
}

/// Acquires a lock as above, without regard to other tasks of this process: the call has a place in
/// line of its own, and its claim is passed on to none of them.
///
/// Cancel safety: as above.
pub(crate) async fn acquire_alone(
    core: &Arc<Core>,
    want: &Want,
    options: &Options,
) -> Result<Lease, Error> {
    let Want { name, mode } = want;
    let seen = Seen::of(core, name, *mode, options);
    let mut call = Acquiring::begin(core, (name, *mode), options, seen.as_deref());
    let acquired = {
        let acquiring = pin!(async {
            check(core, want, options)?;
            acquire_at(core, want, options, &mut call, None).await
        });
        Seen::enter(seen.as_deref(), acquiring).await
    };
    call.finish(&acquired);
    acquired
}

/// Acquires a permit of the semaphore with this key, as the options say.
///
/// Cancel safety: as above.
pub(crate) async fn acquire_permit(
    core: &Arc<Core>,
    semaphore: &Name,
    permits: u32,
    options: &Options,
) -> Result<Lease, Error> {
    let wanted = (semaphore, Mode::Exclusive);
    let seen = Seen::of(core, semaphore, Mode::Exclusive, options);
    let mut call = Acquiring::begin(core, wanted, options, seen.as_deref());
    let acquired = {
        let acquiring = pin!(async {
            options.validate(core.constants.restart_guard)?;
            if !options.fencing {
                return Err(Invalid::PermitWithoutFencing.into());
            }
            core.check_runtime()?;
            core.janitor.send_queued(semaphore);
            let patience = Patience::new(options, core.next_seed(), call.started, None);
            let won = waiter::acquire_permit(core, semaphore, permits, options, patience, &call);
            let won = won.await?;
            begin_lease(core, won, options, &mut call, None)
        });
        Seen::enter(seen.as_deref(), acquiring).await
    };
    call.finish(&acquired);
    acquired
}

/// Checks a call before anything is sent.
fn check(core: &Core, want: &Want, options: &Options) -> Result<(), Error> {
    options.validate(core.constants.restart_guard)?;
    if want.mode == Mode::Shared && !options.fencing {
        return Err(Invalid::SharedWithoutFencing.into());
    }
    core.check_runtime()
}

/// Acquires a lock for a call, with its turn in this process if it has one.
async fn acquire_at(
    core: &Arc<Core>,
    want: &Want,
    options: &Options,
    call: &mut Acquiring<'_>,
    mut turn: Option<LocalTurn>,
) -> Result<Lease, Error> {
    let passed = turn
        .as_mut()
        .and_then(|turn| turn.take(options, core.clock.now()));
    let won = match passed {
        Some(won) => {
            call.handed_over(HandOver::Local);
            won
        }
        None => {
            core.janitor.send_queued(&want.name);
            let outage_since = turn.as_ref().and_then(|turn| turn.outage_since);
            let patience = Patience::new(options, core.next_seed(), call.started, outage_since);
            let won = waiter::acquire(core, want, options, patience, call).await;
            if let Some(turn) = &mut turn {
                // During an outage, the next call in this process fails without waiting for the
                // nodes again.
                let lasts = matches!(won, Err(Error::NoMajority(_)));
                let since = core.clock.now().saturating_sub(options.outage_patience);
                turn.outage_since = lasts.then_some(since);
            }
            let won = won?;
            // Nodes also grant a free lock to a call that joins the line at once.
            if call.is_contended_on_nodes() && won.grant.rounds().is_handed_over() {
                call.handed_over(HandOver::Node);
            }
            won
        }
    };
    begin_lease(core, won, options, call, turn)
}

/// Makes a claim that was won a lease.
fn begin_lease(
    core: &Arc<Core>,
    won: Won,
    options: &Options,
    call: &mut Acquiring<'_>,
    turn: Option<LocalTurn>,
) -> Result<Lease, Error> {
    let holding = call.holding(won.token);
    let lease = Lease::new(core, won, options, turn, holding);
    // If the client was shut down in the meantime, the lease is dropped, which releases it.
    match core.is_shut_down() {
        false => Ok(lease),
        true => {
            call.granted(&lease);
            Err(Error::ShutDown)
        }
    }
}

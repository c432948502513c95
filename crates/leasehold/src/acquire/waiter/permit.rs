//! Waiting for a permit of a semaphore.

use std::sync::Arc;

use super::{Place, Refused, Ticket, Turn, Waiting};
use crate::acquire::acquiring::Acquiring;
use crate::acquire::patience::Patience;
use crate::acquire::want::Want;
use crate::base::error::Error;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{Options, Wait};
use crate::lease::grant::Won;
use crate::node::seat::{SEARCHED, Seat};
use crate::planted;
use crate::quorum::round::Advice;

/// How often a call requests a permit that nodes named as free before it stands in line. Other clients
/// may be quicker each time.
const MAX_GUESSES: u32 = 8;

/// Wins a claim for a permit of the semaphore with this key, waiting for it as the options say. The
/// caller must make it a lease at once, because nothing else releases it.
///
/// The first request guesses a permit. If that is refused, the call stands in line with a claim that is
/// only its ticket. When a majority of nodes names the same free permit, it requests that permit, with
/// another claim.
///
/// Cancel safety: as above.
pub(crate) async fn acquire_permit(
    core: &Arc<Core>,
    semaphore: &Name,
    permits: u32,
    options: &Options,
    patience: Patience,
    call: &Acquiring<'_>,
) -> Result<Won, Error> {
    let line = Want::exclusive(semaphore.clone());
    let mut wait = Waiting {
        core,
        call,
        want: &line,
        options,
        patience,
        ticket: Ticket::default(),
        joins: true,
        fenced: true,
        seat: Some(Seat::ticket(semaphore.clone(), permits)),
    };
    let may_wait = options.wait != Wait::No;
    if !may_wait || !core.proposer.is_contended(semaphore, core.clock.now()) {
        let guess = u32::try_from(core.next_seed() % u64::from(permits)).unwrap_or(0);
        if let Some(won) = wait.guess_permit(guess, permits).await? {
            return Ok(won);
        }
    }
    let mut place = Place::new(wait.attempt()?, None);
    loop {
        match wait.wait_for_turn(&mut place).await? {
            Turn::Overtaken => {
                let leaving = place.attempt.take_armed();
                place = Place::new(wait.attempt()?, leaving);
                continue;
            }
            Turn::Come | Turn::Split => {}
        }
        let permit = match place.free_permit().filter(|permit| *permit < permits) {
            Some(permit) => permit,
            None => {
                // Nodes that take the ticket for the claim of a lock, or name a permit that does not
                // exist. What they said stays so, and is of no use: without a pause, this would send
                // requests without end.
                let pause = wait.on_refused(place.unusable()).await?;
                core.clock.sleep(pause).await;
                let leaving = place.attempt.take_armed();
                place = Place::new(wait.attempt()?, leaving);
                continue;
            }
        };
        let ticket = Arc::clone(&place.attempt.claim);
        let seat = Seat::permit(semaphore.clone(), permits, permit, Some(ticket.owner()));
        if planted::on(planted::Bug::FreeIsGrant) {
            return wait.believe_permit(seat);
        }
        match wait.take_permit(seat, Some(&mut place)).await? {
            Ok(won) => {
                // Where the permit was granted, the ticket has left the line. A WAIT that was not answered
                // must not be sent again: it would join the line once more.
                place.attempt.claim.mark_released();
                let granted = won.grant.rounds().granted();
                if let Some(mut ticket) = place.attempt.take_armed() {
                    ticket.release(granted);
                }
                return Ok(won);
            }
            Err(refused) => {
                // The ticket has joined the line again: what the nodes answer ends the pause.
                let pause = wait.on_refused(refused).await?;
                place.is_notified_within(pause).await;
            }
        }
    }
}

impl Waiting<'_> {
    /// Requests a permit without standing in line: the guessed one, and then those that the nodes name
    /// as free. A call that may not wait goes on until the nodes have looked at all permits. `None`: it
    /// is time to stand in line.
    async fn guess_permit(&mut self, guess: u32, permits: u32) -> Result<Option<Won>, Error> {
        let (mut permit, mut guesses, mut searched) = (guess, 0, SEARCHED);
        loop {
            let seat = Seat::permit(self.want.name.clone(), permits, permit, None);
            let refused = match self.take_permit(seat, None).await? {
                Ok(won) => return Ok(Some(won)),
                Err(refused) => refused,
            };
            let free = refused.refusal.free_permit();
            let free = free.filter(|permit| *permit < permits);
            let contended = matches!(refused.advice, Advice::Contended { .. });
            if let (true, Some(free), ..MAX_GUESSES) = (contended, free, guesses) {
                (permit, guesses) = (free, guesses + 1);
            } else if contended && self.options.wait != Wait::No {
                self.call.contend_on_nodes();
                return Ok(None);
            } else if contended && searched < permits {
                permit = (guess + searched) % permits;
                searched += SEARCHED;
            } else {
                let pause = self.on_refused(refused).await?;
                self.core.clock.sleep(pause).await;
                return Ok(None);
            }
        }
    }

    /// Requests a permit, with as many tokens one after the other as it takes. The inner error says
    /// why it was refused.
    ///
    /// Rule: after a refusal, the ticket joins the line again before anything else is requested. Nodes
    /// that granted the permit removed it, and would serve the waiters behind it.
    async fn take_permit(
        &self,
        seat: Seat,
        mut place: Option<&mut Place<'_>>,
    ) -> Result<Result<Won, Refused>, Error> {
        let want = Want::exclusive(self.want.name.permit(seat.number().unwrap_or(0)));
        let mut taking = Waiting {
            want: &want,
            ticket: Ticket::default(),
            joins: false,
            fenced: true,
            seat: Some(seat),
            patience: self.patience.clone(),
            ..*self
        };
        loop {
            let mut refused = match taking.attempt()?.take().await {
                Ok(won) => return Ok(Ok(won)),
                Err(not_taken) => not_taken.refused,
            };
            if let Some(place) = &mut place {
                place.join();
            }
            if !taking.retokens(&mut refused.advice).await {
                return Ok(Err(refused));
            }
        }
    }

    /// Planted bug: treats a free permit as a lease.
    fn believe_permit(&self, seat: Seat) -> Result<Won, Error> {
        let want = Want::exclusive(self.want.name.permit(seat.number().unwrap_or(0)));
        let taking = Waiting {
            want: &want,
            seat: Some(seat),
            patience: self.patience.clone(),
            ..*self
        };
        Ok(taking.attempt()?.believe())
    }
}

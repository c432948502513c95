//! What every deployment must do, whatever its nodes are. One file per promise, one test per
//! case.
//!
//! The cases run in real time, because real servers do. None of them depends on a fast machine.
//! Where something must not happen *before* a time, that is checked exactly. Where something must
//! happen, it has a deadline of many seconds, or one of several attempts must succeed.

mod cancelling;
mod election;
mod excluding;
mod expiring;
mod fencing;
mod foreign;
mod holding;
mod input;
mod inspecting;
mod latch;
mod line;
mod once;
mod permits;
mod several;
mod sharing;
mod starving;
mod unfenced;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Builder, Client, Lease, Mutex, Options};

use crate::Deployment;
use crate::setup::{LONG, patient, pause, until};

pub use cancelling::*;
pub use election::*;
pub use excluding::*;
pub use expiring::*;
pub use fencing::*;
pub use foreign::*;
pub use holding::*;
pub use input::*;
pub use inspecting::*;
pub use latch::*;
pub use line::*;
pub use once::*;
pub use permits::*;
pub use several::*;
pub use sharing::*;
pub use starving::*;
pub use unfenced::*;
pub use waiting::*;

/// The time limit of a case, which only a hang exceeds.
const LIMIT: Duration = Duration::from_secs(120);

/// The TTL of [`patient`] options, long enough that a test notices when only the TTL frees a lock.
const TTL: Duration = LONG;

/// The environment of a case.
pub struct Case {
    deployment: Arc<dyn Deployment>,
}

/// Runs one case.
///
/// # Panics
/// If the case fails, or takes longer than two minutes.
pub fn run<D, F>(deployment: D, case: impl FnOnce(Case) -> F)
where
    D: Deployment + 'static,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let case = case(Case {
        deployment: Arc::new(deployment),
    });
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, case)
            .await
            .expect("the case hangs");
    });
}

impl Case {
    fn builder(&self) -> Builder {
        self.deployment
            .builder()
            .connect_timeout(LONG)
            .options(patient(Options::default()))
    }

    async fn client(&self) -> Client {
        self.builder().connect().await.expect("the nodes work")
    }

    /// The number of nodes that have a lock of this name.
    fn locked(&self, name: &str) -> usize {
        let values = self.deployment.values(name.as_bytes());
        values.iter().flatten().count()
    }

    /// Waits until no node has a lock of this name, for less than the TTL, which would free it in
    /// any case.
    async fn until_free(&self, name: &str) {
        until(&format!("`{name}` is free"), || self.locked(name) == 0).await;
    }
}

/// A TTL that a test waits for.
const SHORT: Duration = Duration::from_millis(800);

/// A TTL that is renewed every second, and lost only if the machine stalls for two.
const RENEWED: Duration = Duration::from_secs(3);

fn with_ttl(mutex: Mutex, ttl: Duration) -> Mutex {
    mutex.with_options(|o| o.ttl(ttl).node_timeout(ttl))
}

/// A mutex with a TTL that may expire before the first line of the holder's code.
fn short(mutex: Mutex) -> Mutex {
    with_ttl(mutex, SHORT).with_options(|o| o.without_renewal())
}

/// A mutex with a TTL that would expire without renewal.
fn renewed(mutex: Mutex) -> Mutex {
    with_ttl(mutex, RENEWED)
}

/// A lease that ends soon.
async fn ending(mutex: Mutex) -> Lease {
    // An attempt that took longer than the TTL makes no lease. The next one may be quicker.
    short(mutex).lock().await.expect("a lease")
}

async fn taken(mutex: &Mutex) -> Lease {
    mutex.try_lock().await.expect("a majority").expect("free")
}

async fn is_taken(mutex: &Mutex) -> bool {
    mutex.try_lock().await.expect("a majority").is_none()
}

/// Expands to one test for each case of the suite, each with a new deployment.
///
/// ```
/// leasehold_testkit::conformance!(leasehold_testkit::Memory::new());
/// ```
#[macro_export]
macro_rules! conformance {
    ($deployment:expr) => {
        $crate::conformance!($deployment;
            acquires_and_releases,
            excludes_another_client,
            excludes_the_same_client,
            names_are_independent,
            prefixes_are_independent,
            one_of_64_tasks_at_a_time,
            one_of_8_clients_at_a_time,
            is_free_after_its_ttl,
            ends_at_its_deadline,
            reports_the_loss_when_released_late,
            signals_the_loss_before_the_deadline,
            no_other_client_holds_it_before_the_lease_ends,
            survives_three_ttls_by_renewal,
            renews_many_at_once,
            outlives_the_client_handle,
            extends_by_hand,
            ends_at_max_hold,
            stays_taken_for_min_hold,
            stays_taken_after_release_keeping,
            runs_a_closure_and_releases,
            cancels_a_closure_when_lost,
            drop_releases,
            a_dropped_lease_can_be_acquired_again_at_once,
            drop_outside_of_a_runtime_releases,
            shutdown_drains,
            a_cancelled_caller_leaves_nothing,
            a_cancelled_waiter_leaves_nothing,
            a_failed_attempt_leaves_nothing,
            tokens_grow_from_owner_to_owner,
            tokens_grow_with_wrong_client_clocks,
            tokens_grow_when_nodes_forget,
            a_stale_owner_cannot_release,
            a_stale_owner_cannot_extend,
            a_lease_that_nodes_forgot_is_lost,
            respects_foreign_owners,
            respects_foreign_owners_without_a_ttl,
            takes_over_when_a_foreign_lock_expires,
            waits_for_its_turn,
            gives_up_waiting_in_time,
            does_not_wait_with_wait_no,
            counts_its_attempts,
            retries_without_delay,
            the_error_names_the_holder,
            takes_options_per_call,
            takes_names_of_any_bytes,
            refuses_bad_names,
            refuses_bad_durations,
            inspection_shows_the_holders,
            inspection_shows_when_a_lock_was_granted,
            shows_and_breaks_foreign_locks,
            breaks_only_the_lock_of_the_named_owner,
            names_round_trip_under_a_prefix,
            the_error_of_a_lost_lease_names_the_new_holder,
            a_broken_lock_is_lost_at_the_next_renewal,
            a_detached_lease_is_identified_by_its_owner,
            a_detached_lease_that_has_ended_is_not_extended,
            shows_the_holder_to_a_waiter,
            serves_waiters_in_order_of_arrival,
            no_caller_jumps_the_line,
            a_waiter_that_gives_up_does_not_delay_others,
            a_waiter_cancelled_at_its_turn_passes_the_turn_on,
            a_dead_waiter_delays_others_only_briefly,
            passes_a_claim_from_task_to_task,
            a_barging_caller_acquires_a_free_lock,
            acquires_all_names_or_none,
            opposite_orders_do_not_deadlock,
            losing_one_name_ends_the_work,
            a_cancelled_call_for_several_names_leaves_nothing,
            min_hold_keeps_all_names_or_none,
            the_last_guard_releases,
            without_fencing_it_is_a_plain_lock,
            without_fencing_it_is_handed_over,
            without_fencing_it_stays_taken_for_min_hold,
            one_of_8_runs_and_all_get_the_result,
            a_thousand_tasks_share_one_run,
            after_a_failure_the_next_runs,
            after_a_killed_runner_the_next_runs,
            runs_again_after_the_period,
            a_cleared_result_is_run_again,
            refuses_a_result_that_is_too_long,
            skips_a_run_in_progress,
            gives_up_waiting_for_a_result_in_time,
            a_cancelled_run_leaves_nothing,
            one_of_8_candidates_leads,
            another_candidate_follows_a_leader_that_fails,
            an_observer_sees_each_leader,
            a_name_without_a_holder_has_no_leader,
            readers_share_the_lock,
            a_writer_excludes_readers,
            readers_respect_foreign_owners,
            readers_and_writers_are_served_in_order,
            readers_and_writers_take_turns,
            a_downgrade_admits_readers_and_no_writer,
            a_cancelled_downgrade_leaves_nothing,
            a_reader_is_gone_after_its_ttl,
            readers_survive_three_ttls_by_renewal,
            readers_that_nodes_forgot_are_lost,
            a_reader_stays_for_min_hold,
            a_cancelled_reader_leaves_nothing,
            a_detached_reader_is_identified_by_its_owner,
            a_reader_needs_a_token,
            a_plain_lock_excludes_readers,
            shows_and_breaks_readers,
            a_latch_opens_when_all_have_arrived,
            a_barrier_holds_all_until_the_last,
            an_arrival_counts_once_and_ends,
            refuses_bad_parties,
            permits_are_limited,
            a_free_permit_is_found,
            the_last_of_very_many_permits_is_found,
            waiters_get_permits_in_order_of_arrival,
            no_caller_jumps_the_line_for_a_permit,
            at_most_so_many_of_8_clients_at_a_time,
            tokens_of_a_permit_grow,
            a_permit_is_free_after_its_ttl,
            a_permit_is_renewed,
            several_permits_at_once,
            another_number_of_permits_is_refused,
            a_semaphore_can_be_resized,
            a_cancelled_call_for_a_permit_leaves_nothing,
            a_released_permit_wakes_a_waiter_for_the_next,
            refuses_bad_numbers_of_permits,
            a_detached_permit_is_identified_by_its_owner,
            a_kept_reader_can_be_broken,
            no_reader_and_no_writer_starves,
            nobody_starves_for_a_permit,
        );
    };
    ($deployment:expr; $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::run($deployment, $crate::conformance::$case);
            }
        )*
    };
}

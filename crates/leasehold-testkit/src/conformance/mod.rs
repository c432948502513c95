//! What every deployment must do, whatever its nodes are. One file per promise, one test per
//! case.
//!
//! The cases run in real time, because real servers do. None of them depends on a fast machine.
//! Where something must not happen *before* a time, that is checked exactly. Where something must
//! happen, it has a deadline of many seconds, or one of several attempts must succeed.

mod cancelling;
mod excluding;
mod expiring;
mod fencing;
mod foreign;
mod holding;
mod input;
mod inspecting;
mod standing;
mod unfenced;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Builder, Client, Lease, Moment, Mutex, Options};

use crate::Deployment;

pub use cancelling::*;
pub use excluding::*;
pub use expiring::*;
pub use fencing::*;
pub use foreign::*;
pub use holding::*;
pub use input::*;
pub use inspecting::*;
pub use standing::*;
pub use unfenced::*;
pub use waiting::*;

/// The time limit of a case, which only a hang exceeds.
const LIMIT: Duration = Duration::from_secs(120);

/// Long enough that a test notices when only the TTL frees a lock.
const TTL: Duration = Duration::from_secs(50);

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
    /// Options with which a slow machine cannot fail a test.
    fn options() -> Options {
        Options::default()
            .ttl(TTL)
            .node_timeout(Duration::from_secs(10))
            .outage_patience(Duration::from_secs(30))
    }

    fn builder(&self) -> Builder {
        self.deployment
            .builder()
            .connect_timeout(Duration::from_secs(60))
            .options(Self::options())
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
        let start = Moment::now();
        while self.locked(name) > 0 {
            let waited = Moment::now().saturating_duration_since(start);
            assert!(waited < TTL / 2, "`{name}` is left to its TTL");
            pause(5).await;
        }
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

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
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
            tokens_grow_whatever_the_clients_clocks_say,
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
            shows_who_holds_what,
            shows_when_a_lock_was_granted,
            shows_and_breaks_foreign_locks,
            breaks_the_lock_of_the_owner_named,
            names_round_trip_under_a_prefix,
            says_who_took_a_lost_lease,
            a_broken_lock_is_lost_at_the_next_renewal,
            a_detached_lease_is_identified_by_its_owner,
            shows_the_holder_to_a_waiter,
            serves_waiters_in_order_of_arrival,
            no_caller_jumps_the_line,
            a_waiter_that_gives_up_delays_no_other,
            a_waiter_cancelled_at_its_turn_passes_it_on,
            a_dead_waiter_delays_no_other_for_long,
            passes_a_claim_from_task_to_task,
            a_barging_caller_acquires_a_free_lock,
            without_fencing_it_is_a_plain_lock,
            without_fencing_it_is_handed_over,
            without_fencing_it_stays_taken_for_min_hold,
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

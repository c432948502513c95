//! `wait`: waits until a lock is free, without acquiring it.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::{LockState, Moment};

use crate::acquire::shut_down;
use crate::args::WaitFree;
use crate::break_lock::unknown;
use crate::exit::{self, Failure, Outcome};
use crate::messages;
use crate::nested::{Enclosing, EnclosingLease};
use crate::report::short;
use crate::signals::SignalStreams;

/// How often to look: sooner at first, and when the lock expires.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn wait_free(args: WaitFree) -> Outcome {
    match until_free(&args).await {
        // Contention is not an error.
        Err(failure) if failure.held && args.quiet => Ok(ExitCode::from(failure.code)),
        Err(failure) if failure.held => {
            crate::report::print_message(&failure.text);
            Ok(ExitCode::from(failure.code))
        }
        ended => ended,
    }
}

/// The error for a lock that this process runs under.
fn never_free(lease: &EnclosingLease) -> Failure {
    let next = match lease.by_script {
        true => format!("release it first with `leasehold release {}`", lease.name),
        false => "run `leasehold wait` outside of the command that holds the lock".to_owned(),
    };
    let held = lease.held();
    Failure::usage(format!("{held}, so the wait would never end\nnext: {next}"))
}

async fn until_free(args: &WaitFree) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let client = args.nodes.inspecting_client()?;
    let enclosing = Enclosing::leases();
    let mut signals = SignalStreams::start()?;
    let (started, mut pause, mut answered) = (Moment::now(), FIRST_PAUSE, Moment::now());
    let waited = || Moment::now().saturating_duration_since(started);
    loop {
        let inspection = client.inspect(args.name.as_bytes()).await?;
        if let Some(lease) = enclosing.among(&inspection) {
            return Err(never_free(&lease));
        }
        let mut next = pause;
        let held = match inspection.state() {
            LockState::NotHeld => {
                shut_down(&client).await;
                return Ok(ExitCode::SUCCESS);
            }
            LockState::Held(lock) => {
                answered = Moment::now();
                if let Some(left) = lock.remaining {
                    next = next.min(left + Duration::from_millis(1));
                }
                Some(messages::lock_held_by(lock))
            }
            _ => None,
        };
        let patience = args.wait.unwrap_or(nodes.outage_patience());
        if held.is_none() && Moment::now().saturating_duration_since(answered) >= patience {
            return Err(unknown(&inspection));
        }
        if let Some(wait) = args.wait {
            let left = wait.saturating_sub(waited());
            if left.is_zero() {
                let (name, waited) = (&inspection.name, short(waited()));
                let held = held.unwrap_or_else(|| "held by another process".to_owned());
                let text = format!("waited for {waited}: `{name}` is {held}");
                return Err(Failure {
                    code: args.conflict_exit_code,
                    ..Failure::new(exit::HELD, text)
                });
            }
            next = next.min(left);
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            biased;
            signal = signals.until_ended() => {
                return Ok(ExitCode::from(exit::by_signal(signal as i32)));
            }
            () = tokio::time::sleep(next.max(Duration::from_millis(5))) => {}
        }
    }
}

//! `elect`: runs a command while this process leads, again and again.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use leasehold::{
    Election, Error, Leader, Moment, NodeOutcome, NodeReport, Options, Refusal, Released,
};
use serde::Serialize;

use super::child::Output;
use super::supervise::{Inputs, report_loss};
use super::{
    Job, MAX_LEASES, command_line, expired, loss_of, report_release, report_too_late, since, start,
    work,
};
use crate::acquire::{Acquired, LockRequest, TheLock, enclosed, release_unused, shut_down};
use crate::args::{Elect, WaitArgs};
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::messages;
use crate::nested::Enclosing;
use crate::output::write_in_background;
use crate::report::{Event, Reporter, Stdout, millis, print_stdout, short, unix_ms, visible};
use crate::signals::SignalStreams;

/// The pause between two terms, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A command that fails sooner than this doubles the pause.
const QUICK: Duration = Duration::from_secs(10);
/// How long `--observe` waits at the start before it asks nodes again that did not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) async fn elect(args: Elect) -> Outcome {
    let reporter = Reporter::new(&args.report, [&args.name]);
    let ended = match args.observe {
        true => observe(&args).await,
        false => campaign(&args, &reporter).await,
    };
    Ok(ExitCode::from(ended.unwrap_or_else(|failure| {
        reporter.fail(&failure);
        failure.code
    })))
}

/// How a term ended.
enum Term {
    /// A signal ended it, and this process exits with this code.
    Over(u8),
    /// The command exited by itself, or its lease was lost.
    Ended { failed: bool, lasted: Duration },
}

/// Runs the command in one term after the other, until a signal arrives.
async fn campaign(args: &Elect, reporter: &Reporter) -> Result<u8, Failure> {
    let waiting = WaitArgs {
        wait: None,
        no_wait: false,
        conflict_exit_code: exit::HELD,
        label: args.value.clone(),
    };
    let nodes = args.nodes.resolve()?;
    let options = waiting.options(&nodes, Options::default().ttl(args.holding.ttl));
    let mut request = LockRequest {
        name: &args.name,
        nodes: &nodes,
        // As for `run`.
        options: options.detached(),
        waiting: &waiting,
        enclosing: Enclosing::leases(),
        reporter,
        started: Moment::now(),
        answered: Arc::default(),
        wanted: TheLock {
            mode: leasehold::Mode::Exclusive,
        },
    };
    let mut signals = SignalStreams::start()?;
    let mut pause = PAUSE;
    loop {
        request.started = Moment::now();
        let (failed, lasted) = match term(args, &request, &mut signals, pause).await {
            Ok(Term::Over(code)) => return Ok(code),
            Ok(Term::Ended { failed, lasted }) => {
                request.answered.store(true, Ordering::Relaxed);
                (failed, lasted)
            }
            // The nodes have answered before, and may answer again.
            Err(failure)
                if request.answered.load(Ordering::Relaxed)
                    && failure.code == exit::UNAVAILABLE =>
            {
                reporter.fail(&failure);
                (true, Duration::ZERO)
            }
            Err(failure) => return Err(failure),
        };
        reporter.step(
            Event::Pausing {
                pause_ms: millis(pause),
            },
            || format!("a candidate again in {}", short(pause)),
        );
        tokio::select! {
            biased;
            signal = signals.until_ended() => return Ok(exit::by_signal(signal as i32)),
            () = tokio::time::sleep(pause) => {}
        }
        pause = next_pause(pause, failed, lasted);
    }
}

/// The pause after the next term.
fn next_pause(pause: Duration, failed: bool, lasted: Duration) -> Duration {
    match failed && lasted < QUICK {
        true => (pause * 2).min(LONGEST_PAUSE),
        false => PAUSE,
    }
}

/// Waits until this process leads, runs the command, and resigns. The name is kept taken for `pause`.
async fn term(
    args: &Elect,
    request: &LockRequest<'_, TheLock>,
    signals: &mut SignalStreams,
    pause: Duration,
) -> Result<Term, Failure> {
    let reporter = request.reporter;
    for _ in 0..MAX_LEASES {
        let job = Job {
            name: &args.name,
            line: command_line(&args.command, args.line.as_ref()),
            plan: args.holding.plan(None)?,
            output: Output::Inherited,
        };
        let inputs = Inputs::open()?;
        let (client, lease) = match request.acquire(signals).await? {
            Acquired::Got(client, lease) => (client, lease),
            Acquired::Enclosed(lease) => return Err(enclosed(reporter, &lease)),
        };
        write_in_background();
        let held = Held::one(&lease);
        reporter.acquired(&held, since(request.started));
        let child = match start(&job, request, &held) {
            Ok(Some(child)) => child,
            not_started => {
                release_unused(lease).await;
                shut_down(&client).await;
                not_started?;
                report_too_late(reporter);
                continue;
            }
        };
        let started = Moment::now();
        let at_work = (&child, &client, &held);
        let ended = work(at_work, reporter, signals, inputs, job.plan).await;
        let (loss, lasted) = (loss_of(&held), since(started));
        let ended_by_signal = ended.as_ref().is_ok_and(|ended| ended.asked_to_stop);
        // A command that fails must not be tried by one machine after the other.
        let released = match ended_by_signal || ended.is_err() {
            true => lease.release().await == Released::Released,
            false => lease.release_keeping(pause).await.is_ok(),
        };
        shut_down(&client).await;
        let ended = ended?;
        let lost = ended.lost || !released;
        if lost && !ended.lost {
            report_loss(reporter, &loss, None);
        }
        let kept = (!ended_by_signal).then_some(pause);
        report_release(reporter, lasted, lost, kept);
        let code = match lost {
            true => exit::LOST,
            false => ended.ended.code(),
        };
        return Ok(match ended_by_signal {
            true => Term::Over(code),
            false => Term::Ended {
                failed: code != 0,
                lasted,
            },
        });
    }
    Err(expired())
}

/// A change of the leader, as JSON.
#[derive(Serialize)]
struct Change<'a> {
    time_ms: u64,
    name: &'a str,
    /// `leader` or `no_leader`.
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

/// Prints each change of the leader, until a signal arrives or stdout is closed.
async fn observe(args: &Elect) -> Result<u8, Failure> {
    let nodes = args.nodes.resolve()?;
    let client = args.nodes.inspecting_client()?;
    let election = client.election(args.name.as_bytes());
    let mut signals = SignalStreams::start()?;
    // The observer takes an outage for no change, so one at the start must be noticed here.
    tokio::select! {
        biased;
        signal = signals.until_ended() => return Ok(exit::by_signal(signal as i32)),
        reachable = until_answered(&election, nodes.outage_patience()) => reachable?,
    }
    let mut observer = election.observe();
    loop {
        let leader = tokio::select! {
            biased;
            signal = signals.until_ended() => return Ok(exit::by_signal(signal as i32)),
            leader = observer.changed() => leader?,
        };
        let name = args.name.to_string_lossy();
        let line = match args.report.json {
            true => json(&name, leader.as_ref())?,
            false => text(leader.as_ref()),
        };
        if print_stdout(format!("{line}\n").as_bytes())? == Stdout::Closed {
            return Ok(0);
        }
    }
}

/// Waits until the nodes tell who leads, as long as `elect` waits for nodes.
async fn until_answered(election: &Election, patience: Duration) -> Result<(), Failure> {
    let started = Moment::now();
    loop {
        let error = match election.leader().await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let waits = match &error {
            Error::NoMajority(refusal) => {
                let votes_later = messages::votes_in(refusal).is_some();
                votes_later || !is_permanent(refusal) && since(started) < patience
            }
            _ => false,
        };
        if !waits {
            return Err(error.into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether so many nodes will not answer until a configuration has changed that the others are not a
/// majority.
fn is_permanent(refusal: &Refusal) -> bool {
    let fails = |report: &&NodeReport| matches!(&report.outcome, NodeOutcome::Failed(e) if e.is_permanent());
    let failing = refusal.nodes.iter().filter(fails).count();
    refusal.nodes.len() - failing < refusal.majority
}

fn text(leader: Option<&Leader>) -> String {
    let Some(leader) = leader else {
        return "no leader".to_owned();
    };
    let value = match &*leader.value {
        "" => "leader",
        value => value,
    };
    let text = match (&leader.holder.host, leader.holder.pid) {
        (Some(host), Some(pid)) => format!("{value} ({host} pid {pid}), token {}", leader.token),
        _ => format!("{value}, token {}", leader.token),
    };
    visible(&text).into_owned()
}

fn json(name: &str, leader: Option<&Leader>) -> Result<String, Failure> {
    let change = Change {
        time_ms: unix_ms(SystemTime::now()),
        name,
        event: match leader {
            Some(_) => "leader",
            None => "no_leader",
        },
        value: leader.map(|leader| &*leader.value),
        token: leader.map(|leader| leader.token),
        host: leader.and_then(|leader| leader.holder.host.as_deref()),
        pid: leader.and_then(|leader| leader.holder.pid),
    };
    Ok(serde_json::to_string(&change).map_err(std::io::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_the_command_fails_quickly() {
        let (mut pause, mut pauses) = (PAUSE, Vec::new());
        for _ in 0..7 {
            pauses.push(pause.as_secs());
            pause = next_pause(pause, true, Duration::from_secs(1));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(next_pause(pause, true, QUICK), PAUSE);
        assert_eq!(next_pause(pause, false, Duration::ZERO), PAUSE);
    }
}

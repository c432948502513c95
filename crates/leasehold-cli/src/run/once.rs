//! `once`: runs a command once per period, and prints its output for all.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    Client, Error, Holder, Invalid, Moment, OnceStart, OnceTurn, Options, Released, Sighting,
};

use super::child::{Child, Output};
use super::supervise::{Inputs, report_loss};
use super::{
    Job, MAX_LEASES, command_line, expired, loss_of, report_release, report_too_late, since, start,
    work,
};
use crate::acquire::{Acquired, LockRequest, Wanted, enclosed, shut_down, shut_down_after_release};
use crate::args::{Once, WaitArgs};
use crate::break_lock::unconfirmed;
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::messages;
use crate::nested::Enclosing;
use crate::output::write_in_background;
use crate::report::{Event, Reporter, exact, millis, print_message, print_stdout, short};
use crate::signals::SignalStreams;

/// The result of the period, or the turn to run the command.
struct TheResult {
    period: Duration,
    skips: bool,
}

impl Wanted for TheResult {
    type Got = OnceStart;

    fn ask(
        &self,
        client: &Client,
        name: &[u8],
        change: impl FnOnce(Options) -> Options,
    ) -> impl Future<Output = Result<OnceStart, Error>> {
        let once = client.once(name, self.period).with_options(change);
        let once = match self.skips {
            false => once,
            true => once.skip(),
        };
        async move { once.begin().await }
    }

    async fn discard(&self, got: OnceStart) {
        if let OnceStart::Turn(turn) = got {
            turn.pass().await;
        }
    }
}

pub(crate) async fn once(args: Once) -> Outcome {
    let reporter = Reporter::new(&args.report, [&args.name]);
    let ended = match args.clear {
        true => clear(&args).await,
        false => run(&args, &reporter).await,
    };
    Ok(ExitCode::from(ended.unwrap_or_else(|failure| {
        reporter.fail(&failure);
        failure.code
    })))
}

/// Deletes the stored output.
async fn clear(args: &Once) -> Result<u8, Failure> {
    let client = args.nodes.inspecting_client()?;
    // The period has no effect here.
    let once = client.once(args.name.as_bytes(), Duration::from_secs(1));
    let cleared = once.clear().await;
    let after = client.inspect(args.name.as_bytes()).await;
    shut_down(&client).await;
    let name = args.name.to_string_lossy();
    match cleared? {
        true => {
            if !args.report.quiet {
                print_message(format!("deleted the stored output of `{name}`"));
            }
            let has_output = |seen: &Sighting| seen.holder.result.is_some();
            for warning in unconfirmed(&after?, "the stored output", has_output) {
                print_message(warning);
            }
            Ok(0)
        }
        false => {
            let text = format!("`{name}` has no stored output; nothing was deleted");
            Err(Failure::new(exit::NOTHING, text))
        }
    }
}

/// Prints the stored output, or runs the command and stores its output. Returns the exit code.
async fn run(args: &Once, reporter: &Reporter) -> Result<u8, Failure> {
    let job = Job {
        name: &args.name,
        line: command_line(&args.command, args.line.as_ref()),
        plan: args.holding.plan(args.at_most_for)?,
        output: Output::Captured,
    };
    let waiting = WaitArgs {
        wait: args.wait,
        no_wait: args.skip,
        conflict_exit_code: args.conflict_exit_code,
        label: args.label.clone(),
    };
    let nodes = args.nodes.resolve()?;
    let options = waiting.options(&nodes, Options::default().ttl(args.holding.ttl));
    let request = LockRequest {
        name: &args.name,
        nodes: &nodes,
        // As for `run`.
        options: options.detached(),
        waiting: &waiting,
        enclosing: Enclosing::leases(),
        reporter,
        started: Moment::now(),
        answered: Arc::default(),
        wanted: TheResult {
            period: args.period.unwrap_or_default(),
            skips: args.skip,
        },
    };
    let mut signals = SignalStreams::start()?;
    let inputs = Inputs::open()?;
    let (client, turn, mut child) = match begin(&request, &job, &mut signals).await? {
        Began::Printed => return Ok(0),
        Began::Running(client, turn, child) => (client, turn, child),
    };
    let started = Moment::now();
    let held = Held::one(turn.lease());
    let at_work = (&child, &client, &held);
    let ended = work(at_work, reporter, &mut signals, inputs, job.plan).await;
    let output = child.captured().await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(failure) => {
            turn.pass().await;
            shut_down(&client).await;
            return Err(failure);
        }
    };
    let loss = loss_of(&held);
    let succeeded = ended.ended.code() == 0 && !ended.lost && !ended.timed_out;
    let (mut lost, mut failure) = (ended.lost, None);
    if succeeded {
        match turn.store(&output.bytes).await {
            Ok(done) => {
                let (bytes, period) = (done.bytes.len(), request.wanted.period);
                let event = Event::Stored {
                    bytes,
                    for_ms: millis(period),
                };
                reporter.step(event, || {
                    format!("stored {bytes} bytes of output for {}", exact(period))
                });
                let what = "output of the command";
                failure = output.error.map(|error| not_printed(what, &error));
            }
            Err(Error::Lost { .. }) => lost = true,
            Err(error) => failure = Some(not_stored(error)),
        }
    } else if turn.pass().await == Released::WasLost {
        lost = true;
    }
    if lost && !ended.lost {
        report_loss(reporter, &loss, None);
    }
    report_release(reporter, since(started), lost, None);
    match lost || failure.is_some() {
        true => shut_down(&client).await,
        false => shut_down_after_release(&client).await,
    }
    match failure {
        Some(failure) => Err(failure),
        None if lost => Ok(exit::LOST),
        None if ended.timed_out => Ok(exit::TIME_LIMIT),
        None => Ok(ended.ended.code()),
    }
}

/// How a call begins.
enum Began {
    /// The stored output was printed.
    Printed,
    Running(Client, OnceTurn, Child),
}

async fn begin(
    request: &LockRequest<'_, TheResult>,
    job: &Job<'_>,
    signals: &mut SignalStreams,
) -> Result<Began, Failure> {
    let reporter = request.reporter;
    for _ in 0..MAX_LEASES {
        let (client, begun) = match request.acquire(signals).await? {
            Acquired::Got(client, begun) => (client, begun),
            Acquired::Enclosed(lease) => return Err(enclosed(reporter, &lease)),
        };
        let turn = match begun {
            OnceStart::Turn(turn) => turn,
            OnceStart::Stored(done) => {
                let age = done.at.elapsed().unwrap_or_default();
                let event = Event::Found {
                    token: done.token,
                    bytes: done.bytes.len(),
                    age_ms: millis(age),
                };
                reporter.step(event, || {
                    format!(
                        "printing the output of {} ago, token {}",
                        short(age),
                        done.token
                    )
                });
                let printed = print_stdout(&done.bytes);
                shut_down(&client).await;
                return match printed {
                    Ok(_) => Ok(Began::Printed),
                    Err(error) => Err(not_printed("stored output", &error)),
                };
            }
            OnceStart::Running(holder) => return Err(running(request, &holder)),
            _ => return Err(expired()),
        };
        write_in_background();
        let held = Held::one(turn.lease());
        reporter.acquired(&held, since(request.started));
        let started = start(job, request, &held);
        if let Ok(Some(child)) = started {
            return Ok(Began::Running(client, turn, child));
        }
        turn.pass().await;
        shut_down(&client).await;
        started?;
        report_too_late(reporter);
    }
    Err(expired())
}

/// Another process runs the command, and `--skip` says not to wait.
fn running(request: &LockRequest<'_, TheResult>, holder: &Holder) -> Failure {
    let (names, held) = (request.reporter.names(), messages::held_by(holder));
    Failure {
        code: request.waiting.conflict_exit_code,
        ..Failure::new(exit::HELD, format!("{names} is {held}"))
    }
}

/// The output is stored, but could not be written to stdout.
fn not_printed(what: &str, error: &std::io::Error) -> Failure {
    let text = format!(
        "cannot write the {what} to stdout: {error}\nnext: it stays stored until its period is over; \
         run the same `leasehold once` again to print it"
    );
    Failure::new(exit::INTERNAL, text)
}

/// The command succeeded, and its output could not be stored.
fn not_stored(error: Error) -> Failure {
    match error {
        Error::Invalid(Invalid::Number { max, .. }) => Failure::new(
            exit::INTERNAL,
            format!(
                "the output is longer than {max} bytes and was not stored, so the next process runs the \
                 command again\nnext: write the output to a file, and print where it is"
            ),
        ),
        error => Failure::from(error),
    }
}

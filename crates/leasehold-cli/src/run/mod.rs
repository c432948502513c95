//! `run`: acquires the lock, runs a command while holding it, and releases it.

mod captured;
mod child;
mod elect;
mod once;
mod supervise;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Lease, Leases, Loss, Mode, Moment, Options, Released};

use crate::acquire::{
    Acquired, LockRequest, TheLocks, Wanted, enclosed, mode_of, release_all_unused, shut_down,
    shut_down_after_release,
};
use crate::args::{HoldArgs, OnLost, Run};
use crate::exit::{self, Failure, Outcome};
use crate::held::Held;
use crate::metrics_file::{MetricsFile, RunOutcome};
use crate::nested::{Enclosing, EnclosingLease};
use crate::output::write_in_background;
use crate::report::{Event, Reporter, exact, millis, nearest, short, unix_ms};
use crate::signals::SignalStreams;
use child::{Child, Ended, Environment, Output, exec};
pub(crate) use elect::elect;
pub(crate) use once::once;
use supervise::{Inputs, Lost, StopPlan, Supervised, report_loss, supervise};

/// The default time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How often to acquire a lease if too little of it is left to start the command, because this
/// process was stopped or the machine was suspended.
const MAX_LEASES: u32 = 4;

pub(crate) async fn run(args: Run) -> Outcome {
    let mut reporter = Reporter::new(&args.report, args.locks().map(|(name, _)| name));
    if let Some(path) = &args.metrics_file {
        match MetricsFile::open(path, &args.name, &reporter) {
            Ok(metrics) => reporter.record(metrics),
            Err(failure) => return Ok(failed(&reporter, &failure)),
        }
    }
    let held = hold(&args, &reporter).await;
    let exit = held.as_ref().map_or_else(
        |failure| failed(&reporter, failure),
        |(code, _)| ExitCode::from(*code),
    );
    if let Some(metrics) = reporter.metrics() {
        let (code, outcome) =
            held.unwrap_or_else(|failure| (failure.code, RunOutcome::of_failure(&failure)));
        metrics.finish(outcome, code, &reporter);
    }
    Ok(exit)
}

fn failed(reporter: &Reporter, failure: &Failure) -> ExitCode {
    reporter.fail(failure);
    ExitCode::from(failure.code)
}

/// A command to run under a lock.
struct Job<'a> {
    name: &'a OsStr,
    line: Vec<OsString>,
    plan: StopPlan,
    /// Where its stdout goes.
    output: Output,
}

/// Acquires the lock, runs the command and releases the lock. Returns the exit code, and how the run
/// ended.
async fn hold(args: &Run, reporter: &Reporter) -> Result<(u8, RunOutcome), Failure> {
    let job = Job {
        name: &args.name,
        line: command_line(&args.command, args.line.as_ref()),
        plan: StopPlan {
            grace: grace(args.ttl, args.grace).map_err(Failure::usage)?,
            at_most: args.at_most_for,
            on_lost: args.on_lost,
        },
        output: Output::Inherited,
    };
    let nodes = args.nodes.resolve()?.observed_by(reporter.metrics());
    let options = Options::default().ttl(args.ttl);
    let mut options = args.waiting.options(&nodes, options);
    if let Some(at_least) = args.at_least_for {
        options = options.min_hold(at_least);
    }
    let request = LockRequest {
        name: &args.name,
        nodes: &nodes,
        // The embedded store must not free the lock before it knows the process of the command.
        // See `bind`.
        options: options.detached(),
        waiting: &args.waiting,
        enclosing: Enclosing::leases(),
        reporter,
        started: Moment::now(),
        answered: Arc::default(),
        wanted: args.wanted(),
    };
    let mut signals = SignalStreams::start()?;
    let inputs = Inputs::open()?;
    let (client, leases, child) = begin(args, &request, &job, &mut signals).await?;
    let started = Moment::now();
    let held = args.held(&leases);
    let at_work = (&child, &client, &held);
    let ended = work(at_work, reporter, &mut signals, inputs, job.plan).await;
    let loss = loss_of(&held);
    let released = leases.release().await;
    let mut lost = ended.as_ref().is_ok_and(|ended| ended.lost);
    if released == Released::WasLost && !lost {
        lost = true;
        report_loss(reporter, &loss, None);
    }
    let held = since(started);
    let kept = args.at_least_for.map(|time| time.saturating_sub(held));
    report_release(reporter, held, lost, kept);
    match released {
        Released::WasLost => shut_down(&client).await,
        _ => shut_down_after_release(&client).await,
    }
    let Supervised {
        ended, timed_out, ..
    } = ended?;
    let code = match args.on_lost {
        OnLost::Kill if lost => exit::LOST,
        _ if timed_out => exit::TIME_LIMIT,
        _ => ended.code(),
    };
    let outcome = match code {
        _ if lost => RunOutcome::Lost,
        _ if timed_out => RunOutcome::TimeLimit,
        0 => RunOutcome::Success,
        _ => RunOutcome::Failed,
    };
    Ok((code, outcome))
}

impl Run {
    /// All locks, in the order of LEASEHOLD_TOKENS.
    fn locks(&self) -> impl Iterator<Item = (&OsStr, Mode)> {
        let exclusive = self.also.iter().map(|name| (&**name, Mode::Exclusive));
        let shared = self.also_shared.iter().map(|name| (&**name, Mode::Shared));
        std::iter::once((&*self.name, mode_of(self.shared)))
            .chain(exclusive)
            .chain(shared)
    }

    fn wanted(&self) -> TheLocks<'_> {
        TheLocks {
            mode: mode_of(self.shared),
            also: self.locks().skip(1).collect(),
            permits: self.permits.map(|permits| (permits, self.take)),
        }
    }

    /// The leases in the order of the locks.
    fn held<'a>(&self, leases: &'a Leases) -> Held<'a> {
        if self.permits.is_some() {
            return Held::all(leases.iter());
        }
        let names = self.locks().map(|(name, _)| name.as_bytes());
        Held::all(names.filter_map(|name| leases.get(name)))
    }
}

/// Which lease is lost if the release is refused, and why.
fn loss_of(held: &Held<'_>) -> Lost {
    let ended = held.iter().find(|lease| !lease.is_valid());
    let only = held.first_to_end().filter(|_| held.iter().count() == 1);
    match (ended, only) {
        (Some(lease), _) => Lost::of(lease, lease.loss().unwrap_or(Loss::NotRenewed)),
        (None, Some(lease)) => Lost::of(lease, Loss::TakenAway),
        (None, None) => Lost {
            name: None,
            why: Loss::TakenAway,
        },
    }
}

/// Reports the release of a lock. Its name is kept for `kept` from now on.
fn report_release(reporter: &Reporter, held: Duration, lost: bool, kept: Option<Duration>) {
    let event = Event::Released {
        held_ms: millis(held),
        was_lost: lost,
    };
    let kept = kept.filter(|kept| !kept.is_zero());
    let kept = kept.map_or(String::new(), |kept| {
        format!("; the name is kept for {}", nearest(kept))
    });
    reporter.step(event, || match lost {
        false => format!("released {} after {}{kept}", reporter.names(), short(held)),
        true => format!("the lease on {} has ended", reporter.names()),
    });
}

/// Acquires the locks and starts the command.
async fn begin(
    args: &Run,
    request: &LockRequest<'_, impl Wanted<Got = Leases>>,
    job: &Job<'_>,
    signals: &mut SignalStreams,
) -> Result<(Client, Leases, Child), Failure> {
    let reporter = request.reporter;
    for _ in 0..MAX_LEASES {
        let (client, leases) = match request.acquire(signals).await? {
            Acquired::Got(client, leases) => (client, leases),
            Acquired::Enclosed(lease) if args.inherit => return Err(inherit(job, request, &lease)),
            Acquired::Enclosed(lease) => return Err(enclosed(reporter, &lease)),
        };
        write_in_background();
        let held = args.held(&leases);
        reporter.acquired(&held, since(request.started));
        let started = start(job, request, &held);
        if let Ok(Some(child)) = started {
            return Ok((client, leases, child));
        }
        release_all_unused(leases).await;
        shut_down(&client).await;
        started?;
        report_too_late(reporter);
    }
    Err(expired())
}

fn report_too_late(reporter: &Reporter) {
    reporter.step(Event::Resumed, || {
        "too little time was left of the lease: acquiring the lock again".to_owned()
    });
}

fn expired() -> Failure {
    let text = "the lease expired before the command could be started";
    Failure::new(exit::LOST, text)
}

/// Starts the command if enough of the lease is left. With less than the grace period, the command
/// would have to be stopped at once.
fn start(
    job: &Job<'_>,
    request: &LockRequest<'_, impl Wanted>,
    held: &Held<'_>,
) -> Result<Option<Child>, Failure> {
    let environment = environment(job, request, held);
    let needed = match job.plan.on_lost {
        OnLost::Kill => job.plan.grace,
        OnLost::Warn => Duration::ZERO,
    };
    match held.remaining() > needed {
        true => Child::spawn(&job.line, &environment, job.output).map(Some),
        false => Ok(None),
    }
}

/// Replaces this process with the command, which runs under the lease of an enclosing `leasehold
/// run`. The command stays in this process group, so that the enclosing process can stop it. Returns
/// only if that fails.
fn inherit(
    job: &Job<'_>,
    request: &LockRequest<'_, impl Wanted>,
    enclosing: &EnclosingLease,
) -> Failure {
    let token = enclosing.token;
    request.reporter.step(Event::Inherited { token }, || {
        format!(
            "{} is held by {}, token {token}",
            request.reporter.names(),
            match enclosing.by_script {
                true => "this script",
                false => "an enclosing `leasehold run`",
            }
        )
    });
    let mut environment = request.nodes.environment();
    environment.push(("LEASEHOLD_NAME", Some(job.name.to_owned())));
    // A permit in the environment belongs to another lease: permits are not inherited.
    environment.push(("LEASEHOLD_PERMIT", None));
    let token = OsString::from(token.to_string());
    if std::env::var_os("LEASEHOLD_TOKEN").as_ref() != Some(&token) {
        // The deadline in the environment belongs to another lease.
        environment.push(("LEASEHOLD_DEADLINE_MS", None));
    }
    environment.push(("LEASEHOLD_TOKENS", Some(token.clone())));
    environment.push(("LEASEHOLD_TOKEN", Some(token)));
    exec(&job.line, &environment)
}

/// The environment variables of the command.
fn environment(
    job: &Job<'_>,
    request: &LockRequest<'_, impl Wanted>,
    held: &Held<'_>,
) -> Environment {
    let deadline = unix_ms(SystemTime::now() + held.remaining());
    let tokens: Vec<_> = held.tokens().map(|token| token.to_string()).collect();
    let permits: Vec<_> = held.iter().filter_map(Lease::permit).collect();
    let permits: Vec<_> = permits.iter().map(ToString::to_string).collect();
    let mut environment = request.nodes.environment();
    environment.extend([
        // Not that of an enclosing run.
        (
            "LEASEHOLD_PERMIT",
            (!permits.is_empty()).then(|| permits.join(" ").into()),
        ),
        ("LEASEHOLD_NAME", Some(job.name.to_owned())),
        ("LEASEHOLD_TOKEN", tokens.first().map(OsString::from)),
        ("LEASEHOLD_TOKENS", Some(tokens.join(" ").into())),
        ("LEASEHOLD_DEADLINE_MS", Some(deadline.to_string().into())),
        request.enclosing.with(held.iter().map(Lease::owner_id)),
    ]);
    environment
}

/// Supervises the command until it has ended.
async fn work(
    (child, client, held): (&Child, &Client, &Held<'_>),
    reporter: &Reporter,
    signals: &mut SignalStreams,
    inputs: Inputs,
    plan: StopPlan,
) -> Result<Supervised, Failure> {
    let pid = child.pid();
    reporter.step(Event::Started { pid }, || format!("started pid {pid}"));
    let supervised = tokio::select! {
        biased;
        supervised = supervise(child, held, reporter, signals, inputs, plan) => supervised,
        never = bind(client, held, pid) => match never {},
    }?;
    let Ended { code, signal } = supervised.ended;
    let name = signal.map(nix::sys::signal::Signal::as_str);
    reporter.step(Event::Exited { code, signal: name }, || {
        match (code, name) {
            (Some(code), _) => format!("the command exited with {code}"),
            (None, name) => format!("the command was killed by {}", name.unwrap_or("a signal")),
        }
    });
    Ok(supervised)
}

/// Binds the leases to this process and to the process group of the command. The embedded store frees
/// a lock as soon as all of them are dead; if only this process dies, the command may still be
/// working. Retries until it succeeds. Until then, a lock expires with its TTL.
async fn bind(client: &Client, held: &Held<'_>, pid: i32) -> std::convert::Infallible {
    let pids = [std::process::id(), pid.unsigned_abs()];
    let bound = held.iter().filter(|_| client.frees_the_locks_of_the_dead());
    for lease in bound {
        // A lost lease cannot be bound, and must not keep others from being bound.
        while lease.is_valid() && lease.bind_to_processes(&pids).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    std::future::pending().await
}

fn command_line(command: &[OsString], line: Option<&OsString>) -> Vec<OsString> {
    match line {
        Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
        None => command.to_vec(),
    }
}

impl HoldArgs {
    /// Stops the command when its lease is lost, and after `at_most`.
    fn plan(&self, at_most: Option<Duration>) -> Result<StopPlan, Failure> {
        Ok(StopPlan {
            grace: grace(self.ttl, self.grace).map_err(Failure::usage)?,
            at_most,
            on_lost: OnLost::Kill,
        })
    }
}

/// The time between SIGTERM and SIGKILL.
pub(crate) fn grace(ttl: Duration, grace: Option<Duration>) -> Result<Duration, String> {
    let half = ttl / 2;
    if let Some(grace) = grace.filter(|grace| *grace > half) {
        return Err(format!(
            "--grace {} is more than half of --ttl {}, so one late renewal would stop the command; use \
             a longer --ttl or a grace of at most {}",
            exact(grace),
            exact(ttl),
            exact(half)
        ));
    }
    Ok(grace.unwrap_or(GRACE.min(half)))
}

fn since(started: Moment) -> Duration {
    Moment::now().saturating_duration_since(started)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use clap::Parser;
    use leasehold::{MemoryNode, TimeSource};

    use super::*;
    use crate::args::{Cli, Command};

    /// A clock that can jump ahead by hours, as it does when a machine is suspended.
    #[derive(Clone, Default)]
    struct Hours(Arc<AtomicU64>);

    impl TimeSource for Hours {
        fn now(&self) -> Moment {
            Moment::now() + Duration::from_secs(3600 * self.0.load(Ordering::SeqCst))
        }

        fn unix_us(&self) -> u64 {
            unix_ms(SystemTime::now()) * 1000
        }
    }

    /// The command does not exist, so an attempt to start it fails with a distinct exit code.
    #[tokio::test]
    async fn no_command_is_started_with_too_little_time_left() {
        let line = ["leasehold", "run", "a", "--", "/no/such/command"];
        let Command::Run(args) = Cli::parse_from(line).command else {
            panic!("another command");
        };
        let hours = Hours::default();
        let client = Client::builder()
            .custom_node(MemoryNode::new("memory"))
            .time_source(hours.clone())
            .build()
            .expect("a client");
        let request = LockRequest {
            name: &args.name,
            nodes: &args.nodes.resolve().expect("nodes"),
            options: Options::default(),
            waiting: &args.waiting,
            enclosing: Enclosing::leases(),
            reporter: &Reporter::new(&args.report, ["a"]),
            started: Moment::now(),
            answered: Arc::default(),
            wanted: args.wanted(),
        };
        let options = |options: Options| options.ttl(Duration::from_secs(600));
        let lock = client.mutex("a").with_options(options).lock().await;
        let lease = lock.expect("a lease");
        let mut job = Job {
            name: &args.name,
            line: command_line(&args.command, None),
            plan: StopPlan {
                grace: Duration::ZERO,
                at_most: None,
                on_lost: OnLost::Kill,
            },
            output: Output::Inherited,
        };
        let mut started = |grace: u64| {
            job.plan.grace = Duration::from_secs(grace);
            start(&job, &request, &Held::one(&lease)).map_err(|failure| failure.code)
        };
        assert_eq!(started(5).err(), Some(exit::NOT_FOUND));
        // The command would have to be stopped at once.
        assert!(matches!(started(600), Ok(None)));
        hours.0.store(1, Ordering::SeqCst);
        assert!(matches!(started(5), Ok(None)));
    }
}

//! `run`: acquires the lock, runs a command while holding it, and releases it.

mod child;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Lease, Loss, Moment, Options, Released};

use crate::acquire::{
    Acquired, LockRequest, enclosed, release_unused, shut_down, shut_down_after_release,
};
use crate::args::{OnLost, Run};
use crate::exit::{self, Failure, Outcome};
use crate::nested::Enclosing;
use crate::output::write_in_background;
use crate::report::{Event, Reporter, millis, short, unix_ms};
use crate::signals::SignalStreams;
use child::{Child, Ended, Environment, exec};
use supervise::{Inputs, StopPlan, Supervised, report_loss, supervise};

/// The default time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How often to acquire a lease if too little of it is left to start the command, because this
/// process was stopped or the machine was suspended.
const MAX_LEASES: u32 = 4;

pub(crate) async fn run(args: Run) -> Outcome {
    let reporter = Reporter::new(&args.report, args.name.to_string_lossy().into_owned());
    match hold(&args, &reporter).await {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(failure) => {
            reporter.fail(&failure);
            Ok(ExitCode::from(failure.code))
        }
    }
}

/// Acquires the lock, runs the command and releases the lock. Returns the exit code.
async fn hold(args: &Run, reporter: &Reporter) -> Result<u8, Failure> {
    let plan = plan(args)?;
    let nodes = args.nodes.resolve()?;
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
        enclosing: match args.inherit {
            true => Enclosing::runs_and_script(),
            false => Enclosing::runs(),
        },
        reporter,
        started: Moment::now(),
    };
    let mut signals = SignalStreams::start()?;
    let inputs = Inputs::open()?;
    let (client, lease, child) = begin(args, &request, &plan, &mut signals).await?;
    let started = Moment::now();
    let ended = work(
        &child,
        &client,
        &lease,
        reporter,
        &mut signals,
        inputs,
        plan,
    )
    .await;
    let held = since(started);
    let loss = match lease.is_valid() {
        true => Loss::TakenAway,
        false => lease.loss().unwrap_or(Loss::NotRenewed),
    };
    let released = lease.release().await;
    let mut lost = ended.as_ref().is_ok_and(|ended| ended.lost);
    if released == Released::WasLost && !lost {
        lost = true;
        report_loss(reporter, loss, None);
    }
    reporter.step(
        Event::Released {
            held_ms: millis(held),
            was_lost: lost,
        },
        || match lost {
            false => format!("released `{}` after {}", reporter.name(), short(held)),
            true => format!("the lease on `{}` has ended", reporter.name()),
        },
    );
    match released {
        Released::WasLost => shut_down(&client).await,
        _ => shut_down_after_release(&client).await,
    }
    let Supervised {
        ended, timed_out, ..
    } = ended?;
    Ok(match args.on_lost {
        OnLost::Kill if lost => exit::LOST,
        _ if timed_out => exit::TIME_LIMIT,
        _ => ended.code(),
    })
}

/// Acquires the lock and starts the command.
async fn begin(
    args: &Run,
    request: &LockRequest<'_>,
    plan: &StopPlan,
    signals: &mut SignalStreams,
) -> Result<(Client, Lease, Child), Failure> {
    let reporter = request.reporter;
    for _ in 0..MAX_LEASES {
        let (client, lease) = match request.acquire(signals).await? {
            Acquired::Lease(client, lease) => (client, lease),
            Acquired::Enclosed(token) if args.inherit => return Err(inherit(args, request, token)),
            Acquired::Enclosed(token) => return Err(enclosed(reporter.name(), token)),
        };
        write_in_background();
        reporter.acquired(&lease, since(request.started));
        let started = start(args, request, &lease, plan);
        if let Ok(Some(child)) = started {
            return Ok((client, lease, child));
        }
        release_unused(lease).await;
        shut_down(&client).await;
        started?;
        reporter.step(Event::Resumed, || {
            "too little time was left of the lease: acquiring the lock again".to_owned()
        });
    }
    let text = "the lease expired before the command could be started";
    Err(Failure::new(exit::LOST, text))
}

/// Starts the command if enough of the lease is left. With less than the grace period, the command
/// would have to be stopped at once.
fn start(
    args: &Run,
    request: &LockRequest<'_>,
    lease: &Lease,
    plan: &StopPlan,
) -> Result<Option<Child>, Failure> {
    let environment = environment(args, request, lease);
    let needed = match plan.on_lost {
        OnLost::Kill => plan.grace,
        OnLost::Warn => Duration::ZERO,
    };
    match lease.remaining() > needed {
        true => Child::spawn(&command_line(args), &environment).map(Some),
        false => Ok(None),
    }
}

/// Replaces this process with the command, which runs under the lease of an enclosing `leasehold
/// run`. The command stays in this process group, so that the enclosing process can stop it. Returns
/// only if that fails.
fn inherit(args: &Run, request: &LockRequest<'_>, token: u64) -> Failure {
    request.reporter.step(Event::Inherited { token }, || {
        format!(
            "`{}` is held by an enclosing `leasehold run`, token {token}",
            request.reporter.name()
        )
    });
    let mut environment = request.nodes.environment();
    environment.push(("LEASEHOLD_NAME", Some(args.name.clone())));
    let token = OsString::from(token.to_string());
    if std::env::var_os("LEASEHOLD_TOKEN").as_ref() != Some(&token) {
        // The deadline in the environment belongs to another lease.
        environment.push(("LEASEHOLD_DEADLINE_MS", None));
    }
    environment.push(("LEASEHOLD_TOKEN", Some(token)));
    exec(&command_line(args), &environment)
}

/// The environment variables of the command.
fn environment(args: &Run, request: &LockRequest<'_>, lease: &Lease) -> Environment {
    let deadline = unix_ms(SystemTime::now() + lease.remaining());
    let mut environment = request.nodes.environment();
    environment.extend([
        ("LEASEHOLD_NAME", Some(args.name.clone())),
        ("LEASEHOLD_TOKEN", Some(lease.token().to_string().into())),
        ("LEASEHOLD_DEADLINE_MS", Some(deadline.to_string().into())),
        request.enclosing.with(lease.owner_id()),
    ]);
    environment
}

async fn work(
    child: &Child,
    client: &Client,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut SignalStreams,
    inputs: Inputs,
    plan: StopPlan,
) -> Result<Supervised, Failure> {
    let pid = child.pid();
    reporter.step(Event::Started { pid }, || format!("started pid {pid}"));
    let supervised = tokio::select! {
        biased;
        supervised = supervise(child, lease, reporter, signals, inputs, plan) => supervised,
        never = bind(client, lease, pid) => match never {},
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

/// Binds the lease to this process and to the process group of the command. The embedded store frees
/// the lock as soon as all of them are dead; if only this process dies, the command may still be
/// working. Retries until it succeeds. Until then, the lock expires with its TTL.
async fn bind(client: &Client, lease: &Lease, pid: i32) -> std::convert::Infallible {
    let pids = [std::process::id(), pid.unsigned_abs()];
    if client.frees_the_locks_of_the_dead() {
        while lease.bind_to_processes(&pids).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    std::future::pending().await
}

fn command_line(args: &Run) -> Vec<OsString> {
    match &args.line {
        Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
        None => args.command.clone(),
    }
}

fn plan(args: &Run) -> Result<StopPlan, Failure> {
    let half = args.ttl / 2;
    if let Some(grace) = args.grace.filter(|grace| *grace > half) {
        return Err(Failure::usage(format!(
            "--grace {} is more than half of --ttl {}, so one late renewal would stop the command; use \
             a longer --ttl or a grace of at most {}",
            humantime::format_duration(grace),
            humantime::format_duration(args.ttl),
            humantime::format_duration(half)
        )));
    }
    Ok(StopPlan {
        grace: args.grace.unwrap_or(GRACE.min(half)),
        at_most: args.at_most_for,
        on_lost: args.on_lost,
    })
}

fn since(started: Moment) -> Duration {
    Moment::now().saturating_duration_since(started)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
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
            enclosing: Enclosing::runs(),
            reporter: &Reporter::new(&args.report, "a".to_owned()),
            started: Moment::now(),
        };
        let options = |options: Options| options.ttl(Duration::from_secs(600));
        let lock = client.mutex("a").with_options(options).lock().await;
        let lease = lock.expect("a lease");
        let mut plan = plan(&args).expect("a plan");
        let mut started = |grace: u64| {
            plan.grace = Duration::from_secs(grace);
            start(&args, &request, &lease, &plan).map_err(|failure| failure.code)
        };
        assert_eq!(started(5).err(), Some(exit::NOT_FOUND));
        // The command would have to be stopped at once.
        assert!(matches!(started(600), Ok(None)));
        hours.0.store(1, Ordering::SeqCst);
        assert!(matches!(started(5), Ok(None)));
    }
}

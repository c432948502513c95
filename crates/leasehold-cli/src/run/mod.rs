//! `run`: waits for the lock, runs a command while holding it, gives it back.

mod child;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Lease, Loss, Moment, Options, Released};

use crate::args::{OnLost, Run};
use crate::exit::{self, Failure, Outcome};
use crate::nested::Enclosing;
use crate::outlet::write_in_background;
use crate::signals::Listening;
use crate::talk::{Event, Reporter, millis, short, unix_ms};
use crate::waiting::{Taken, Wanted, break_off, enclosed, finish, give_up};
use child::{Child, Ended, Environment, exec};
use supervise::{Ears, Plan, Supervised, report_loss, supervise};

/// How long a command has between TERM and KILL, unless said otherwise.
const GRACE: Duration = Duration::from_secs(5);
/// How often a lease is acquired, if too little is left of it when the command is to be started:
/// after this process was stopped or the machine suspended.
const MAX_LEASES: u32 = 4;

pub(crate) async fn run(args: Run) -> Outcome {
    let reporter = Reporter::new(&args.talk, args.name.to_string_lossy().into_owned());
    match hold(&args, &reporter).await {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(failure) => {
            reporter.fail(&failure);
            Ok(ExitCode::from(failure.code))
        }
    }
}

/// Everything, from the first request to the last; the exit code.
async fn hold(args: &Run, reporter: &Reporter) -> Result<u8, Failure> {
    let plan = plan(args)?;
    let mut options = args.waiting.options(Options::default().ttl(args.ttl));
    if let Some(at_least) = args.at_least_for {
        options = options.min_hold(at_least);
    }
    let nodes = args.nodes.resolve()?;
    let wanted = Wanted {
        name: &args.name,
        nodes: &nodes,
        // No node is to free it between the grant and the moment at which the command's process
        // is known: see `bind`.
        options: options.detached(),
        waiting: &args.waiting,
        enclosing: match args.inherit {
            true => Enclosing::runs_and_script(),
            false => Enclosing::runs(),
        },
        reporter,
        started: Moment::now(),
    };
    let mut signals = Listening::start()?;
    let ears = Ears::open()?;
    let (client, lease, child) = begin(args, &wanted, &plan, &mut signals).await?;
    let started = Moment::now();
    let ended = work(&child, &client, &lease, reporter, &mut signals, ears, plan).await;
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
    reporter.tell(
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
        Released::WasLost => break_off(&client).await,
        _ => finish(&client).await,
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
    wanted: &Wanted<'_>,
    plan: &Plan,
    signals: &mut Listening,
) -> Result<(Client, Lease, Child), Failure> {
    let reporter = wanted.reporter;
    for _ in 0..MAX_LEASES {
        let (client, lease) = match wanted.take(signals).await? {
            Taken::Lease(client, lease) => (client, lease),
            Taken::Enclosed(token) if args.inherit => return Err(inherit(args, wanted, token)),
            Taken::Enclosed(token) => return Err(enclosed(reporter.name(), token)),
        };
        write_in_background();
        reporter.acquired(&lease, since(wanted.started));
        let started = start(args, wanted, &lease, plan);
        if let Ok(Some(child)) = started {
            return Ok((client, lease, child));
        }
        give_up(lease).await;
        break_off(&client).await;
        started?;
        reporter.tell(Event::Resumed, || {
            "too little was left of the lease: acquiring it again".to_owned()
        });
    }
    let text = "the lease was over before the command could be started";
    Err(Failure::new(exit::LOST, text))
}

/// Starts the command, if enough of the lease is left at this moment: with less than the grace,
/// the command would have to be stopped at once.
fn start(
    args: &Run,
    wanted: &Wanted<'_>,
    lease: &Lease,
    plan: &Plan,
) -> Result<Option<Child>, Failure> {
    let environment = environment(args, wanted, lease);
    let needed = match plan.on_lost {
        OnLost::Kill => plan.grace,
        OnLost::Warn => Duration::ZERO,
    };
    match lease.remaining() > needed {
        true => Child::spawn(&command_line(args), &environment).map(Some),
        false => Ok(None),
    }
}

/// Runs the command in place of this process, under the lease of an enclosing `leasehold run`. It
/// stays in this process group, so that the enclosing one can stop it. Returns only if that fails.
fn inherit(args: &Run, wanted: &Wanted<'_>, token: u64) -> Failure {
    wanted.reporter.tell(Event::Inherited { token }, || {
        format!(
            "`{}` is held by an enclosing run, token {token}",
            wanted.reporter.name()
        )
    });
    let mut environment = wanted.nodes.environment();
    environment.push(("LEASEHOLD_NAME", Some(args.name.clone())));
    let token = OsString::from(token.to_string());
    if std::env::var_os("LEASEHOLD_TOKEN").as_ref() != Some(&token) {
        // That of another lease, further in.
        environment.push(("LEASEHOLD_DEADLINE_MS", None));
    }
    environment.push(("LEASEHOLD_TOKEN", Some(token)));
    exec(&command_line(args), &environment)
}

/// What the command gets in its environment.
fn environment(args: &Run, wanted: &Wanted<'_>, lease: &Lease) -> Environment {
    let deadline = unix_ms(SystemTime::now() + lease.remaining());
    let mut environment = wanted.nodes.environment();
    environment.extend([
        ("LEASEHOLD_NAME", Some(args.name.clone())),
        ("LEASEHOLD_TOKEN", Some(lease.token().to_string().into())),
        ("LEASEHOLD_DEADLINE_MS", Some(deadline.to_string().into())),
        wanted.enclosing.with(lease.owner_id()),
    ]);
    environment
}

async fn work(
    child: &Child,
    client: &Client,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut Listening,
    ears: Ears,
    plan: Plan,
) -> Result<Supervised, Failure> {
    let pid = child.pid();
    reporter.tell(Event::Started { pid }, || format!("started pid {pid}"));
    let supervised = tokio::select! {
        biased;
        supervised = supervise(child, lease, reporter, signals, ears, plan) => supervised,
        never = bind(client, lease, pid) => match never {},
    }?;
    let Ended { code, signal } = supervised.ended;
    let name = signal.map(nix::sys::signal::Signal::as_str);
    reporter.tell(Event::Exited { code, signal: name }, || {
        match (code, name) {
            (Some(code), _) => format!("it ended with {code}"),
            (None, name) => format!("it died of {}", name.unwrap_or("a signal")),
        }
    });
    Ok(supervised)
}

/// On the embedded store a lock is free as soon as its holders are dead. These are this
/// process and the command's group: if only this one dies, they still work. Tried again until
/// it is done; until then, the lock lives for its TTL.
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

fn plan(args: &Run) -> Result<Plan, Failure> {
    let half = args.ttl / 2;
    if let Some(grace) = args.grace.filter(|grace| *grace > half) {
        return Err(Failure::usage(format!(
            "--grace {} is more than half of --ttl {}: the command would be told to stop although \
             all is well; use a longer --ttl or a grace of at most {}",
            humantime::format_duration(grace),
            humantime::format_duration(args.ttl),
            humantime::format_duration(half)
        )));
    }
    Ok(Plan {
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

    /// A clock on which hours can pass at once, as they do while a machine is suspended.
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

    /// There is no such command: an attempt to start it fails with a code of its own.
    #[tokio::test]
    async fn a_lease_with_too_little_left_starts_nothing() {
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
        let wanted = Wanted {
            name: &args.name,
            nodes: &args.nodes.resolve().expect("nodes"),
            options: Options::default(),
            waiting: &args.waiting,
            enclosing: Enclosing::runs(),
            reporter: &Reporter::new(&args.talk, "a".to_owned()),
            started: Moment::now(),
        };
        let options = |options: Options| options.ttl(Duration::from_secs(600));
        let lock = client.mutex("a").with_options(options).lock().await;
        let lease = lock.expect("a lease");
        let mut plan = plan(&args).expect("a plan");
        let mut started = |grace: u64| {
            plan.grace = Duration::from_secs(grace);
            start(&args, &wanted, &lease, &plan).map_err(|failure| failure.code)
        };
        assert_eq!(started(5).err(), Some(exit::NOT_FOUND));
        // It would have to be stopped at once.
        assert!(matches!(started(600), Ok(None)));
        hours.0.store(1, Ordering::SeqCst);
        assert!(matches!(started(5), Ok(None)));
    }
}

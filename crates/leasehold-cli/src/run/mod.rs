//! `run`: waits for the lock, runs a command while holding it, gives it back.

mod child;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Lease, Moment, Options, Released};

use crate::args::{OnLost, Run};
use crate::exit::{self, Failure, Outcome};
use crate::signals::Signals;
use crate::talk::{Event, Reporter, millis, short, unix_ms, write_in_background};
use crate::waiting::{break_off, take};
use child::{Child, Ended};
use supervise::{Ears, Plan, Supervised, supervise};

/// How long a command has between TERM and KILL, unless said otherwise.
const GRACE: Duration = Duration::from_secs(5);

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
    // Nobody is to free it between the grant and the moment at which the command's process
    // is known: see `bind`.
    let client = args.nodes.client(options.detached())?;
    let mut signals = Signals::forwarded()?;
    let ears = Ears::open()?;
    let started = Moment::now();
    let lock = client.mutex(args.name.as_bytes());
    let lease = take(&client, lock, &args.waiting, reporter, &mut signals).await?;
    write_in_background();
    tell_acquired(reporter, &lease, since(started));
    let started = Moment::now();
    let child = match start(args, &lease) {
        Ok(child) => child,
        Err(failure) => {
            // Nothing was done, so nothing is kept for --at-least-for.
            if let Ok(lease) = lease.detach().await {
                let _ = lease.release().await;
            }
            break_off(&client).await;
            return Err(failure);
        }
    };
    let ended = work(&child, &client, &lease, reporter, &mut signals, ears, plan).await;
    let held = since(started);
    let released = lease.release().await;
    let was_lost = released == Released::WasLost;
    reporter.tell(
        Event::Released {
            held_ms: millis(held),
            was_lost,
        },
        || format!("`{}` given back after {}", reporter.name(), short(held)),
    );
    break_off(&client).await;
    let Supervised { ended, lost } = ended?;
    let unnoticed = was_lost && lost.is_none();
    if unnoticed {
        reporter.warn(
            Event::Lost {
                why: "found out at its end",
            },
            || {
                "error: the lease was over before it was given back; another may have held it"
                    .into()
            },
        );
    }
    Ok(match (lost.is_some() || unnoticed, args.on_lost) {
        (true, OnLost::Kill) => exit::LOST,
        _ => ended.code(),
    })
}

/// Starts the command, if the lease is valid to this moment.
fn start(args: &Run, lease: &Lease) -> Result<Child, Failure> {
    let environment = [
        ("LEASEHOLD_NAME", args.name.clone()),
        ("LEASEHOLD_TOKEN", lease.token().to_string().into()),
        (
            "LEASEHOLD_DEADLINE_MS",
            unix_ms(SystemTime::now() + lease.remaining())
                .to_string()
                .into(),
        ),
    ];
    if !lease.is_valid() {
        let text = "the lease was over before the command could be started";
        return Err(Failure::new(exit::LOST, text));
    }
    Child::spawn(command_line(args), &environment)
}

async fn work(
    child: &Child,
    client: &Client,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut Signals,
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

fn tell_acquired(reporter: &Reporter, lease: &Lease, waited: Duration) {
    let event = Event::Acquired {
        token: lease.token(),
        deadline_ms: unix_ms(SystemTime::now() + lease.remaining()),
        waited_ms: millis(waited),
    };
    reporter.tell(event, || {
        format!("got `{}`, token {}", reporter.name(), lease.token())
    });
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

    /// There is no such command: who tries to start it says so, with another code.
    #[tokio::test]
    async fn a_lease_that_is_over_starts_nothing() {
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
        let options = |options: Options| options.ttl(Duration::from_secs(600));
        let lock = client.mutex("a").with_options(options).lock().await;
        let lease = lock.expect("a lease");
        let code = |started: Result<Child, Failure>| started.err().map(|failure| failure.code);
        assert_eq!(code(start(&args, &lease)), Some(exit::NOT_FOUND));
        hours.0.store(1, Ordering::SeqCst);
        assert_eq!(code(start(&args, &lease)), Some(79));
    }
}

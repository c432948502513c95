//! `acquire`, `extend` and `release`: leases for scripts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::{Detached, Error, LockState, Moment, Name, Options, Released};
use serde::Serialize;

use crate::acquire::{Acquired, LockRequest, TheLock, enclosed, mode_of, shut_down};
use crate::args::{Acquire, Extend, LeaseFormat, Owned, Release};
use crate::exit::{Failure, INTERNAL, LOST, Outcome};
use crate::held::Held;
use crate::messages;
use crate::nested::Enclosing;
use crate::output;
use crate::report::{self, Reporter, Stdout, millis, unix_ms};
use crate::signals::SignalStreams;

/// The JSON output.
#[derive(Serialize)]
struct Printed<'a> {
    name: String,
    owner: &'a str,
    token: u64,
    ttl_ms: u64,
    deadline_ms: u64,
}

pub(crate) async fn acquire(args: Acquire) -> Outcome {
    let reporter = Reporter::new(&args.report, [&args.name]);
    match acquire_and_print(&args, &reporter).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            reporter.fail(&failure);
            if args.output == LeaseFormat::Export {
                fail_eval(failure.code);
            }
            Ok(ExitCode::from(failure.code))
        }
    }
}

/// Prints a command that fails in `eval`, because `eval` of an empty text succeeds. An error of
/// stdout is ignored: nothing reads the output then.
pub(crate) fn fail_eval(code: u8) {
    let _ = report::print_stdout(format!("(exit {code})\n").as_bytes());
}

async fn acquire_and_print(args: &Acquire, reporter: &Reporter) -> Result<(), Failure> {
    if args.output == LeaseFormat::Export && args.waiting.conflict_exit_code == 0 {
        return Err(Failure::usage(
            "-E 0 cannot be used with `-o export`: `eval` would succeed and the script would continue \
             without the lock; use another exit code, or -o json",
        ));
    }
    if output::stdout_was_closed() {
        return Err(Failure::new(
            INTERNAL,
            "stdout is closed, so the lease cannot be printed; nothing was acquired",
        ));
    }
    let nodes = args.nodes.resolve()?;
    let options = Options::default().ttl(args.ttl);
    let options = args.waiting.options(&nodes, options);
    let options = options.detached().without_renewal();
    let request = LockRequest {
        name: &args.name,
        nodes: &nodes,
        options,
        waiting: &args.waiting,
        enclosing: Enclosing::leases(),
        reporter,
        started: Moment::now(),
        answered: Arc::default(),
        wanted: TheLock {
            mode: mode_of(args.shared),
        },
    };
    let (client, lease) = match request.acquire(&mut SignalStreams::start()?).await? {
        Acquired::Got(client, lease) => (client, lease),
        Acquired::Enclosed(lease) => return Err(enclosed(reporter, &lease)),
    };
    let waited = Moment::now().saturating_duration_since(request.started);
    reporter.acquired(&Held::one(&lease), waited);
    let remaining = lease.remaining();
    let lease = lease.detach().await?;
    let printed = match print(
        &args.name,
        &lease,
        args.ttl,
        deadline_ms(remaining),
        args.output,
    ) {
        Ok(Stdout::Closed) => Err(Failure::new(
            INTERNAL,
            "stdout was closed before the lease was printed; the lock was released",
        )),
        printed => printed,
    };
    if printed.is_err() {
        // The caller does not know the owner and could not release the lock.
        let _ = lease.release().await;
    }
    shut_down(&client).await;
    printed.map(|_| ())
}

pub(crate) async fn extend(args: Extend) -> Outcome {
    extend_and_print(&args).await.inspect_err(|failure| {
        if args.output == LeaseFormat::Export {
            fail_eval(failure.code);
        }
    })
}

async fn extend_and_print(args: &Extend) -> Outcome {
    args.owned.check()?;
    let client = args.nodes.client(Options::default().ttl(args.ttl))?;
    let lease = client
        .mutex(args.owned.name.as_bytes())
        .detached(&args.owned.owner)?;
    let remaining = match lease.extend().await {
        Err(Error::Lost { name, token, .. }) => {
            let now = client.inspect(args.owned.name.as_bytes()).await?;
            return Err(not_owned(&name, token, now.state()));
        }
        extended => extended?,
    };
    // What is known of the lease still holds.
    let (known_ttl, known_deadline_ms) = args.owned.known();
    let deadline_ms = deadline_ms(remaining).max(known_deadline_ms);
    let ttl = args.ttl.max(known_ttl);
    print(&args.owned.name, &lease, ttl, deadline_ms, args.output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn release(args: Release) -> Outcome {
    args.owned.check()?;
    let client = args.nodes.inspecting_client()?;
    let lease = client
        .mutex(args.owned.name.as_bytes())
        .detached(&args.owned.owner)?;
    let (name, token) = (lease.name().clone(), lease.token());
    let released = lease.release().await;
    let failure = match released {
        Ok(Released::WasLost) => {
            let now = client.inspect(args.owned.name.as_bytes()).await?;
            Some(not_owned(&name, token, now.state()))
        }
        Ok(_) => None,
        Err(error) => Some(error.into()),
    };
    shut_down(&client).await;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// The error for a lease that has ended, with the current holder if there is one.
fn not_owned(name: &Name, token: u64, now: LockState<'_>) -> Failure {
    let text = match now {
        LockState::Held(lock) => format!(
            "not the owner of `{name}`: it is {} (owner {}); the lease with token {token} \
             has ended, or belongs to another lock",
            messages::lock_held_by(lock),
            lock.owner_id()
        ),
        LockState::NotHeld => format!(
            "`{name}` is not held: the lease with token {token} has expired, or was released or \
             broken"
        ),
        _ => format!("the lease on `{name}` with token {token} has ended"),
    };
    Failure::new(LOST, text)
}

impl Owned {
    /// Whether the owner is that of the lease in the environment.
    fn is_in_environment(&self) -> bool {
        std::env::var("LEASEHOLD_OWNER").is_ok_and(|owner| owner == self.owner)
    }

    /// The TTL and the deadline of the lease in the environment, if it is this lease: a shorter
    /// `--ttl` shortens neither. Zero if they are not known.
    fn known(&self) -> (Duration, u64) {
        let variable = |name| {
            std::env::var(name)
                .ok()
                .filter(|_| self.is_in_environment())
        };
        let ttl = variable("LEASEHOLD_LEASE_TTL").and_then(|ttl| crate::args::duration(&ttl).ok());
        let deadline_ms = variable("LEASEHOLD_DEADLINE_MS").and_then(|ms| ms.parse().ok());
        (ttl.unwrap_or_default(), deadline_ms.unwrap_or_default())
    }

    /// Checks that an owner from the environment belongs to this lock.
    fn check(&self) -> Result<(), Failure> {
        let of = std::env::var_os("LEASEHOLD_NAME");
        match of.filter(|of| self.is_in_environment() && *of != self.name) {
            None => Ok(()),
            Some(of) => Err(Failure::usage(format!(
                "LEASEHOLD_OWNER is the owner of `{}` (LEASEHOLD_NAME), not of `{}`; use --owner",
                of.to_string_lossy(),
                self.name.to_string_lossy()
            ))),
        }
    }
}

fn deadline_ms(remaining: Duration) -> u64 {
    unix_ms(SystemTime::now() + remaining)
}

fn print(
    name: &OsStr,
    lease: &Detached,
    ttl: Duration,
    deadline_ms: u64,
    format: LeaseFormat,
) -> Result<Stdout, Failure> {
    let printed = Printed {
        name: name.to_string_lossy().into_owned(),
        owner: lease.owner(),
        token: lease.token(),
        ttl_ms: millis(ttl),
        deadline_ms,
    };
    let mut text = Vec::new();
    match format {
        LeaseFormat::Json => {
            serde_json::to_writer(&mut text, &printed).map_err(std::io::Error::from)?
        }
        LeaseFormat::Export => {
            for (variable, value) in [
                ("NAME", name.as_bytes()),
                ("OWNER", printed.owner.as_bytes()),
                ("TOKEN", printed.token.to_string().as_bytes()),
                ("DEADLINE_MS", printed.deadline_ms.to_string().as_bytes()),
                ("LEASE_TTL", format!("{}ms", printed.ttl_ms).as_bytes()),
            ] {
                if !text.is_empty() {
                    text.push(b'\n');
                }
                text.extend(format!("export LEASEHOLD_{variable}=").bytes());
                text.extend(quoted(value));
            }
        }
    }
    text.push(b'\n');
    Ok(report::print_stdout(&text)?)
}

/// Quotes a value for a shell. Within single quotes only the single quote is special.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut text = vec![b'\''];
    for &byte in value {
        match byte {
            b'\'' => text.extend(br"'\''"),
            byte => text.push(byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoted_values_survive_a_shell() {
        for value in ["plain", "it's $HOME `x` \"y\" \\", "a\nb", ""] {
            let script = [b"printf %s ", &*quoted(value.as_bytes())].concat();
            let script = String::from_utf8(script).unwrap();
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), value);
        }
    }
}

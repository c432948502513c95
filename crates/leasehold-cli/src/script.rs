//! Locks for scripts: taken by one process, given back by another.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use leasehold::{Detached, Options, Released};
use serde::Serialize;

use crate::args::{Acquire, Extend, LeaseFormat, Release};
use crate::exit::{Failure, LOST, Outcome};
use crate::signals::Signals;
use crate::talk::{Reporter, millis, unix_ms};
use crate::waiting::{break_off, take};

/// A lease as it is printed.
#[derive(Serialize)]
struct Printed<'a> {
    name: String,
    owner: &'a str,
    token: u64,
    ttl_ms: u64,
    deadline_ms: u64,
}

pub(crate) async fn acquire(args: Acquire) -> Outcome {
    let reporter = Reporter::new(&args.talk, args.name.to_string_lossy().into_owned());
    let options = args.waiting.options(Options::default().ttl(args.ttl));
    let options = options.detached().without_renewal();
    let client = args.nodes.client(options)?;
    let mut signals = Signals::forwarded()?;
    let lock = client.mutex(args.name.as_bytes());
    let taken = take(&client, lock, &args.waiting, &reporter, &mut signals).await;
    let lease = match taken {
        Ok(lease) => lease,
        Err(failure) => {
            reporter.fail(&failure);
            if args.output == LeaseFormat::Export {
                // `eval` of nothing succeeds; of this it does not.
                println!("(exit {})", failure.code);
            }
            return Ok(ExitCode::from(failure.code));
        }
    };
    let remaining = lease.remaining();
    let lease = lease.detach().await?;
    let printed = print(&args.name, &lease, args.ttl, remaining, args.output);
    if let Err(failure) = printed {
        // Nobody knows the owner, so nobody could give it back.
        let _ = lease.release().await;
        break_off(&client).await;
        return Err(failure);
    }
    break_off(&client).await;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn extend(args: Extend) -> Outcome {
    let client = args.nodes.client(Options::default().ttl(args.ttl))?;
    let lease = client
        .mutex(args.owned.name.as_bytes())
        .detached(&args.owned.owner)?;
    let remaining = lease.extend().await?;
    print(&args.owned.name, &lease, args.ttl, remaining, args.output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn release(args: Release) -> Outcome {
    let client = args.nodes.client(Options::default())?;
    let lease = client
        .mutex(args.owned.name.as_bytes())
        .detached(&args.owned.owner)?;
    let (name, token) = (lease.name().clone(), lease.token());
    let released = lease.release().await;
    break_off(&client).await;
    match released? {
        Released::Released => Ok(ExitCode::SUCCESS),
        Released::WasLost => Err(Failure::new(
            LOST,
            format!("the lease on `{name}` (token {token}) was over before it was given back"),
        )),
    }
}

fn print(
    name: &OsStr,
    lease: &Detached,
    ttl: Duration,
    remaining: Duration,
    format: LeaseFormat,
) -> Result<(), Failure> {
    let printed = Printed {
        name: name.to_string_lossy().into_owned(),
        owner: lease.owner(),
        token: lease.token(),
        ttl_ms: millis(ttl),
        deadline_ms: unix_ms(SystemTime::now() + remaining),
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
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    Ok(out.flush()?)
}

/// For a shell: in single quotes, in which nothing but a single quote means anything.
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
    fn a_shell_reads_back_what_was_quoted() {
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

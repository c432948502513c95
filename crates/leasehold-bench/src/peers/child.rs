//! Runs programs with a time limit.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{GRACE, Peer, Settings};
use crate::TTL;
use crate::tally::Tally;

/// How often to check whether a program has ended. The check costs almost nothing.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The work of a peer.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Each task acquires and releases a separate lock.
    Pairs { tasks: usize },
    /// All tasks contend for the same lock, each over a separate connection.
    Contend { tasks: usize, hold: Duration },
}

/// Runs a peer's program for one turn.
///
/// # Errors
///
/// If it hangs and was killed, if it fails, or if it does not report its figures.
pub(crate) fn turn(
    peer: &Peer,
    urls: &[String],
    work: Work,
    length: Duration,
) -> Result<Tally, String> {
    let (work, tasks, hold) = match work {
        Work::Pairs { tasks } => ("pairs", tasks, Duration::ZERO),
        Work::Contend { tasks, hold } => ("contend", tasks, hold),
    };
    let settings = match peer.settings {
        Settings::Default => "default",
        Settings::Best => "best",
    };
    let database = peer.toolchain.database();
    let urls = urls.iter().map(|url| format!("{url}/{database}"));
    let urls: Vec<_> = urls.collect();
    let mut command = peer.toolchain.program();
    command
        .args([peer.client, &urls.join(","), work])
        .args([tasks.to_string(), length.as_secs_f64().to_string()])
        .args([hold.as_millis().to_string(), settings.to_owned()])
        .arg(TTL.as_millis().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let said = run(&mut command, length + GRACE)?;
    let last = said.lines().last().unwrap_or_default();
    Tally::parse(last)
}

/// Runs a program to its end, or kills it at the limit. Returns its output.
///
/// The output must fit into a pipe: it is read after the program has ended.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(output(&mut child)),
            Ok(Some(status)) => return Err(format!("{name}: {status}: {}", complaint(&mut child))),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                end(&mut child);
                return Err(format!("hangs: not done after {limit:?}"));
            }
            Err(error) => {
                end(&mut child);
                return Err(format!("{name}: {error}"));
            }
        }
    }
}

/// Kills and reaps the program. It is not an error if it has ended meanwhile.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn output(child: &mut Child) -> String {
    let mut said = String::new();
    if let Some(stdout) = &mut child.stdout {
        let _ = stdout.read_to_string(&mut said);
    }
    said
}

/// The last line of the program's standard error, or else the first line of its output (Maven
/// reports errors there).
fn complaint(child: &mut Child) -> String {
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    let output = output(child);
    let first = || output.lines().find(|line| !line.trim().is_empty());
    last.or_else(first).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(Stdio::piped());
        command
    }

    #[test]
    fn a_program_that_hangs_is_cut_off() {
        let start = Instant::now();
        let ended = run(&mut shell("exec sleep 60"), Duration::from_millis(100));
        assert!(ended.unwrap_err().starts_with("hangs"));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failure_contains_the_reason() {
        let ended = run(&mut shell("echo broken >&2; exit 3"), GRACE);
        let why = ended.unwrap_err();
        assert!(why.contains("3") && why.contains("broken"), "{why}");
        let ended = run(&mut shell("echo also broken; exit 1"), GRACE);
        assert!(ended.unwrap_err().ends_with("also broken"));
        assert_eq!(run(&mut shell("echo fine"), GRACE).unwrap(), "fine\n");
    }
}

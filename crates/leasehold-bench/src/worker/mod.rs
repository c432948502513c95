//! This program, started again as a separate process, where several processes or the memory of
//! one are measured.
//!
//! A worker sets itself up and prints a line of JSON. It starts when it receives a line, and
//! prints another one when it is done.

mod count;
mod hold;
mod local;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::contenders::Kind;

pub(crate) use local::Visit;

/// The argument that makes this program a worker.
const FLAG: &str = "--worker";

/// A worker, as its parent sees it. Killed when dropped.
pub(crate) struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// A worker that holds leases on a server, to be renewed; see [`hold`].
    pub(crate) fn hold(url: &str, leases: usize, periods: u32) -> Result<Self, String> {
        Self::start(&["hold", url, &leases.to_string(), &periods.to_string()])
    }

    /// A worker that contends for a lock of an embedded store; see [`local`].
    pub(crate) fn local(
        url: &str,
        name: &str,
        hold: Duration,
        length: Duration,
    ) -> Result<Self, String> {
        let ms = |time: Duration| time.as_millis().to_string();
        Self::start(&["local", url, name, &ms(hold), &ms(length)])
    }

    /// A worker that makes a number of pairs, run by another program, or by none; see [`count`].
    pub(crate) fn count(
        under: &[&str],
        (kind, tasks): (Kind, usize),
        pairs: usize,
        urls: &[String],
    ) -> Result<Self, String> {
        let (tasks, pairs) = (tasks.to_string(), pairs.to_string());
        let mut args = vec!["count", kind.label(), &tasks, &pairs];
        args.extend(urls.iter().map(String::as_str));
        Self::start_under(under, &args)
    }

    fn start(args: &[&str]) -> Result<Self, String> {
        Self::start_under(&[], args)
    }

    fn start_under(under: &[&str], args: &[&str]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = match under.split_first() {
            Some((under, args)) => {
                let mut command = Command::new(under);
                command.args(args).arg(program).stderr(Stdio::null());
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .arg(FLAG)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (send, lines) = channel();
        if let Some(output) = child.stdout.take() {
            // Ends with the worker, or when the receiver is dropped.
            std::thread::spawn(move || {
                let mut said = BufReader::new(output).lines().map_while(Result::ok);
                said.all(|line| send.send(line).is_ok())
            });
        }
        Ok(Self { child, lines })
    }

    /// The next line of the worker.
    ///
    /// # Errors
    ///
    /// If it prints nothing within the limit, has ended, or has failed.
    pub(crate) fn next(&self, limit: Duration) -> Result<Value, String> {
        let line = self
            .lines
            .recv_timeout(limit)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => format!("hangs: nothing within {limit:?}"),
                RecvTimeoutError::Disconnected => "the process ended early".into(),
            })?;
        let said: Value =
            serde_json::from_str(&line).map_err(|error| format!("{error}: {line:?}"))?;
        match said["failed"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok(said),
        }
    }

    /// Waits until the worker has ended.
    pub(crate) fn end(mut self) {
        let _ = self.child.wait();
    }

    /// Makes the worker start.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("the worker has no input")?;
        input.write_all(b"go\n").map_err(|error| error.to_string())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the worker, if this process is one.
pub(crate) fn work() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [FLAG, "hold", url, leases, periods] => hold::work(url, leases, periods),
        [FLAG, "local", url, name, hold_ms, length_ms] => {
            local::work(url, name, hold_ms, length_ms)
        }
        [FLAG, "count", kind, tasks, pairs, ref urls @ ..] => count::work(kind, tasks, pairs, urls),
        _ => return None,
    };
    match done {
        Ok(done) => print_line(&done),
        Err(why) => print_line(&json!({ "failed": why })),
    }
    Some(ExitCode::SUCCESS)
}

/// Prints a line for the parent. If the parent is gone, the worker ends soon by itself.
fn print_line(line: &Value) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Reports that everything is set up, and waits for the start.
async fn ready(line: &Value) -> Result<(), String> {
    print_line(line);
    let started = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)
    });
    match started.await {
        Ok(Ok(1..)) => Ok(()),
        other => Err(format!("never started: {other:?}")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("no number: {text:?}"))
}

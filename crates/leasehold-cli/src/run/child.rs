//! The process of the command: starts it in its own process group, signals it and reaps it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::captured::{Captured, Kept};
use crate::exit::{self, Failure};

/// A running command.
pub(super) struct Child {
    pid: Pid,
    /// What it writes to stdout, if that is captured.
    captured: Option<Captured>,
}

/// Where the stdout of a command goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// To the stdout of this process.
    Inherited,
    /// To the stdout of this process, and into memory.
    Captured,
}

/// How a command ended: with an exit code or by a signal.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<Signal>,
}

/// A change of the state of a command.
pub(super) enum Change {
    Ended(Ended),
    Stopped(Signal),
}

impl Ended {
    /// The exit code that a shell would report.
    pub(super) fn code(self) -> u8 {
        match (self.code, self.signal) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => exit::by_signal(signal as i32),
            (None, None) => exit::INTERNAL,
        }
    }
}

/// Environment variables to set (`Some`) or to remove (`None`).
pub(super) type Environment = Vec<(&'static str, Option<OsString>)>;

/// Replaces this process with a command. Returns only if that fails.
pub(super) fn exec(line: &[OsString], environment: &Environment) -> Failure {
    match command(line, environment) {
        Ok(mut command) => cannot_run(line, &command.exec()),
        Err(failure) => failure,
    }
}

fn command(line: &[OsString], environment: &Environment) -> Result<Command, Failure> {
    let Some((program, arguments)) = line.split_first() else {
        return Err(Failure::usage("no command was given"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    for (key, value) in environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    Ok(command)
}

fn cannot_run(line: &[OsString], error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    };
    let program = line.first().map(|program| program.to_string_lossy());
    let program = program.unwrap_or_default();
    Failure::new(code, format!("cannot run `{program}`: {error}"))
}

impl Child {
    /// Starts a command in a new process group.
    pub(super) fn spawn(
        line: &[OsString],
        environment: &Environment,
        output: Output,
    ) -> Result<Self, Failure> {
        let mut command = command(line, environment)?;
        command.process_group(0);
        if output == Output::Captured {
            command.stdout(Stdio::piped());
        }
        die_with_parent(&mut command);
        let mut child = command.spawn().map_err(|error| cannot_run(line, &error))?;
        Ok(Self {
            pid: Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
            captured: child.stdout.take().map(Captured::start),
        })
    }

    /// What the command wrote to stdout, if that was captured. Call it when the command has ended.
    pub(super) async fn captured(&mut self) -> Kept {
        match self.captured.take() {
            Some(captured) => captured.end().await,
            None => Kept::default(),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the process group: the command and its descendants.
    pub(super) fn signal(&self, signal: Signal) {
        // Fails if the group has no processes left.
        let _ = killpg(self.pid, signal);
    }

    /// Whether the group has any processes left.
    pub(super) fn group_lives(&self) -> bool {
        // Reaps orphans that were reparented to this process, for example as pid 1 of a container.
        let group = Pid::from_raw(-self.pid.as_raw());
        while matches!(
            waitpid(group, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {}
        killpg(self.pid, None) != Err(Errno::ESRCH)
    }

    /// The next change of the state of the command, if there is one. Does not block.
    pub(super) fn change(&self) -> Result<Option<Change>, Failure> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            return Ok(match waitpid(self.pid, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => Some(Change::Ended(Ended {
                    code: Some(code),
                    signal: None,
                })),
                Ok(WaitStatus::Signaled(_, signal, _)) => Some(Change::Ended(Ended {
                    code: None,
                    signal: Some(signal),
                })),
                Ok(WaitStatus::Stopped(_, signal)) => Some(Change::Stopped(signal)),
                Ok(_) => None,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    let text = format!("cannot wait for the command: {error}");
                    return Err(Failure::new(exit::INTERNAL, text));
                }
            });
        }
    }
}

/// Makes the kernel send SIGTERM to the command if this process is killed, because then the lease is
/// no longer renewed. (The kernel sends it when the *thread* that started the command ends. Here
/// that is the main thread.)
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let set_signal = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
        // The parent may have died before the call.
        match nix::unistd::getppid() == parent {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(Errno::ESRCH as i32)),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called. The closure makes
    // two system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(set_signal);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

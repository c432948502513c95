//! The command as a process: started in a group of its own, watched, signalled, reaped.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::exit::{self, Failure};

/// A command that was started.
pub(super) struct Child {
    pid: Pid,
}

/// How a command ended: with a code or by a signal.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<Signal>,
}

/// What became of a command.
pub(super) enum Change {
    Ended(Ended),
    Stopped(Signal),
}

impl Ended {
    /// The exit code that says so, as a shell has it.
    pub(super) fn code(self) -> u8 {
        match (self.code, self.signal) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => exit::by_signal(signal as i32),
            (None, None) => exit::INTERNAL,
        }
    }
}

/// Variables to set, or to remove.
pub(super) type Environment = Vec<(&'static str, Option<OsString>)>;

/// Runs a command in place of this process. Returns only if that fails.
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
    /// Starts a command in a process group of its own.
    pub(super) fn spawn(line: &[OsString], environment: &Environment) -> Result<Self, Failure> {
        let mut command = command(line, environment)?;
        command.process_group(0);
        die_with_parent(&mut command);
        match command.spawn() {
            Ok(child) => Ok(Self {
                pid: Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
            }),
            Err(error) => Err(cannot_run(line, &error)),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// Signals the whole group: the command and what it started.
    pub(super) fn signal(&self, signal: Signal) {
        // If nobody is left there, there is nobody to tell.
        let _ = killpg(self.pid, signal);
    }

    /// Whether anybody is left in the group.
    pub(super) fn group_lives(&self) -> bool {
        // What is left to us to wait for (as process 1 of a container, for one) is.
        let group = Pid::from_raw(-self.pid.as_raw());
        while matches!(
            waitpid(group, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {}
        killpg(self.pid, None) != Err(Errno::ESRCH)
    }

    /// What has become of the command, if anything. Does not wait.
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

/// If this process is killed, the command is told: nobody renews its lease any more. (The
/// kernel tells it when the *thread* that started it ends, which here is the main one.)
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let tell_me = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
        // It may have died before this was said.
        match nix::unistd::getppid() == parent {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(Errno::ESRCH as i32)),
        }
    };
    // SAFETY: between fork and exec only what is async-signal-safe may be done. These are two
    // system calls; nothing is allocated, no lock is taken.
    unsafe {
        command.pre_exec(tell_me);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

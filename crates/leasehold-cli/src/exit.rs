//! The exit codes and the errors that lead to them.

use std::process::ExitCode;

use leasehold::{Error, Invalid};

use crate::{config, messages};

/// Wrong usage (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// No majority of the nodes can be reached (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// An internal failure, such as a failed write (`EX_SOFTWARE`).
pub(crate) const INTERNAL: u8 = 70;
/// Another process holds the lock (`EX_TEMPFAIL`).
pub(crate) const HELD: u8 = 75;
/// The lease was lost.
pub(crate) const LOST: u8 = 79;
/// The command was stopped at its time limit. `timeout` uses the same code.
pub(crate) const TIME_LIMIT: u8 = 124;
/// `break` broke nothing.
pub(crate) const NOTHING: u8 = 1;
/// `doctor --strict` found something to warn of.
pub(crate) const WARNED: u8 = 1;
/// A check of `doctor` failed.
pub(crate) const FAILED: u8 = 2;
/// The command was found but cannot be executed. Shells use the same code.
pub(crate) const CANNOT_RUN: u8 = 126;
/// The command was not found. Shells use the same code.
pub(crate) const NOT_FOUND: u8 = 127;

/// The reason why this process exits, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The error message. Empty if nothing is to be printed.
    pub(crate) text: String,
    /// Another process holds the lock, which is not an error.
    pub(crate) held: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if code == USAGE {
            // An option that is wrong may not be on the command line.
            text += &config::in_force().notes(&text);
        }
        Self {
            code,
            text,
            held: code == HELD,
        }
    }

    /// A mistake in the configuration file. The text says where it is, so it needs no notes; and the
    /// values in force may be others.
    pub(crate) fn in_file(text: String) -> Self {
        Self {
            code: USAGE,
            text,
            held: false,
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Held(_) | Error::TimedOut { .. } => HELD,
            Error::NoMajority(_) | Error::Invalid(Invalid::Node { .. }) => UNAVAILABLE,
            Error::Lost { .. } => LOST,
            Error::Invalid(_) => USAGE,
            _ => INTERNAL,
        };
        Self::new(code, messages::error(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(INTERNAL, error.to_string())
    }
}

/// 128 + the number of the signal, as in a shell.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// The result of a command of this program.
pub(crate) type Outcome = Result<ExitCode, Failure>;

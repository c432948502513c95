//! Exit codes, and which outcome has which.

use std::process::ExitCode;

use leasehold::{Error, Invalid};

use crate::words;

/// Wrong usage (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// No majority of nodes can be reached (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// Something that should not happen: a failed write, a signal that cannot be waited for.
pub(crate) const INTERNAL: u8 = 70;
/// The lock is held by another (`EX_TEMPFAIL`).
pub(crate) const HELD: u8 = 75;
/// The lease was lost.
pub(crate) const LOST: u8 = 79;
/// The command was stopped at its time limit, as `timeout` reports it.
pub(crate) const TIME_LIMIT: u8 = 124;
/// There is nothing to break.
pub(crate) const NOTHING: u8 = 1;
/// As a shell: the command was found but cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// As a shell: there is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why a command ends early: what to say, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Nothing if there is nothing to say.
    pub(crate) text: String,
    /// Contention, which is not an error.
    pub(crate) held: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            held: code == HELD,
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
        Self::new(code, words::error(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(INTERNAL, error.to_string())
    }
}

/// As a shell: 128 + the signal's number.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// What a command came to.
pub(crate) type Outcome = Result<ExitCode, Failure>;

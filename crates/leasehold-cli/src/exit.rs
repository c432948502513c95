//! Exit codes, and which outcome has which.

use std::process::ExitCode;

use leasehold::node::{NodeError, Vote};
use leasehold::{Error, Invalid, Refusal, Story};

use crate::talk::short;
use crate::waiting::with_age;

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
        let text = match &error {
            // What one node says is said already.
            Error::Held(refusal) if refusal.nodes.len() == 1 => held(refusal),
            Error::TimedOut { waited, refusal } if refusal.nodes.len() == 1 => {
                format!("waited for {}: {}", short(*waited), held(refusal))
            }
            error => error.to_string(),
        };
        match next_step(&error) {
            Some(step) => Self::new(code, format!("{text}\n{step}")),
            None => Self::new(code, text),
        }
    }
}

fn held(refusal: &Refusal) -> String {
    let by = match refusal.holder() {
        Some(holder) => format!("is held by {}", with_age(holder)),
        None => "is held by another".to_owned(),
    };
    let kept = refusal.holder().is_some_and(|holder| holder.kept);
    let left = match refusal.remaining() {
        Some(left) if kept => format!("; {} left", short(left)),
        Some(left) => format!("; {} left unless renewed", short(left)),
        None => "; it has no TTL".to_owned(),
    };
    format!("`{}` {by}{left}", refusal.name)
}

/// What can be done about nodes that do not vote. (Other errors of nodes say so themselves.)
fn next_step(error: &Error) -> Option<&'static str> {
    let Error::NoMajority(refusal) = error else {
        return None;
    };
    let any = |so: fn(&Story) -> bool| refusal.nodes.iter().any(|report| so(&report.story));
    if any(|story| matches!(story, Story::Voted(Vote::Quarantined { .. }))) {
        return Some(
            "next: wait until the nodes vote again, or give --assume-fresh if they have nothing to \
             forget (their first start)",
        );
    }
    let failed = refusal
        .nodes
        .iter()
        .filter_map(|report| match &report.story {
            Story::Failed(error) => Some(error),
            _ => None,
        });
    next_step_after(&failed.collect::<Vec<_>>())
}

/// What can be done about nodes that failed so.
pub(crate) fn next_step_after(failed: &[&NodeError]) -> Option<&'static str> {
    use NodeError::{Disconnected, TimedOut, Unreachable};
    let any = |so: fn(&NodeError) -> bool| failed.iter().any(|error| so(error));
    if any(|error| matches!(error, Unreachable { .. } | Disconnected { .. })) {
        return Some(
            "next: check that the servers run, and the addresses and firewalls on the way",
        );
    }
    any(|error| matches!(error, TimedOut { .. }))
        .then_some("next: check whether the servers are stopped or overloaded")
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

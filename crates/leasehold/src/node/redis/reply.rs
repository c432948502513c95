//! Parses the replies of a server. No reply is trusted: it must match its request.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::base::holder::Holder;
use crate::base::name::shown;
use crate::node::link::{Aftermath, Job, LineLook, Reply, Unit};
use crate::node::rules::MAX_TOKEN;
use crate::node::{Call, NodeError, Verb, Vote};

/// Reads the replies to a unit: one, or two where there are [two requests](Unit::requests).
pub(super) fn answer(unit: Unit, value: Value, next: Option<&Value>, after: &mut Aftermath) {
    match unit {
        Unit::One(job) => {
            let reply = read(value, &job.call, job.is_plain_delete);
            after.take(job, reply);
        }
        Unit::Plain(job) => after.take(job, read_set_reply(&value, next)),
        Unit::Native(job, _) => after.take(job, read_native(&value, next)),
        Unit::AcquireMany(jobs) | Unit::ExtendMany(jobs) => {
            read_many(jobs, &value, |_| Vote::Granted, after);
        }
        Unit::DeleteMany(jobs) => {
            read_many(
                jobs,
                &value,
                |done| Vote::Released { held: done == 1 },
                after,
            );
        }
    }
}

/// Reads the replies to a look for a line and a plain SET.
fn read_set_reply(line: &Value, set: Option<&Value>) -> Reply {
    match set {
        Some(Value::Okay) => Reply::Set(look(Some(line))),
        // Another owner has it, whom the script names; or it finds the same error.
        Some(Value::Nil | Value::ServerError(_)) => Reply::Alone,
        _ => garbage("to SET".into()),
    }
}

/// Reads the replies to the server's own compare-and-delete and a look for a line.
fn read_native(deleted: &Value, line: Option<&Value>) -> Reply {
    match deleted {
        Value::Int(held @ 0..=1) => Reply::Deleted {
            held: *held == 1,
            line: look(line),
        },
        Value::ServerError(_) => Reply::NativeRefused,
        _ => garbage("to a compare-and-delete".into()),
    }
}

fn look(line: Option<&Value>) -> LineLook {
    match line {
        Some(Value::Int(0)) => LineLook::Empty,
        Some(Value::ServerError(_)) => LineLook::Refused,
        _ => LineLook::Waiters,
    }
}

/// Reads the reply to a script of many: the first call's owner value, if all were done, or
/// that and for each call 1 or 2 if it was done, 0 if it must be sent alone.
fn read_many(jobs: Vec<Job>, value: &Value, vote: impl Fn(i64) -> Vote, after: &mut Aftermath) {
    // The same error for all: each finds out by itself.
    let failed = matches!(value, Value::ServerError(_));
    let has_forgotten = is_forgotten(value);
    let first = jobs.first().map(|job| job.call.claim().owner());
    let ours = |value: &Value| matches!(value, Value::BulkString(owner) if Some(&**owner) == first);
    let (all, each): (_, &[Value]) = match value {
        Value::Array(values) => match &values[..] {
            [owner, each @ ..] if ours(owner) && each.len() == jobs.len() => (false, each),
            _ => (false, &[]),
        },
        value => (ours(value), &[]),
    };
    let mut each = each.iter();
    for job in jobs {
        let reply = match each.next() {
            None if has_forgotten => Reply::NoScript,
            None if failed => Reply::Alone,
            None if all => Reply::Answer(Ok(vote(1))),
            Some(Value::Int(0)) => Reply::Alone,
            Some(Value::Int(done @ 1..=2)) => Reply::Answer(Ok(vote(*done))),
            _ => garbage("to a request of many".into()),
        };
        after.take(job, reply);
    }
}

/// Whether the server has forgotten a script that was sent over this connection.
fn is_forgotten(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// `is_plain_delete`: whether the call was sent as a plain compare-and-delete.
fn read(value: Value, call: &Call, is_plain_delete: bool) -> Reply {
    match value {
        value if is_forgotten(&value) => Reply::NoScript,
        Value::ServerError(error) => Reply::Answer(Err(server_error(&error))),
        Value::Int(number) => read_number(number, call),
        Value::Nil if is_plain_delete => Reply::Answer(Ok(Vote::Released { held: false })),
        Value::BulkString(text) if is_plain_delete && text == call.claim().owner() => {
            Reply::Answer(Ok(Vote::Released { held: true }))
        }
        token if call.verb() == Verb::Acquire && is_token(&token, call) => {
            Reply::Answer(Ok(Vote::Granted))
        }
        Value::Array(parts) => read_parts(&parts, call)
            .unwrap_or_else(|| garbage(format!("to {:?}: {}", call.verb(), glimpse(&parts)))),
        other => garbage(format!("to {:?}: {}", call.verb(), glimpse(&[other]))),
    }
}

/// Whether a reply is the call's token, which means that the call was granted.
fn is_token(value: &Value, call: &Call) -> bool {
    match value {
        Value::BulkString(token) => parse_number(token) == Some(call.claim().token()),
        _ => false,
    }
}

/// Parses a reply that is a number: the token of its request, or the negative.
fn read_number(number: i64, call: &Call) -> Reply {
    let (verb, same) = (call.verb(), number.unsigned_abs() == call.claim().token());
    match (same, verb, number > 0) {
        (true, Verb::Release { .. }, held) => Reply::Answer(Ok(Vote::Released { held })),
        (true, Verb::Extend, true) => Reply::Answer(Ok(Vote::Granted)),
        _ => garbage(format!(
            "{number} to {verb:?} of token {}",
            call.claim().token()
        )),
    }
}

/// Parses a reply with several parts. It contains the token of its request.
fn read_parts(parts: &[Value], call: &Call) -> Option<Reply> {
    let (word, rest) = parts.split_first()?;
    let (token, rest) = rest.split_first()?;
    if number(token)? != call.claim().token() {
        return None;
    }
    let vote = match (bytes(word)?, rest) {
        (b"FORGOT", []) => return Some(Reply::Forgot),
        (b"GRANTED", [now]) if call.verb() == Verb::Acquire => {
            return Some(Reply::GrantedAt(number(now)?));
        }
        (b"GRANTED", [_]) if matches!(call.verb(), Verb::Wait | Verb::Extend) => Vote::Granted,
        (b"RELEASED", [held]) if matches!(call.verb(), Verb::Release { .. }) => Vote::Released {
            held: number(held)? == 1,
        },
        (b"HELD", [fence, now, Value::Int(ttl_ms), value, place @ ..]) => Vote::Held {
            holder: Box::new(Holder::parse(bytes(value)?)),
            remaining: u64::try_from(*ttl_ms).ok().map(Duration::from_millis),
            fence: number(fence)?,
            now: number(now)?,
            place: match (call.verb(), place) {
                (Verb::Wait, [place]) => Some(u32::try_from(number(place)?).ok()?),
                (Verb::Acquire | Verb::Extend, []) => None,
                _ => return None,
            },
        },
        (b"FREE", [permit]) if matches!(call.verb(), Verb::Acquire | Verb::Wait) => Vote::Free {
            permit: u32::try_from(number(permit)?).ok()?,
        },
        (b"PERMITS", [permits]) if matches!(call.verb(), Verb::Acquire | Verb::Wait) => {
            Vote::OtherPermits {
                permits: u32::try_from(number(permits)?).ok()?,
            }
        }
        (b"TURN", [_]) if call.verb() == Verb::Wait => Vote::YourTurn,
        (b"STALE", [fence, now]) if matches!(call.verb(), Verb::Acquire | Verb::Wait) => {
            Vote::Stale {
                fence: number(fence)?,
                now: number(now)?,
            }
        }
        (b"AHEAD", [fence, now]) => Vote::Ahead {
            fence: number(fence)?,
            now: number(now)?,
        },
        (b"LOST", [fence]) if call.verb() == Verb::Extend => Vote::Lost {
            fence: number(fence)?,
        },
        _ => return None,
    };
    Some(Reply::Answer(Ok(vote)))
}

/// What a server answered to the handshake script.
pub(super) struct Hello {
    pub(super) record: String,
    /// When the epoch began, by the server's clock.
    pub(super) began_us: u64,
    /// The server's clock.
    pub(super) now_us: u64,
    /// It is on record that this run of the server had no locks to lose when it began.
    pub(super) fresh: bool,
}

pub(super) fn read_hello(value: &Value, ours: &str) -> Result<Hello, NodeError> {
    let why = match value {
        Value::ServerError(error) => return Err(server_error(error)),
        Value::Array(parts) => match parts.as_slice() {
            [word, record, now] if bytes(word) == Some(b"EPOCH") => {
                if let Some(hello) = read_epoch(record, now) {
                    return Ok(hello);
                }
                glimpse(parts)
            }
            [word, theirs] if bytes(word) == Some(b"DIFFERS") => {
                return Err(NodeError::OtherConstants {
                    theirs: shown(bytes(theirs).unwrap_or_default()),
                    ours: ours.to_owned(),
                });
            }
            parts => glimpse(parts),
        },
        other => glimpse(std::slice::from_ref(other)),
    };
    let why = format!("to the handshake: {why}");
    Err(NodeError::Protocol { why })
}

/// The parts of an epoch record; see hello.lua.
pub(super) struct EpochRecord<'r> {
    pub(super) identity: &'r str,
    pub(super) constants: &'r str,
    pub(super) began_us: u64,
    pub(super) fresh: bool,
}

impl<'r> EpochRecord<'r> {
    /// `None` if this is no record of leasehold.
    pub(super) fn parse(record: &'r [u8]) -> Option<Self> {
        let record = std::str::from_utf8(record).ok()?;
        // The record becomes part of a script, so it must not contain the end of a string.
        let plain = |c: char| c.is_ascii_alphanumeric() || ":=._ ".contains(c);
        if !record.chars().all(plain) {
            return None;
        }
        let plain = record.strip_suffix(":fresh");
        let (identity, rest) = plain.unwrap_or(record).split_once(':')?;
        let (constants, began) = rest.split_once(':')?;
        Some(Self {
            identity,
            constants,
            began_us: parse_number(began.as_bytes())?,
            fresh: plain.is_some(),
        })
    }
}

fn read_epoch(record: &Value, now: &Value) -> Option<Hello> {
    let text = bytes(record)?;
    let record = EpochRecord::parse(text)?;
    Some(Hello {
        began_us: record.began_us,
        record: String::from_utf8_lossy(text).into_owned(),
        fresh: record.fresh,
        now_us: number(now)?,
    })
}

pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok().filter(|n| *n <= MAX_TOKEN),
        other => parse_number(bytes(other)?),
    }
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (number <= MAX_TOKEN).then_some(number)
}

fn garbage(why: String) -> Reply {
    Reply::Garbage(NodeError::Protocol { why })
}

/// Describes an unexpected reply. Values of locks are secrets, so only its shape is shown, and the
/// first word if that is a word of the protocol.
pub(super) fn glimpse(parts: &[Value]) -> String {
    let word = parts.first().and_then(bytes).unwrap_or_default();
    match word {
        [] => format!("{} values", parts.len()),
        word if word.len() <= 16 && word.iter().all(u8::is_ascii_uppercase) => {
            format!("{} and {} more", shown(word), parts.len() - 1)
        }
        word => format!("{} bytes and {} more", word.len(), parts.len() - 1),
    }
}

/// How Redis before 7.2 reports that the user may not run a command of a script. It does not say
/// which: see [`Scripts::name_refused`](super::scripts::Scripts::name_refused).
pub(super) const UNNAMED_REFUSAL: &str = "The user executing the script can't run";

/// Converts an error reply. Servers before 7.0 wrap the error of a command in a script:
/// `ERR Error running script … -CODE text`.
pub(super) fn server_error(error: &ServerError) -> NodeError {
    let details = error.details().unwrap_or_default();
    name_error(error.code(), details)
}

fn name_error(code: &str, details: &str) -> NodeError {
    const CODES: [&str; 16] = [
        "WRONGTYPE",
        "READONLY",
        "LOADING",
        "OOM",
        "MISCONF",
        "NOPERM",
        "WRONGPASS",
        "NOAUTH",
        "MOVED",
        "ASK",
        "CLUSTERDOWN",
        "CROSSSLOT",
        "BUSY",
        "MASTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
    ];
    let wrapped = |code: &&&str| details.contains(&format!("-{code} "));
    let code = match code {
        "ERR" => CODES.iter().find(wrapped).copied().unwrap_or("ERR"),
        code => code,
    };
    // What follows are the arguments: the source of a script, or a secret.
    let details = match details.find(", with args beginning with") {
        Some(end) => &details[..end],
        None => details,
    };
    let why = shown(details.as_bytes());
    match code {
        "WRONGTYPE" => NodeError::WrongType,
        "READONLY" => NodeError::ReadOnly,
        "LOADING" => NodeError::Loading,
        "OOM" => NodeError::OutOfMemory,
        "MISCONF" => NodeError::CannotPersist {
            why: format!("MISCONF {why}"),
        },
        "NOPERM" => NodeError::NoPermission { why },
        "WRONGPASS" | "NOAUTH" => NodeError::WrongPassword,
        "CLUSTERDOWN" if !details.contains("slot not served") => NodeError::Unavailable {
            why: format!("{code} {why}"),
        },
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => NodeError::Clustered {
            why: format!("{code} {why}"),
        },
        "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "NOREPLICAS" => NodeError::Unavailable {
            why: format!("{code} {why}"),
        },
        // The texts of Redis and Valkey for a command in a script, and for SELECT.
        "ERR"
            if details.contains(UNNAMED_REFUSAL)
                || details.contains("ACL failure in script")
                || details.contains("has no permissions to run") =>
        {
            NodeError::NoPermission { why }
        }
        "ERR" if details.contains("DB index is out of range") => NodeError::NoSuchDatabase,
        code => NodeError::Refused {
            why: format!("{} {why}", shown(code.as_bytes())),
        },
    }
}

/// Converts an error of the client library.
pub(super) fn connection_error(error: &RedisError) -> NodeError {
    if let Some(code) = error.code() {
        return name_error(code, error.detail().unwrap_or_default());
    }
    if let Some(why) = tls_error(error) {
        return NodeError::Tls { why };
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => NodeError::WrongPassword,
        ErrorKind::Parse => NodeError::Protocol {
            why: "not what a Redis server says".into(),
        },
        // These texts contain no part of the URL except the host and the port.
        _ => NodeError::Unreachable {
            why: shown(error.to_string().as_bytes()),
        },
    }
}

/// Returns the TLS error, if the error is one.
#[cfg(feature = "tls")]
fn tls_error(error: &RedisError) -> Option<String> {
    // The `redis` crate returns the `Arc` around the source.
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let error = std::error::Error::source(error)?.downcast_ref::<Shared>()?;
    let error = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    let error = error.downcast_ref::<rustls::Error>()?;
    Some(shown(error.to_string().as_bytes()))
}

#[cfg(not(feature = "tls"))]
fn tls_error(_: &RedisError) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::link::Native;
    use crate::node::link::testing::job;

    #[test]
    fn a_release_by_the_servers_own_command_serves_the_line() {
        let answer = |deleted: Value, line: Value| {
            let (job, _, answers) = job(Verb::Release { keep: None }, true);
            let mut after = Aftermath::default();
            super::answer(
                Unit::Native(job, Native::DelEx),
                deleted,
                Some(&line),
                &mut after,
            );
            (after, answers)
        };
        for held in [true, false] {
            let (after, answers) = answer(Value::Int(held.into()), Value::Int(0));
            assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held }));
            assert!(after.redo.is_empty() && !after.native_refused);
        }
        // There are waiters, or the server refused to say: the script is sent, and what it finds
        // (nothing) does not make it a lock that was lost.
        let refused = || redis::parse_redis_value(b"-NOPERM no\r\n").expect("an error as a value");
        for (line, refused) in [(Value::Int(1), false), (refused(), true)] {
            let (mut after, answers) = answer(Value::Int(1), line);
            assert_eq!(after.native_refused, refused);
            let job = after.redo.pop().expect("the script");
            assert!(job.released);
            Aftermath::default().take(job, Reply::Answer(Ok(Vote::Released { held: false })));
            assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held: true }));
        }
        // The lock was not held any more: the script serves the line, and the answer stays "not held".
        let (mut after, answers) = answer(Value::Int(0), Value::Int(1));
        let job = after.redo.pop().expect("the script");
        Aftermath::default().take(job, Reply::Answer(Ok(Vote::Released { held: false })));
        assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held: false }));
        // A user who may not use it: nothing was done, the script does all.
        let (mut after, _answers) = answer(refused(), Value::Int(0));
        assert!(after.native_refused);
        assert!(!after.redo.pop().expect("the script").released);
        let (after, answers) = answer(Value::Int(7), Value::Int(0));
        assert!(after.cut.is_some());
        assert!(answers.recv().unwrap().is_err());
    }

    #[test]
    fn an_error_does_not_repeat_the_arguments() {
        let details = "unknown command 'EVAL', with args beginning with: 'redis.call(' '1' ";
        assert_eq!(
            name_error("ERR", details),
            NodeError::Refused {
                why: "ERR unknown command 'EVAL'".into()
            }
        );
    }

    #[test]
    fn replies_to_many_are_matched_to_their_requests() {
        type Together = fn(Vec<Job>) -> Unit;
        let cases = [
            (Unit::AcquireMany as Together, Verb::Acquire, Vote::Granted),
            (Unit::ExtendMany, Verb::Extend, Vote::Granted),
            (
                Unit::DeleteMany,
                Verb::Release { keep: None },
                Vote::Released { held: true },
            ),
        ];
        for (together, verb, done) in cases {
            let ask = |reply: &dyn Fn(Value) -> Value| {
                let (one, claim, first) = job(verb, true);
                let (two, _, second) = job(verb, true);
                let reply = reply(Value::BulkString(claim.owner().to_vec()));
                let mut after = Aftermath::default();
                answer(together(vec![one, two]), reply, None, &mut after);
                (first.try_recv(), second.try_recv(), after)
            };
            let (first, second, _) = ask(&|ours| ours);
            assert_eq!(
                (first.unwrap(), second.unwrap()),
                (Ok(done.clone()), Ok(done.clone()))
            );
            let flags = |of: Value| Value::Array(vec![of, Value::Int(1), Value::Int(0)]);
            let (first, second, after) = ask(&flags);
            assert_eq!(first.unwrap(), Ok(done));
            // What was not done is sent by itself.
            assert!(second.is_err());
            assert_eq!(after.redo.len(), 1);
            if matches!(verb, Verb::Release { .. }) {
                let not_held = |of: Value| Value::Array(vec![of, Value::Int(1), Value::Int(2)]);
                let (_, second, _) = ask(&not_held);
                assert_eq!(second.unwrap(), Ok(Vote::Released { held: false }));
            }
            // Of somebody else, of too few, or of no known kind.
            let stranger = || Value::BulkString(b"somebody else".to_vec());
            let nonsense: [&dyn Fn(Value) -> Value; 5] = [
                &|_| stranger(),
                &|_| flags(stranger()),
                &|ours| Value::Array(vec![ours, Value::Int(1)]),
                &|ours| Value::Array(vec![ours, Value::Int(3), Value::Nil]),
                &|_| Value::Okay,
            ];
            for reply in nonsense {
                let (first, second, after) = ask(reply);
                assert!(first.unwrap().is_err() && second.unwrap().is_err());
                assert!(after.cut.is_some());
            }
        }
    }
}

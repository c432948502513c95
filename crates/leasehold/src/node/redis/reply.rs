//! What a server answered, read with suspicion.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::base::holder::Holder;
use crate::base::name::shown;
use crate::node::rules::MAX_TOKEN;
use crate::node::{Call, NodeError, Verb, Vote};

/// What to make of one reply.
pub(super) enum Reply {
    /// The call's answer.
    Answer(Result<Vote, NodeError>),
    /// The call was granted, and the server's clock says this.
    GrantedAt(u64),
    /// The server does not know the script.
    NoScript,
    /// The server's epoch is not the one that this connection knows.
    Forgot,
    /// Not a reply to this request: the connection cannot be trusted any more.
    Garbage(NodeError),
}

/// `settles`: whether the call was sent as a plain compare-and-delete.
pub(super) fn read(value: Value, call: &Call, settles: bool) -> Reply {
    match value {
        Value::ServerError(error) if error.code() == "NOSCRIPT" => Reply::NoScript,
        Value::ServerError(error) => Reply::Answer(Err(server_error(&error))),
        Value::Int(number) => read_number(number, call),
        Value::Nil if settles => Reply::Answer(Ok(Vote::Released { held: false })),
        Value::BulkString(text) if settles && text == call.claim().owner() => {
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

/// Whether a reply is the call's token, which says that it was granted.
fn is_token(value: &Value, call: &Call) -> bool {
    match value {
        Value::BulkString(token) => parse_number(token) == Some(call.claim().token()),
        _ => false,
    }
}

/// Replies are matched to their exact request by the token that they carry.
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
            holder: Holder::parse(bytes(value)?),
            remaining: u64::try_from(*ttl_ms).ok().map(Duration::from_millis),
            fence: number(fence)?,
            now: number(now)?,
            place: match (call.verb(), place) {
                (Verb::Wait, [place]) => Some(u32::try_from(number(place)?).ok()?),
                (Verb::Acquire | Verb::Extend, []) => None,
                _ => return None,
            },
        },
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
    /// It is on record that this run of the server had nothing to forget when it began.
    pub(super) fresh: bool,
}

/// A command that deletes a key if it has a certain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Native {
    /// Of Valkey, from version 9 on.
    DelIfEq,
    /// Of Redis, from version 8.4 on.
    DelEx,
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

fn read_epoch(record: &Value, now: &Value) -> Option<Hello> {
    let record = std::str::from_utf8(bytes(record)?).ok()?;
    // It becomes part of a script: nothing in it may end a string there.
    let plain = |c: char| c.is_ascii_alphanumeric() || ":=._ ".contains(c);
    if !record.chars().all(plain) {
        return None;
    }
    let plain = record.strip_suffix(":fresh");
    let began = plain.unwrap_or(record).rsplit(':').next()?;
    Some(Hello {
        began_us: parse_number(began.as_bytes())?,
        record: record.to_owned(),
        fresh: plain.is_some(),
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

/// A look at a reply that makes no sense. Values of locks are secrets: only the shape is
/// shown, and the first word if it is one of a protocol.
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

/// Names an error reply. Servers before 7.0 wrap what a command in a script met in an
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
        // As Redis and Valkey say it of a command in a script, and of SELECT.
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

/// Names what the client library met on the way to the server.
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
        // The text of these can hold nothing of the URL but its host and port.
        _ => NodeError::Unreachable {
            why: shown(error.to_string().as_bytes()),
        },
    }
}

/// What TLS met, if that is what the error is about.
#[cfg(feature = "tls")]
fn tls_error(error: &RedisError) -> Option<String> {
    // The source that the `redis` crate gives is the `Arc` around it.
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

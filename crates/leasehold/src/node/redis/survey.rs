//! Reads the locks of a server, over a separate connection, so that a listing does not delay votes.

use std::time::Duration;

use redis::{Pipeline, Value};

use super::Target;
use super::connection::Connection;
use super::reply::{glimpse, server_error};
use super::scripts::{
    FENCE_PREFIX, TURN_MARK, fence_key, line_key, name_of_fence, parse_fence, readers_key,
    since_key,
};
use crate::base::holder::is_marker;
use crate::base::name::Name;
use crate::node::NodeError;
use crate::node::Sighting;

/// How many keys one step of a scan covers.
const STEP: usize = 1000;
/// How many replies there are for each name.
const REPLIES: usize = 6;

/// Returns the lock of this name, or all locks that have a fence and that this user may read: those of
/// leasehold of the last day.
pub(super) async fn survey(
    target: Target,
    timeout: Duration,
    name: Option<Name>,
) -> Result<Vec<Sighting>, NodeError> {
    let connection = target.open_within(timeout).await?;
    match name {
        Some(name) => look_at_one(&connection, timeout, &name).await,
        None => look_at_all(&connection, timeout).await,
    }
}

/// The lock of this name. Fails if the key contains a value of another type.
async fn look_at_one(
    connection: &Connection,
    timeout: Duration,
    name: &Name,
) -> Result<Vec<Sighting>, NodeError> {
    let (time, replies) = ask(connection, timeout, std::slice::from_ref(name)).await?;
    sightings(name, &replies, &time)
}

pub(super) async fn look_at_all(
    connection: &Connection,
    timeout: Duration,
) -> Result<Vec<Sighting>, NodeError> {
    let (mut cursor, mut seen) = (0_u64, Vec::new());
    loop {
        let mut scan = Pipeline::new();
        scan.cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{FENCE_PREFIX}*"))
            .arg("COUNT")
            .arg(STEP);
        let reply = connection.exchange_within(&scan, timeout).await?.pop();
        let (next, keys) = read_scan(reply.unwrap_or(Value::Nil))?;
        let names: Vec<_> = keys.iter().filter_map(|key| name_of_fence(key)).collect();
        seen.extend(look_at_listed(connection, timeout, &names).await?);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    // A scan may return a key twice.
    let key = |seen: &Sighting| (seen.name.clone(), seen.value.clone());
    seen.sort_by_key(key);
    seen.dedup_by_key(|seen| key(seen));
    Ok(seen)
}

/// The next cursor, and the keys of one step of a scan.
fn read_scan(reply: Value) -> Result<(u64, Vec<Vec<u8>>), NodeError> {
    if let Value::ServerError(error) = &reply {
        return Err(server_error(error));
    }
    let why = format!(
        "the reply to SCAN: {}",
        glimpse(std::slice::from_ref(&reply))
    );
    redis::from_redis_value(reply).map_err(|_| NodeError::Protocol { why })
}

/// The locks of these names, apart from those that cannot be read.
async fn look_at_listed(
    connection: &Connection,
    timeout: Duration,
    names: &[Name],
) -> Result<Vec<Sighting>, NodeError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let (time, replies) = ask(connection, timeout, names).await?;
    let mut seen = Vec::new();
    for (name, replies) in names.iter().zip(replies.chunks_exact(REPLIES)) {
        match sightings(name, replies, &time) {
            // The key was a lock once, or is one of other users.
            Err(NodeError::WrongType | NodeError::NoPermission { .. }) => {}
            found => seen.extend(found?),
        }
    }
    Ok(seen)
}

/// The holders of a lock: its owner, or its readers.
fn sightings(name: &Name, replies: &[Value], time: &Value) -> Result<Vec<Sighting>, NodeError> {
    let [lock @ .., readers] = replies else {
        return Ok(Vec::new());
    };
    Ok(match sighting(name, lock)? {
        Some(marker) if is_marker(&marker.value) => readers_of(&marker, readers, time),
        lock => lock.into_iter().collect(),
    })
}

/// Reads the server's clock and all keys of these names: [`REPLIES`] replies for each.
async fn ask(
    connection: &Connection,
    timeout: Duration,
    names: &[Name],
) -> Result<(Value, Vec<Value>), NodeError> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("TIME");
    for name in names {
        pipeline.cmd("GET").arg(name.as_bytes());
        pipeline.cmd("PTTL").arg(name.as_bytes());
        pipeline.cmd("GET").arg(fence_key(name));
        let semaphore = name.as_permit().map(|(semaphore, _)| semaphore);
        let line = semaphore.as_ref().unwrap_or(name);
        pipeline.cmd("ZCARD").arg(line_key(line));
        pipeline.cmd("GET").arg(since_key(name));
        let readers = pipeline.cmd("ZRANGE").arg(readers_key(name));
        readers.arg(0).arg(-1).arg("WITHSCORES");
    }
    let mut replies = connection.exchange_within(&pipeline, timeout).await?;
    let names = replies.split_off(replies.len().min(1));
    Ok((replies.pop().unwrap_or(Value::Nil), names))
}

/// The readers of a lock that have not expired; or its marker, if this user may not list them.
fn readers_of(marker: &Sighting, readers: &Value, time: &Value) -> Vec<Sighting> {
    let now_ms = match time {
        Value::Array(parts) => match &parts[..] {
            [seconds, us] => text(seconds)
                .and_then(|seconds| seconds.parse::<u64>().ok())
                .zip(text(us).and_then(|us| us.parse::<u64>().ok()))
                .and_then(|(seconds, us)| seconds.checked_mul(1000)?.checked_add(us / 1000)),
            _ => None,
        },
        _ => None,
    };
    let (Some(now_ms), Value::Array(readers)) = (now_ms, readers) else {
        return vec![marker.clone()];
    };
    // Pairs, or one list of twice the length, as the protocol has it.
    let flat: Vec<&Value> = readers
        .iter()
        .flat_map(|entry| match entry {
            Value::Array(pair) => pair.iter().collect(),
            value => vec![value],
        })
        .collect();
    let living = flat.chunks_exact(2).filter_map(|pair| {
        let [Value::BulkString(owner), until] = pair else {
            return None;
        };
        let until = match until {
            Value::Double(until) => *until as u64,
            until => text(until)?.parse().ok()?,
        };
        let left = Duration::from_millis(until.checked_sub(now_ms).filter(|left| *left > 0)?);
        let seen = Sighting::new(marker.name.clone(), owner.clone(), Some(left));
        let seen = seen.with_fence(marker.fence);
        Some(match marker.waiters {
            Some(waiters) => seen.with_waiters(waiters),
            None => seen,
        })
    });
    living.collect()
}

fn sighting(name: &Name, replies: &[Value]) -> Result<Option<Sighting>, NodeError> {
    let [value, ttl, fence, waiters, granted] = replies else {
        return Ok(None);
    };
    let value = match value {
        Value::ServerError(error) => return Err(server_error(error)),
        // The lock is free, and it is a waiter's turn.
        Value::BulkString(value) if value == TURN_MARK.as_bytes() => return Ok(None),
        Value::BulkString(value) => value,
        _ => return Ok(None),
    };
    let remaining = match ttl {
        Value::Int(ms @ 0..) => Some(Duration::from_millis(ms.unsigned_abs())),
        // The lock expired between the two commands.
        Value::Int(-2) => return Ok(None),
        _ => None,
    };
    let fence = text(fence).and_then(parse_fence).map(|(fence, _)| fence);
    // If the user may not read this key, the time of the holder's request is shown.
    let granted = text(granted)
        .and_then(|text| text.split_once(':'))
        .and_then(|(token, at_us)| Some((token.parse().ok()?, at_us.parse().ok()?)));
    let seen = Sighting::new(name.clone(), value.clone(), remaining)
        .with_fence(fence)
        .with_granted(granted);
    Ok(Some(match waiters {
        Value::Int(waiters) => seen.with_waiters(usize::try_from(*waiters).unwrap_or(0)),
        _ => seen,
    }))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

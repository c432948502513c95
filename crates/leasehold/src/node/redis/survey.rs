//! Looking at what locks a server has, over a connection of its own: listing must not stand
//! in the way of votes.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, Value};

use super::reply::connection_error;
use super::scripts::{FENCE_PREFIX, TURN_MARK, fence_key, line_key, name_of_fence, since_key};
use crate::base::name::Name;
use crate::node::NodeError;
use crate::node::Sighting;

/// How many keys a server is asked to look at in one step.
const STEP: usize = 1000;

/// The lock of this name, or all that have a fence: leasehold's of the last day.
pub(super) async fn survey(
    client: redis::Client,
    timeout: Duration,
    name: Option<Name>,
) -> Result<Vec<Sighting>, NodeError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connecting.await.map_err(|error| connection_error(&error))?;
    let seen = match name {
        Some(name) => look_at(&mut connection, &[name]).await,
        None => look_at_all(&mut connection).await,
    };
    seen.map_err(|error| connection_error(&error))
}

pub(super) async fn look_at_all(
    connection: &mut MultiplexedConnection,
) -> Result<Vec<Sighting>, RedisError> {
    let (mut cursor, mut seen) = (0_u64, Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{FENCE_PREFIX}*"));
        scan.arg("COUNT").arg(STEP);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        let names: Vec<_> = keys.iter().filter_map(|key| name_of_fence(key)).collect();
        seen.extend(look_at(connection, &names).await?);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    // A scan may show a key twice.
    seen.sort_by(|one, other| one.name.cmp(&other.name));
    seen.dedup_by(|one, other| one.name == other.name);
    Ok(seen)
}

async fn look_at(
    connection: &mut MultiplexedConnection,
    names: &[Name],
) -> Result<Vec<Sighting>, RedisError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for name in names {
        pipeline.cmd("GET").arg(name.as_bytes());
        pipeline.cmd("PTTL").arg(name.as_bytes());
        pipeline.cmd("GET").arg(fence_key(name));
        pipeline.cmd("ZCARD").arg(line_key(name));
        pipeline.cmd("GET").arg(since_key(name));
    }
    let replies = connection
        .send_packed_commands(&pipeline, 0, pipeline.len())
        .await?;
    let locks = names.iter().zip(replies.chunks_exact(5));
    locks
        .filter_map(|(name, replies)| sighting(name, replies).transpose())
        .collect()
}

fn sighting(name: &Name, replies: &[Value]) -> Result<Option<Sighting>, RedisError> {
    let [value, ttl, fence, waiters, granted] = replies else {
        return Ok(None);
    };
    match value {
        // The name of a lock once, and something else by now.
        Value::ServerError(error) if error.code() == "WRONGTYPE" => return Ok(None),
        Value::ServerError(error) => return Err(error.clone().into()),
        _ => {}
    }
    let value = match value {
        // Free: it is a waiter's turn.
        Value::BulkString(value) if value == TURN_MARK.as_bytes() => return Ok(None),
        Value::BulkString(value) => value,
        _ => return Ok(None),
    };
    let remaining = match ttl {
        Value::Int(ms @ 0..) => Some(Duration::from_millis(ms.unsigned_abs())),
        // It went away between the two.
        Value::Int(-2) => return Ok(None),
        _ => None,
    };
    let fence = text(fence).and_then(|digits| digits.trim_end_matches('+').parse().ok());
    // A user who may not read this key sees when the holder asked.
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

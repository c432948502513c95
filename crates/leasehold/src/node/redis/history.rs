//! The history of names, in lists. It has a connection of its own, so that it never delays a vote, and
//! so that a user without the permissions for it can still lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::Mutex;

use super::Target;
use super::connection::Connection;
use super::reply::{glimpse, server_error};
use super::scripts::history_key;
use crate::base::name::Name;
use crate::node::{HISTORY_ENTRIES, HISTORY_KEPT, HistoryEntry, NodeError};

/// The connection over which entries are written. It is opened with the first one.
pub(super) type HistoryConnection = Arc<Mutex<Option<Connection>>>;

/// Adds entries to the lists of their names.
pub(super) async fn write(
    target: Target,
    timeout: Duration,
    connection: HistoryConnection,
    entries: Vec<HistoryEntry>,
) -> Result<(), NodeError> {
    let mut slot = connection.lock().await;
    let pipeline = additions(&entries);
    // A connection that fails is not used again. Neither is one whose reply was not awaited.
    let written = match slot.take() {
        Some(open) => write_over(open, &pipeline, timeout).await,
        None => write_over(target.open_within(timeout).await?, &pipeline, timeout).await,
    };
    // It was idle since the lease began, perhaps for hours, and may have been closed on the way. An entry
    // that is written twice is shown once.
    let written = match written {
        Err(NodeError::Disconnected { .. }) => {
            write_over(target.open_within(timeout).await?, &pipeline, timeout).await
        }
        written => written,
    };
    *slot = Some(written?);
    Ok(())
}

/// Returns the connection if everything was written.
async fn write_over(
    open: Connection,
    pipeline: &Pipeline,
    timeout: Duration,
) -> Result<Connection, NodeError> {
    checked(&open.exchange_within(pipeline, timeout).await?)?;
    Ok(open)
}

/// The requests that add entries to the lists of their names.
fn additions(entries: &[HistoryEntry]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for entry in entries {
        let push = match entry.begins_history() {
            true => "LPUSH",
            false => "LPUSHX",
        };
        pipeline
            .cmd(push)
            .arg(history_key(entry.name()))
            .arg(entry.text());
    }
    let names: BTreeSet<&Name> = entries.iter().map(HistoryEntry::name).collect();
    for key in names.into_iter().map(history_key) {
        let (last, kept) = (HISTORY_ENTRIES - 1, HISTORY_KEPT.as_millis() as u64);
        pipeline.cmd("LTRIM").arg(&key).arg(0).arg(last);
        pipeline.cmd("PEXPIRE").arg(&key).arg(kept);
    }
    pipeline
}

/// Reads the list of a name, over a connection of its own.
pub(super) async fn read(
    target: Target,
    timeout: Duration,
    name: Name,
) -> Result<Vec<HistoryEntry>, NodeError> {
    let connection = target.open_within(timeout).await?;
    let mut pipeline = Pipeline::new();
    let range = pipeline.cmd("LRANGE").arg(history_key(&name));
    range.arg(0).arg(HISTORY_ENTRIES - 1);
    let replies = connection.exchange_within(&pipeline, timeout).await?;
    checked(&replies)?;
    let Some(Value::Array(texts)) = replies.first() else {
        let why = format!("the reply to LRANGE: {}", glimpse(&replies));
        return Err(NodeError::Protocol { why });
    };
    let entry = |text: &Value| match text {
        Value::BulkString(text) => Some(HistoryEntry::new(name.clone(), &**text)),
        _ => None,
    };
    Ok(texts.iter().filter_map(entry).collect())
}

/// Returns the first error of the server.
fn checked(replies: &[Value]) -> Result<(), NodeError> {
    for reply in replies {
        if let Value::ServerError(error) = reply {
            return Err(server_error(error));
        }
    }
    Ok(())
}

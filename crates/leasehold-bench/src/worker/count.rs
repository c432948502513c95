//! Acquires and releases a given number of locks, for a tool that counts instructions.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::number;
use crate::contenders::{Kind, Lock, with_lock};

pub(super) fn work(kind: &str, tasks: &str, pairs: &str, urls: &[&str]) -> Result<Value, String> {
    let (tasks, pairs) = (number::<usize>(tasks)?, number::<usize>(pairs)?);
    let kind = Kind::UNCONTENDED
        .into_iter()
        .find(|known| known.label() == kind)
        .ok_or_else(|| format!("no contender: {kind:?}"))?;
    let urls: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let contender = kind.connect(&urls).await?;
        with_lock!(&contender, lock => acquire_and_release(lock, kind, tasks, pairs).await)
    })?;
    Ok(json!({ "pairs": pairs }))
}

/// All tasks together make this many pairs, each with a lock of its own.
async fn acquire_and_release<L: Lock>(
    lock: &L,
    kind: Kind,
    tasks: usize,
    pairs: usize,
) -> Result<(), String> {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (lock, name) = (lock.clone(), format!("{}/{task:04}", kind.prefix()));
        running.spawn(async move {
            for _ in (task..pairs).step_by(tasks) {
                let held = lock.acquire(&name).await?;
                lock.release(&name, held).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(task) = running.join_next().await {
        task.map_err(|error| error.to_string())??;
    }
    Ok(())
}

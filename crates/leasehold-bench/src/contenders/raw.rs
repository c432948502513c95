//! The least that a lock client can do: `SET NX PX`, and a script that compares and deletes. It
//! has no fencing, renewal, timeouts or clean-up. On several nodes it sends all requests at once
//! and continues at the majority.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use super::{Lock, client_with_nodelay};
use crate::TTL;

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) else return 0 end";

/// More than all tasks of a scenario have under way. A request that finds the channel full is not
/// sent until there is room, and never if the majority is faster.
const FAN_OUT_BUFFER: usize = 4096;

#[derive(Clone)]
pub(crate) struct Raw {
    nodes: Arc<[MultiplexedConnection]>,
    release_sha: Arc<str>,
}

impl Raw {
    pub(crate) async fn connect(urls: &[String]) -> Result<Self, String> {
        // The response timeout needs a timer per request, which is the largest cost of the client
        // crate.
        let mut config = AsyncConnectionConfig::new().set_response_timeout(None);
        if urls.len() > 1 {
            config = config.set_pipeline_buffer_size(FAN_OUT_BUFFER);
        }
        let mut nodes = Vec::new();
        for url in urls {
            let mut node = client_with_nodelay(url)?
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| error.to_string())?;
            redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(RELEASE)
                .exec_async(&mut node)
                .await
                .map_err(|error| error.to_string())?;
            nodes.push(node);
        }
        Ok(Self {
            nodes: nodes.into(),
            release_sha: redis::Script::new(RELEASE).get_hash().into(),
        })
    }

    /// Sends a command without effect, and waits until a majority has answered.
    pub(crate) async fn round_trip(&self) -> Result<(), String> {
        let pong = Value::SimpleString("PONG".into());
        self.carry(&redis::cmd("PING"), pong).await
    }

    /// Sends a command to all nodes and waits until a majority has answered `yes`.
    async fn carry(&self, command: &Cmd, yes: Value) -> Result<(), String> {
        if let [node] = &*self.nodes {
            let answer = node.clone().send_packed_command(command).await;
            return match answer {
                Ok(answer) if answer == yes => Ok(()),
                other => Err(format!("{other:?}")),
            };
        }
        // All requests are polled, and so sent, before the first can have been answered. The
        // connection skips the reply to a dropped request.
        let mut answers: FuturesUnordered<_> = self
            .nodes
            .iter()
            .map(|node| {
                let mut node = node.clone();
                async move { node.send_packed_command(command).await }
            })
            .collect();
        let (mut agreed, mut last) = (0, None);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(answer) if answer == yes => agreed += 1,
                other => last = Some(other),
            }
            if agreed > self.nodes.len() / 2 {
                return Ok(());
            }
        }
        Err(format!("no majority: {last:?}"))
    }
}

impl Lock for Raw {
    type Held = [u8; 20];

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        let mut value = [0; 20];
        fastrand::fill(&mut value);
        let mut command = redis::cmd("SET");
        command.arg(name).arg(&value).arg("NX");
        command.arg("PX").arg(TTL.as_millis() as u64);
        self.carry(&command, Value::Okay).await?;
        Ok(value)
    }

    async fn release(&self, name: &str, value: Self::Held) -> Result<(), String> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.release_sha).arg(1).arg(name).arg(&value);
        self.carry(&command, Value::Int(1)).await
    }
}

//! What a server reports about itself (`INFO`), and which part of it identifies its memory.
//!
//! INFO is a command of its own and not part of a script: managed services refuse it there.

use std::time::Duration;

use redis::{Pipeline, Value};

use super::reply::{glimpse, server_error};
use crate::node::NodeError;
use crate::node::link::Native;

/// Identifies the memory of a server. Another process has another memory, and so has the same
/// process after it was a replica.
///
/// It is the run id and, once the server was promoted, `master_replid2` and
/// `second_repl_offset`: the history that it continued as a replica, and where it left that
/// history. A replica copies its master's memory, so a server that was demoted and is promoted
/// again may have forgotten what it granted, although it never restarted. Every promotion sets
/// both values; a replica that attaches or leaves does not.
///
/// Two promotions can show the same values only if nothing was written to the other server in
/// between. Then the memory is the same as after the first one, which is from before any record
/// that was written under these values; the missing record begins a new epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity(String);

/// By what a client recognises the memory of a server from one handshake to the next.
#[derive(Clone, Debug)]
pub(super) struct KnownBy {
    pub(super) identity: Identity,
    /// The epoch record.
    pub(super) record: String,
}

impl KnownBy {
    /// Whether a server that is known by this still has the memory of `earlier`. The identities of all
    /// servers that hide their run id are the same. Such a server has forgotten if it has another epoch
    /// on record.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        let by_record = self.identity.0 == Identity::ANONYMOUS;
        self.identity.continues(&earlier.identity) && (!by_record || self.record == earlier.record)
    }
}

/// What a server reports about itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// `None` where a managed service hides it. Then only the epoch record identifies the server.
    pub(super) run_id: Option<String>,
    pub(super) identity: Identity,
    /// How long the server has been up, by its wall clock, in whole seconds. `None` where a managed
    /// service hides it.
    pub(super) up: Option<Duration>,
    /// The server's compare-and-delete command, if it has one.
    pub(super) native: Option<Native>,
    pub(super) is_replica: bool,
    /// Whether it is a node of a Redis Cluster.
    pub(super) is_cluster: bool,
}

/// How many requests [`ask`] adds.
pub(super) const REQUESTS: usize = 2;

/// Adds the requests for `INFO`, one section each, because older servers accept only one.
pub(super) fn ask(pipeline: &mut Pipeline) {
    pipeline.cmd("INFO").arg("server");
    pipeline.cmd("INFO").arg("replication");
}

/// What a server does in replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It accepts writes. Also if a managed service hides the role.
    Master,
    Replica,
}

/// Adds the request for the role alone.
pub(super) fn ask_role(pipeline: &mut Pipeline) {
    pipeline.cmd("INFO").arg("replication");
}

/// Parses the reply to [`ask_role`].
pub(super) fn read_role(replies: &[Value]) -> Result<Role, NodeError> {
    let replication = text(replies.first().unwrap_or(&Value::Nil))?;
    Ok(match field(replication, "role") {
        Some("slave") => Role::Replica,
        _ => Role::Master,
    })
}

impl Identity {
    /// The identity of a server that hides its run id.
    const ANONYMOUS: &str = "anonymous";

    fn new(run_id: Option<&str>, promoted_from: Option<(&str, u64)>) -> Self {
        let run_id = run_id.unwrap_or(Self::ANONYMOUS);
        Self(match promoted_from {
            None => run_id.to_owned(),
            Some((history, offset)) => format!("{run_id}.{history}.{offset}"),
        })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the memory is that of a replica that was promoted.
    pub(super) fn is_promoted(&self) -> bool {
        self.0.contains('.')
    }

    /// Whether a server with this identity still has the memory that an epoch record names.
    pub(super) fn continues_recorded(&self, recorded: &str) -> bool {
        self.continues(&Self(recorded.to_owned()))
    }

    /// Whether a server with this identity still has the memory of `earlier`.
    ///
    /// It has if they are equal, and also if it is the same run and no longer reports a promotion:
    /// a server clears both values an hour (`repl-backlog-ttl`) after its last replica has left. A
    /// new promotion would have set them to other values. A promotion whose values were cleared
    /// before any client saw them is not noticed: see docs/guarantees.md.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        let rest = earlier.0.strip_prefix(&self.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl ServerInfo {
    /// Parses the replies to [`ask`].
    pub(super) fn read(replies: &[Value]) -> Result<Self, NodeError> {
        let [server, replication] = replies else {
            let why = format!("{} replies to INFO", replies.len());
            return Err(NodeError::Protocol { why });
        };
        let (server, replication) = (text(server)?, text(replication)?);
        // Valkey has another name for the field.
        let mode = field(server, "redis_mode").or_else(|| field(server, "server_mode"));
        if mode == Some("sentinel") {
            let why = "this server is a sentinel, which stores no locks; name the service that it \
                       watches: redis+sentinel://host[:port],…/service";
            return Err(NodeError::Unusable { why: why.into() });
        }
        let run_id = field(server, "run_id").filter(|id| is_plain(id));
        let history = field(replication, "master_replid2")
            .filter(|id| is_plain(id) && id.bytes().any(|digit| digit != b'0'));
        // The offset is -1 without a history.
        let offset = field(replication, "second_repl_offset").and_then(|at| at.parse().ok());
        Ok(Self {
            identity: Identity::new(run_id, history.zip(offset)),
            run_id: run_id.map(str::to_owned),
            // Negative if the clock was set back. Then the uptime counts as zero.
            up: field(server, "uptime_in_seconds")
                .map(|seconds| Duration::from_secs(seconds.parse().unwrap_or(0))),
            native: native(server),
            is_replica: field(replication, "role") == Some("slave"),
            is_cluster: mode == Some("cluster"),
        })
    }
}

impl ServerInfo {
    /// How long the server has had its memory.
    ///
    /// Memory begins when the server starts, by its uptime. So a server that has long been up is
    /// usable at once. Where a replica was promoted, memory begins with the epoch: there uptime says
    /// nothing. Behind sentinels (`follows_failovers`) the epoch always counts, because a server may
    /// have taken over without a trace: it reports its promotion only until `repl-backlog-ttl` has
    /// passed without a replica, and a managed service may hide it.
    ///
    /// Where the uptime is hidden, the epoch counts if the run id shows that it is one of this run.
    pub(super) fn memory_age(&self, epoch_age: Duration, follows_failovers: bool) -> Duration {
        let by_epoch = self.identity.is_promoted() || follows_failovers;
        match self.up {
            Some(up) if by_epoch => up.min(epoch_age),
            Some(up) => up,
            None if self.run_id.is_some() => epoch_age,
            None => Duration::ZERO,
        }
    }
}

fn native(server: &str) -> Option<Native> {
    let version = |of| {
        let mut parts = field(server, of)?.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match version("valkey_version") {
        Some(valkey) => (valkey >= (9, 0)).then_some(Native::DelIfEq),
        None => (version("redis_version")? >= (8, 4)).then_some(Native::DelEx),
    }
}

fn text(reply: &Value) -> Result<&str, NodeError> {
    let text = match reply {
        Value::ServerError(error) => return Err(server_error(error)),
        Value::VerbatimString { text, .. } => Some(text.as_str()),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    text.ok_or_else(|| {
        let why = format!("to INFO: {}", glimpse(std::slice::from_ref(reply)));
        NodeError::Protocol { why }
    })
}

fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let value = |line: &'i str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value)
}

/// Whether the id can be part of a script's text and of the record, whose parts ':' separates.
fn is_plain(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(run_id: &str, history: &str, offset: i64) -> Identity {
        info(run_id, history, offset).identity
    }

    fn info(run_id: &str, history: &str, offset: i64) -> ServerInfo {
        let server = format!(
            "# Server\r\nredis_version:7.0.15\r\nrun_id:{run_id}\r\nuptime_in_seconds:71\r\n"
        );
        let replication = format!(
            "# Replication\r\nrole:master\r\nmaster_replid:{}\r\nmaster_replid2:{history}\r\n\
             second_repl_offset:{offset}\r\n",
            "d".repeat(40)
        );
        let replies = [server, replication].map(|text| Value::BulkString(text.into_bytes()));
        ServerInfo::read(&replies).expect("an answer")
    }

    #[test]
    fn a_promotion_is_another_memory() {
        let zeros = "0".repeat(40);
        let first = identity("r1", &zeros, -1);
        assert_eq!(first.as_str(), "r1");
        let promoted = identity("r1", "aa", 91);
        let again = identity("r1", "aa", 120);
        let elsewhere = identity("r1", "bb", 91);
        let all = [&first, &promoted, &again, &elsewhere];
        for (i, earlier) in all.into_iter().enumerate() {
            for (j, now) in all.into_iter().enumerate() {
                // `first` is also what the server reports once it has cleared the values.
                assert_eq!(
                    now.continues(earlier),
                    i == j || j == 0,
                    "{now:?} {earlier:?}"
                );
            }
        }
        for other in [identity("r2", &zeros, -1), identity("r", &zeros, -1)] {
            assert!(all.iter().all(|one| !other.continues(one)), "{other:?}");
        }
    }

    /// Otherwise the restart guard would not apply to it.
    #[test]
    fn a_server_that_hides_its_run_id_is_known_by_its_record() {
        let known_by = |run_id, record: &str| KnownBy {
            identity: identity(run_id, "0", -1),
            record: record.to_owned(),
        };
        // A run id of this kind counts as hidden.
        let (hidden, shown) = ("a'b", "r1");
        for (run_id, before, now, expected) in [
            (hidden, "1", "1", true),
            (hidden, "1", "2", false),
            (shown, "1", "2", true),
        ] {
            let (before, now) = (known_by(run_id, before), known_by(run_id, now));
            assert_eq!(now.continues(&before), expected, "{before:?} {now:?}");
        }
    }

    #[test]
    fn memory_is_as_old_as_the_run_or_its_epoch() {
        let seconds = Duration::from_secs;
        let own = info("r1", "0", -1);
        let promoted = info("r1", "aa", 91);
        assert_eq!(own.memory_age(seconds(3), false), seconds(71));
        assert_eq!(own.memory_age(seconds(3), true), seconds(3));
        assert_eq!(promoted.memory_age(seconds(3), false), seconds(3));
        assert_eq!(promoted.memory_age(seconds(100), false), seconds(71));
        let hidden = |run_id: Option<&str>| ServerInfo {
            up: None,
            run_id: run_id.map(str::to_owned),
            ..info("r1", "0", -1)
        };
        assert_eq!(hidden(Some("r1")).memory_age(seconds(3), false), seconds(3));
        // The record may be from before a restart.
        assert!(hidden(None).memory_age(seconds(3), false).is_zero());
    }

    #[test]
    fn what_a_server_hides_is_not_needed() {
        let hidden = [
            Value::BulkString(b"# Server\r\n".to_vec()),
            Value::BulkString(Vec::new()),
        ];
        let info = ServerInfo::read(&hidden).expect("an answer");
        assert_eq!((info.run_id, info.identity.as_str()), (None, "anonymous"));
        assert!(!info.is_replica && info.up.is_none() && info.native.is_none());
        // An id that could end a string in the script's text counts as hidden, too.
        assert_eq!(identity("a'b", "a.b", 3).as_str(), "anonymous");
    }

    #[test]
    fn native_commands_by_version() {
        for (version, expected) in [
            ("redis_version:7.2.4", None),
            ("redis_version:8.4.0", Some(Native::DelEx)),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.3", None),
            (
                "redis_version:7.2.4\r\nvalkey_version:9.0.0",
                Some(Native::DelIfEq),
            ),
        ] {
            assert_eq!(native(version), expected, "{version}");
        }
    }
}

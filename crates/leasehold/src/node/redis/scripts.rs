//! The scripts as a server is asked to run them: text, hash, keys and arguments.

use redis::{Cmd, Script};

use crate::holder::kept_value;
use crate::name::Name;
use crate::node::rules::Constants;
use crate::node::{Call, Verb};

pub(super) const EPOCH_KEY: &str = "leasehold:epoch";
const HELLO: &str = include_str!("hello.lua");

/// A script with its hash.
struct Text {
    code: String,
    hash: String,
}

/// The scripts of one client. The constants are part of the text: they are the same for
/// every request, and so cost nothing.
pub(super) struct Scripts {
    acquire: Text,
    extend: Text,
    release: Text,
    constants: String,
}

/// How a script is named to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// By its hash, which the server knows unless it forgot.
    Hash,
    /// By its text, which makes the server know it again.
    Text,
}

/// What a connection knows of its server's epoch.
pub(super) struct Epoch {
    pub(super) record: Vec<u8>,
    /// See [`View::floor`](crate::node::rules::View::floor).
    pub(super) floor: u64,
}

impl Scripts {
    pub(super) fn new(constants: &Constants) -> Self {
        let text = |body: &str| {
            let fence_ms = constants.fence_ttl(std::time::Duration::ZERO).as_millis();
            let code = format!(
                "local S, F, FENCE_MS = {}, {}, {fence_ms}\n{body}",
                constants.skew_us(),
                constants.retention_us(),
            );
            let hash = Script::new(&code).get_hash().to_owned();
            Text { code, hash }
        };
        Self {
            acquire: text(include_str!("acquire.lua")),
            extend: text(include_str!("extend.lua")),
            release: text(include_str!("release.lua")),
            constants: describe(constants),
        }
    }

    /// The constants as they stand in the epoch record.
    pub(super) fn constants(&self) -> &str {
        &self.constants
    }

    /// The request that shakes hands, followed by those that load the scripts.
    pub(super) fn handshake(&self) -> redis::Pipeline {
        let mut pipeline = redis::Pipeline::new();
        pipeline.cmd("EVAL").arg(HELLO).arg(1).arg(EPOCH_KEY);
        pipeline.arg(&self.constants);
        for script in [&self.acquire, &self.extend, &self.release] {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.code);
        }
        pipeline
    }

    /// The request for one call.
    pub(super) fn command(&self, call: &Call, by: By, epoch: &Epoch) -> Cmd {
        let claim = call.claim();
        let (script, time_ms) = match call.verb() {
            Verb::Acquire => (&self.acquire, claim.ttl().as_millis()),
            Verb::Extend => (&self.extend, claim.ttl().as_millis()),
            Verb::Release { keep } => {
                let keep_us = keep.unwrap_or_default().as_micros();
                (&self.release, keep_us.div_ceil(1000))
            }
        };
        let mut cmd = Cmd::with_capacity(12, 512);
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(&script.hash),
            By::Text => cmd.arg("EVAL").arg(&script.code),
        };
        cmd.arg(3)
            .arg(claim.name().as_bytes())
            .arg(fence_key(claim.name()))
            .arg(EPOCH_KEY)
            .arg(claim.owner())
            .arg(claim.token())
            .arg(u64::try_from(time_ms).unwrap_or(u64::MAX))
            .arg(&epoch.record)
            .arg(epoch.floor);
        if let Verb::Release { keep: Some(_) } = call.verb() {
            cmd.arg(kept_value(claim.owner()));
        }
        cmd
    }
}

fn describe(constants: &Constants) -> String {
    let guard = match constants.restart_guard {
        None => "off".to_owned(),
        Some(guard) => format!("{guard:?}"),
    };
    format!(
        "skew={:?} fence_retention={:?} restart_guard={guard}",
        constants.skew, constants.fence_retention
    )
}

/// The key of a name's fence. It carries the name's own hash tag, so that both are in
/// the same slot of a cluster; and no two names have the same.
fn fence_key(name: &Name) -> Vec<u8> {
    let name = name.as_bytes();
    let open = name.iter().position(|&b| b == b'{');
    let tag = open.and_then(|open| {
        let rest = &name[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    match tag {
        Some(tag) => [b"leasehold:fence:{", tag, b"}:", name].concat(),
        None if name.iter().all(|b| !b"{}".contains(b)) => {
            [b"leasehold:fence:{", name, b"}"].concat()
        }
        // The name as a whole is hashed, but its braces keep it from being a tag.
        None => [b"leasehold:fence:", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_shares_the_names_hash_tag() {
        let key = |name: &str| String::from_utf8(fence_key(&Name::new(name).unwrap())).unwrap();
        assert_eq!(key("orders"), "leasehold:fence:{orders}");
        assert_eq!(key("a{user1}b"), "leasehold:fence:{user1}:a{user1}b");
        assert_eq!(key("a{}b{c}"), "leasehold:fence:a{}b{c}");
        assert_eq!(key("x}y"), "leasehold:fence:x}y");
        // Names made to collide do not.
        assert_ne!(key("{x}"), key("x}:{x"));
        assert_ne!(key("x"), key("{x}"));
    }

    #[test]
    fn constants_are_part_of_the_text() {
        let one = Scripts::new(&Constants::for_nodes(1));
        let mut other = Constants::for_nodes(1);
        other.skew *= 2;
        assert_ne!(one.acquire.hash, Scripts::new(&other).acquire.hash);
        assert!(one.acquire.code.starts_with("local S, F, FENCE_MS = 10000000, 86400000000, "));
        assert!(!one.constants.contains(':'));
    }
}

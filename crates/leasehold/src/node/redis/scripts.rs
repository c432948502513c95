//! The scripts as a server is asked to run them: text, hash, keys and arguments.

use std::time::Duration;

use redis::{Cmd, Script, ServerError, Value};

use super::batch::Job;
use super::bells::Bells;
use super::identity::Identity;
use super::reply::{Native, UNNAMED_REFUSAL};
use super::template::Fragments;
use crate::base::holder::kept_value;
use crate::base::name::Name;
use crate::node::rules::{Constants, micros};
use crate::node::{Call, DEAD_AFTER, HANDED_OVER, LINE_KEPT, ORDER_KNOWN_AFTER, TURN, Verb};

pub(super) const EPOCH_KEY: &str = "leasehold:epoch";
/// What the key of a free lock holds while the first in line has its turn. It keeps other libraries,
/// which acquire by `SET … NX`, from overtaking that waiter.
pub(super) const TURN_MARK: &str = "leasehold:turn";
const HELLO: &str = include_str!("hello.lua");
const FRAGMENTS: &str = include_str!("fragments.lua");
const PRELUDE: &str = include_str!("prelude.lua");
const HAND_OVER: &str = include_str!("hand_over.lua");

/// The scripts reckon with it in whole seconds.
const _: () = assert!(DEAD_AFTER.subsec_nanos() == 0);

/// A script with its hash.
struct Text {
    code: String,
    hash: String,
}

impl Text {
    fn new(code: String) -> Self {
        let hash = Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// The scripts for one epoch of a server. What is the same for every request (the
/// constants, the epoch, the floor) is part of their text, and so costs nothing.
pub(super) struct Scripts {
    acquire: Text,
    wait: Text,
    extend: Text,
    release: Text,
    settle: Text,
    plain: Text,
    acquire_many: Text,
    extend_many: Text,
    settle_many: Text,
    form: KeyForm,
    epoch_key: Vec<u8>,
}

/// Which keys of a name a request declares. Every argument costs the server as much as a sixth of
/// an empty script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
    /// The lock and the fence. The scripts make up the names of the other keys.
    Derived,
    /// All that a script may touch. Some servers refuse others: Redis Cluster, and managed and
    /// compatible servers.
    Declared,
}

impl KeyForm {
    /// The piece `keys` of a script that has one name; see fragments.lua.
    fn piece(self, epoch_key: &str) -> String {
        match self {
            Self::Derived => format!(
                "local LOCK, FENCE, name = KEYS[1], KEYS[2], string.sub(KEYS[2], {})\n\
                 local LINE, SEEN = 'leasehold:line' .. name, 'leasehold:seen' .. name\n\
                 local BELL, SINCE = 'leasehold:bell' .. name, 'leasehold:since' .. name\n\
                 local EPOCH_KEY = {epoch_key}\n",
                FENCE_PREFIX.len()
            ),
            Self::Declared => "local LOCK, FENCE, LINE, SEEN, BELL, SINCE, EPOCH_KEY = \
                               unpack(KEYS)\n"
                .to_owned(),
        }
    }
}

/// The request by which a server shows that scripts may touch keys that are not declared: an error
/// says that they may not.
pub(super) fn read_undeclared(epoch_key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg("return redis.call('GET', ARGV[1])")
        .arg(0)
        .arg(epoch_key);
    cmd
}

/// How a script is named to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// By its hash, which the server knows unless it forgot.
    Hash,
    /// By its text, which makes the server know it again.
    Text,
}

/// The request that begins a new epoch in place of the one on record, whose S was larger by
/// `excess_skew`.
pub(super) fn replace_epoch(
    epoch_key: &[u8],
    constants: &Constants,
    identity: &Identity,
    fresh: bool,
    excess_skew: Duration,
) -> Cmd {
    let mut cmd = hello(epoch_key, constants, identity, fresh);
    cmd.arg(micros(excess_skew));
    cmd
}

/// The request that shakes hands with a server of this identity.
pub(super) fn hello(
    epoch_key: &[u8],
    constants: &Constants,
    identity: &Identity,
    fresh: bool,
) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(HELLO)
        .arg(1)
        .arg(epoch_key)
        .arg(describe(constants))
        .arg(identity.as_str())
        .arg(if fresh { ":fresh" } else { "" });
    cmd
}

/// The same as [`Scripts::name_refused`], for the reply to [`hello`].
pub(super) fn name_refused_by_hello(value: Value) -> Value {
    name_refused(value, |_| Some(HELLO))
}

fn name_refused<'c>(value: Value, code: impl FnOnce(&str) -> Option<&'c str>) -> Value {
    let Value::ServerError(error) = &value else {
        return value;
    };
    let named = refused_command(error, code).and_then(|command| {
        let reply = format!("-NOPERM this user may not run the {command} command\r\n");
        redis::parse_redis_value(reply.as_bytes()).ok()
    });
    named.unwrap_or(value)
}

/// The command that a user may not run: the one in the line of the script that the server names.
fn refused_command<'c>(
    error: &ServerError,
    code: impl FnOnce(&str) -> Option<&'c str>,
) -> Option<&'c str> {
    let details = error
        .details()
        .filter(|details| details.contains(UNNAMED_REFUSAL))?;
    let (_, line) = details.rsplit_once("user_script:")?;
    let digits = line.find(|c: char| !c.is_ascii_digit());
    let line: usize = line[..digits.unwrap_or(line.len())].parse().ok()?;
    let (_, call) = code(details)?
        .lines()
        .nth(line.checked_sub(1)?)?
        .split_once("call('")?;
    call.split('\'').next()
}

/// Bytes as a string literal of Lua.
fn lua_string(bytes: &[u8]) -> String {
    let text = bytes.iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'/' | b'_' | b'-' | b'.' => {
            char::from(*byte).to_string()
        }
        byte => format!("\\{byte:03}"),
    });
    format!("'{}'", text.collect::<String>())
}

impl Scripts {
    /// `record` is the server's epoch record, which is letters, digits and `:=. `;
    /// `floor` is what it means.
    pub(super) fn new(
        epoch_key: &[u8],
        constants: &Constants,
        record: &str,
        floor: u64,
        form: KeyForm,
    ) -> Self {
        let keys = form.piece(&lua_string(epoch_key));
        let fragments = Fragments::parse(FRAGMENTS)
            .with("keys", &keys)
            .with("prelude", PRELUDE)
            .with("hand_over", HAND_OVER);
        let text = |body: &str| {
            // Four hours: one for rounding and for a clock that is being slewed, and
            // nearly three for the lock itself (10^7 ms; longer ones count on top).
            let fence_ttl = constants.fence_ttl(Duration::from_secs(3 * 3600));
            let body = fragments.expand(body);
            let code = format!(
                "local S, F, FLOOR, FLOOR16, FENCE_MS = {}, {}, {floor}, '{floor:016}', '{}'\n\
                 local EPOCH = '{record}'\n\
                 local DEAD, DEAD_S, ORDER_KNOWN_AFTER = {}, {}, {}\n\
                 local KEPT_MS, REFRESH_MS = '{}', {}\n\
                 local TURN, TURN_MS, HANDED_OVER_MS = '{TURN_MARK}', '{}', '{}'\n{body}",
                constants.skew_us(),
                constants.retention_us(),
                fence_ttl.as_millis(),
                DEAD_AFTER.as_micros(),
                DEAD_AFTER.as_secs(),
                ORDER_KNOWN_AFTER.as_micros(),
                LINE_KEPT.as_millis(),
                LINE_KEPT.as_millis() - LINE_KEPT.as_millis() / 3,
                TURN.as_millis(),
                HANDED_OVER.as_millis(),
            );
            Text::new(code)
        };
        Self {
            acquire: text(include_str!("acquire.lua")),
            wait: text(include_str!("wait.lua")),
            extend: text(include_str!("extend.lua")),
            release: text(include_str!("release.lua")),
            settle: text(include_str!("settle.lua")),
            plain: text(include_str!("plain.lua")),
            acquire_many: text(include_str!("acquire_many.lua")),
            extend_many: text(include_str!("extend_many.lua")),
            settle_many: text(include_str!("settle_many.lua")),
            form,
            epoch_key: epoch_key.to_owned(),
        }
    }

    fn all(&self) -> [&Text; 9] {
        [
            &self.acquire,
            &self.wait,
            &self.extend,
            &self.release,
            &self.settle,
            &self.plain,
            &self.acquire_many,
            &self.extend_many,
            &self.settle_many,
        ]
    }

    /// The requests that load the scripts.
    pub(super) fn load(&self) -> redis::Pipeline {
        let mut pipeline = redis::Pipeline::new();
        for script in self.all() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.code);
        }
        pipeline
    }

    /// A reply; one by which the server refused a command of a script without naming it names
    /// the command.
    pub(super) fn name_refused(&self, value: Value) -> Value {
        let code = |details: &str| {
            let mut all = self.all().into_iter();
            let script = all.find(|script| details.contains(&script.hash));
            script.map(|script| &*script.code)
        };
        name_refused(value, code)
    }

    /// The request for one call. Every argument costs the server as much as a small
    /// command, so there is none that is not needed. No token above `cap` is known to be
    /// within what the server's clock allows.
    /// `bells` says where a waiter is notified.
    pub(super) fn one(&self, job: &Job, cap: u64, bells: &Bells) -> Cmd {
        let (call, by) = (&job.call, job.by);
        let claim = call.claim();
        let script = match call.verb() {
            Verb::Acquire if claim.is_fenced() => &self.acquire,
            Verb::Wait => &self.wait,
            Verb::Extend if claim.is_fenced() => &self.extend,
            Verb::Release { .. } if job.settles => &self.settle,
            _ if !claim.is_fenced() && !job.released => &self.plain,
            _ => &self.release,
        };
        let mut cmd = Cmd::with_capacity(8, 256);
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(&script.hash),
            By::Text => cmd.arg("EVAL").arg(&script.code),
        };
        match self.form {
            KeyForm::Derived => cmd
                .arg(2)
                .arg(claim.name().as_bytes())
                .arg(fence_key(claim.name())),
            KeyForm::Declared => cmd
                .arg(7)
                .arg(claim.name().as_bytes())
                .arg(fence_key(claim.name()))
                .arg(side_key("line", claim.name()))
                .arg(side_key("seen", claim.name()))
                .arg(side_key("bell", claim.name()))
                .arg(side_key("since", claim.name()))
                .arg(&self.epoch_key),
        };
        cmd.arg(claim.owner());
        if job.settles {
            return cmd;
        }
        cmd.arg(claim.token());
        match call.verb() {
            Verb::Acquire | Verb::Extend => {
                cmd.arg(whole_ms(claim.ttl()));
            }
            Verb::Wait => {
                cmd.arg(bells.address(claim));
                if claim.is_on_one_node() {
                    cmd.arg(0);
                }
            }
            Verb::Release { keep: None } => {}
            Verb::Release { keep: Some(keep) } => {
                cmd.arg(whole_ms(keep)).arg(kept_value(claim.owner()));
            }
        }
        match call.verb() {
            Verb::Acquire if claim.token() > cap => cmd.arg("T"),
            Verb::Extend if !claim.is_fenced() => cmd.arg("X"),
            Verb::Acquire if job.overtook => cmd.arg("L"),
            _ => &mut cmd,
        };
        cmd
    }

    /// The request for many acquires that [share one](shares_script).
    pub(super) fn acquire_many<'c>(&self, calls: impl Calls<'c>) -> Cmd {
        let cmd = many(&self.acquire_many, &calls);
        let cmd = calls.clone().fold(cmd, with_fence);
        let cmd = calls.clone().fold(cmd, with_name);
        with_ttl(calls.clone().fold(cmd, with_owner), calls)
    }

    /// The request for many extends that [share one](shares_script).
    pub(super) fn extend_many<'c>(&self, calls: impl Calls<'c>) -> Cmd {
        let cmd = many(&self.extend_many, &calls);
        let cmd = calls.clone().fold(cmd, with_name);
        let cmd = calls.clone().fold(cmd, with_fence);
        with_ttl(calls.clone().fold(cmd, with_owner), calls)
    }

    /// The request for many releases that are [settled](settles).
    pub(super) fn settle_many<'c>(&self, calls: impl Calls<'c>) -> Cmd {
        let cmd = many(&self.settle_many, &calls);
        let cmd = calls.clone().fold(cmd, with_name);
        let cmd = calls.clone().fold(cmd, with_fence);
        calls.fold(cmd, with_owner)
    }
}

/// The request for a release that is [settled](settles), where the server has a command for it.
pub(super) fn delete(call: &Call, native: Native) -> Cmd {
    let claim = call.claim();
    let mut cmd = Cmd::with_capacity(4, 256);
    match native {
        Native::DelIfEq => cmd.arg("DELIFEQ").arg(claim.name().as_bytes()),
        Native::DelEx => cmd.arg("DELEX").arg(claim.name().as_bytes()).arg("IFEQ"),
    };
    cmd.arg(claim.owner());
    cmd
}

/// The request that tells whether anybody stands in line for a lock.
pub(super) fn look_for_line(call: &Call) -> Cmd {
    let mut cmd = redis::cmd("EXISTS");
    cmd.arg(line_key(call.claim().name()));
    cmd
}

/// Calls that share a request.
pub(super) trait Calls<'c>: ExactSizeIterator<Item = &'c Call> + Clone {}

impl<'c, C: ExactSizeIterator<Item = &'c Call> + Clone> Calls<'c> for C {}

/// A request for many, with two keys each.
fn many<'c>(script: &Text, calls: &impl Calls<'c>) -> Cmd {
    let count = calls.len();
    let mut cmd = Cmd::with_capacity(4 + 3 * count, 64 + 192 * count);
    cmd.arg("EVALSHA").arg(&script.hash).arg(2 * count);
    cmd
}

fn with_name(mut cmd: Cmd, call: &Call) -> Cmd {
    cmd.arg(call.claim().name().as_bytes());
    cmd
}

fn with_fence(mut cmd: Cmd, call: &Call) -> Cmd {
    cmd.arg(fence_key(call.claim().name()));
    cmd
}

fn with_owner(mut cmd: Cmd, call: &Call) -> Cmd {
    cmd.arg(call.claim().owner());
    cmd
}

/// With the ttl that they have in common.
fn with_ttl<'c>(mut cmd: Cmd, mut calls: impl Calls<'c>) -> Cmd {
    if let Some(first) = calls.next() {
        cmd.arg(whole_ms(first.claim().ttl()));
    }
    cmd
}

/// Whether an acquire or extend can share a request with others, whose ttl is `ttl`. Its token
/// must stand in the owner value where the script looks for it. That of an acquire must be within
/// the cap; an extend that shares a request only keeps what was granted.
pub(super) fn shares_script(call: &Call, ttl: Option<Duration>, cap: u64) -> bool {
    let claim = call.claim();
    let digits = claim
        .owner()
        .get(41..57)
        .and_then(|digits| str::from_utf8(digits).ok());
    (claim.token() <= cap || call.verb() == Verb::Extend)
        && digits.and_then(|digits| digits.parse().ok()) == Some(claim.token())
        && claim.ttl() < Duration::from_millis(10_000_000)
        && ttl.is_none_or(|ttl| ttl == claim.ttl())
}

/// Whether a release is a plain compare-and-delete, whatever was sent before it.
pub(super) fn settles(call: &Call) -> bool {
    let plain = call.is_settled() || !call.claim().is_fenced();
    plain && call.verb() == Verb::Release { keep: None }
}

/// The request for a lock without a token, after [`look_for_line`].
pub(super) fn set(call: &Call) -> Cmd {
    let claim = call.claim();
    let mut cmd = Cmd::with_capacity(6, 256);
    cmd.arg("SET")
        .arg(claim.name().as_bytes())
        .arg(claim.owner())
        .arg("NX")
        .arg("PX")
        .arg(whole_ms(claim.ttl()));
    cmd
}

/// Rounded up, so that it is never zero: `PX 0` is an error, and `PEXPIRE 0` deletes.
fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The constants as they stand in the epoch record.
pub(super) fn describe(constants: &Constants) -> String {
    let guard = match constants.restart_guard {
        None => "off".to_owned(),
        Some(guard) => format!("{guard:?}"),
    };
    format!(
        "skew={:?} fence_retention={:?} restart_guard={guard}",
        constants.skew, constants.fence_retention
    )
}

/// What the keys of fences begin with.
pub(super) const FENCE_PREFIX: &str = "leasehold:fence:";

/// The key of a name's fence. It carries the name's own hash tag, so that both are in
/// the same slot of a cluster; and no two names have the same.
pub(super) fn fence_key(name: &Name) -> Vec<u8> {
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

/// Another key of a name, as the scripts name it; see fragments.lua.
fn side_key(kind: &str, name: &Name) -> Vec<u8> {
    let fence = fence_key(name);
    [
        b"leasehold:",
        kind.as_bytes(),
        b":",
        &fence[FENCE_PREFIX.len()..],
    ]
    .concat()
}

/// The key of the line of waiters.
pub(super) fn line_key(name: &Name) -> Vec<u8> {
    side_key("line", name)
}

/// The key under which the scripts record when a token was granted.
pub(super) fn since_key(name: &Name) -> Vec<u8> {
    side_key("since", name)
}

/// The name whose fence this key is.
pub(super) fn name_of_fence(key: &[u8]) -> Option<Name> {
    let rest = key.strip_prefix(FENCE_PREFIX.as_bytes())?;
    let close = rest.iter().position(|&b| b == b'}');
    let within = close.and_then(|close| rest.get(1..close));
    let behind = close.and_then(|close| rest.get(close + 2..));
    let candidates = [within, behind, Some(rest)].into_iter().flatten();
    candidates
        .filter_map(|name| Name::new(name).ok())
        .find(|name| fence_key(name) == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_make_a_string_of_lua() {
        assert_eq!(lua_string(b"a:b/c-1"), "'a:b/c-1'");
        assert_eq!(lua_string(b"'\\\n\xff9"), "'\\039\\092\\010\\2559'");
    }

    #[test]
    fn the_name_of_a_fence_is_found_again() {
        for name in [
            "orders",
            "a{user1}b",
            "a{}b{c}",
            "x}y",
            "{x}",
            "x}:{x",
            "{",
            "}",
            "{}:a",
        ] {
            let name = Name::new(name).unwrap();
            assert_eq!(name_of_fence(&fence_key(&name)), Some(name));
        }
        assert_eq!(name_of_fence(b"leasehold:fence:"), None);
        assert_eq!(name_of_fence(b"leasehold:epoch"), None);
    }

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
    fn constants_and_epoch_are_part_of_the_text() {
        let constants = Constants::for_nodes(1);
        let one = Scripts::new(
            b"leasehold:epoch",
            &constants,
            "run:constants:5",
            15,
            KeyForm::Derived,
        );
        assert!(
            one.acquire
                .code
                .contains("local S, F, FLOOR, FLOOR16, FENCE_MS = 10000000, 86400000000, 15,")
        );
        let other = Scripts::new(
            b"leasehold:epoch",
            &constants,
            "run:constants:6",
            16,
            KeyForm::Derived,
        );
        assert_ne!(one.acquire.hash, other.acquire.hash);
        assert!(!describe(&constants).contains(':'));
    }

    #[test]
    fn no_time_is_rounded_to_zero() {
        assert_eq!(whole_ms(Duration::from_nanos(1_000)), 1);
        assert_eq!(whole_ms(Duration::from_millis(10)), 10);
        assert_eq!(whole_ms(Duration::from_micros(10_001)), 11);
    }
}

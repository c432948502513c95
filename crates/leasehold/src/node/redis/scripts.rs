//! The requests that run scripts on a server: text, hash, keys and arguments.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, ServerError, Value};

use super::bells::Bells;
use super::identity::Identity;
use super::reply::UNNAMED_REFUSAL;
use super::request::{Number, Request, SideKey};
use super::template::Fragments;
use crate::base::name::Name;
use crate::node::line::BEHIND;
use crate::node::link::{Job, Native};
use crate::node::record::SERVED_AT_ONCE;
use crate::node::rules::{Constants, micros};
use crate::node::seat::Seat;
use crate::node::{
    ANNOUNCED_TO, Call, DEAD_AFTER, HANDED_OVER, LINE_KEPT, Mode, ORDER_KNOWN_AFTER, TURN, Verb,
};

pub(super) const EPOCH_KEY: &str = "leasehold:epoch";
/// What the key of a free lock holds while the first in line has its turn. It keeps other libraries,
/// which acquire by `SET … NX`, from overtaking that waiter.
pub(super) const TURN_MARK: &str = "leasehold:turn";
const HELLO: &str = include_str!("hello.lua");
const FRAGMENTS: &str = include_str!("fragments.lua");
const PRELUDE: &str = include_str!("prelude.lua");
const HAND_OVER: &str = include_str!("hand_over.lua");
const SHARED_VOTE: &str = include_str!("shared_vote.lua");

/// The scripts use it in whole seconds.
const _: () = assert!(DEAD_AFTER.subsec_nanos() == 0);

/// A script, which is put together when it is first needed.
struct Script {
    source: &'static str,
    wait_of: Mode,
    text: OnceLock<Text>,
    /// Whether it was sent over this connection.
    was_sent: AtomicBool,
}

struct Text {
    code: String,
    hash: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self {
            source,
            wait_of: Mode::Exclusive,
            text: OnceLock::new(),
            was_sent: AtomicBool::new(false),
        }
    }

    /// With the pieces for WAIT of readers.
    fn of_readers(source: &'static str) -> Self {
        Self {
            wait_of: Mode::Shared,
            ..Self::new(source)
        }
    }
}

/// The scripts for one epoch of a server. The constants, the epoch and the floor, which are the same
/// for every request, are part of their text and cost nothing.
///
/// A script is sent as text when a connection first needs it, and then by its hash: most connections
/// need few of them, and all are 70 KB. If the server forgets a script, the next handshake begins anew.
pub(super) struct Scripts {
    acquire: Script,
    wait: Script,
    extend: Script,
    release: Script,
    delete: Script,
    plain: Script,
    shared: Script,
    wait_shared: Script,
    permit: Script,
    acquire_many: Script,
    extend_many: Script,
    delete_many: Script,
    form: KeyForm,
    epoch_key: Vec<u8>,
    /// The constants, before the text of each script.
    constants: String,
    /// The pieces of scripts, for WAIT of exclusive and of shared claims.
    pieces: [OnceLock<Fragments>; 2],
}

/// Which keys of a name a request declares. Every argument costs the server as much as a sixth of
/// an empty script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
    /// The lock, and the fence where that is needed. The scripts derive the names of the other keys.
    Derived,
    /// All keys that a script may touch. Redis Cluster, and some managed and compatible servers,
    /// refuse scripts that touch other keys.
    Declared,
}

impl KeyForm {
    /// The piece `keys` of a script that has one name; see fragments.lua.
    fn piece(self, epoch_key: &str) -> String {
        match self {
            Self::Derived => format!(
                "local LOCK, FENCE = KEYS[1], KEYS[2] or @fence_of(KEYS[1])\n\
                 local name = string.sub(FENCE, {})\n\
                 local LINE, SEEN = 'leasehold:line' .. name, 'leasehold:seen' .. name\n\
                 local BELL, SINCE = 'leasehold:bell' .. name, 'leasehold:since' .. name\n\
                 local READERS, EPOCH_KEY = 'leasehold:readers' .. name, {epoch_key}\n",
                FENCE_PREFIX.len()
            ),
            Self::Declared => "local LOCK, FENCE, LINE, SEEN, BELL, SINCE, READERS, \
                               EPOCH_KEY = unpack(KEYS)\n"
                .to_owned(),
        }
    }
}

/// The request that finds out whether scripts may touch keys that are not declared. If they may not,
/// the server answers with an error.
pub(super) fn read_undeclared(epoch_key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg("return redis.call('GET', ARGV[1])")
        .arg(0)
        .arg(epoch_key);
    cmd
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

/// The handshake with a server of this identity.
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

/// Returns the command that the user may not run: the one in the line of the script that the server
/// reports.
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

/// Returns bytes as a string literal of Lua.
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
        // Four hours: one for rounding and for a clock that is being slewed, and nearly three for the
        // lock itself (10^7 ms; longer ones count on top).
        let fence_ttl = constants.fence_ttl(Duration::from_secs(3 * 3600));
        let constants = format!(
            "local S, F, FLOOR, FLOOR16, FENCE_MS = {}, {}, {floor}, '{floor:016}', '{}'\n\
             local EPOCH = '{record}'\n\
             local DEAD, DEAD_S, ORDER_KNOWN_AFTER = {}, {}, {}\n\
             local KEPT_MS, REFRESH_MS = '{}', {}\n\
             local TURN, TURN_MS, HANDED_OVER_MS = '{TURN_MARK}', '{}', '{}'\n",
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
        Self {
            acquire: Script::new(include_str!("acquire.lua")),
            wait: Script::new(include_str!("wait.lua")),
            extend: Script::new(include_str!("extend.lua")),
            release: Script::new(include_str!("release.lua")),
            delete: Script::new(include_str!("delete.lua")),
            plain: Script::new(include_str!("plain.lua")),
            shared: Script::new(include_str!("shared.lua")),
            wait_shared: Script::of_readers(include_str!("wait.lua")),
            permit: Script::new(include_str!("permit.lua")),
            acquire_many: Script::new(include_str!("acquire_many.lua")),
            extend_many: Script::new(include_str!("extend_many.lua")),
            delete_many: Script::new(include_str!("delete_many.lua")),
            form,
            epoch_key: epoch_key.to_owned(),
            constants,
            pieces: [const { OnceLock::new() }; 2],
        }
    }

    fn pieces(&self, mode: Mode) -> &Fragments {
        let (index, of_mode) = match mode {
            Mode::Shared => (1, include_str!("wait_shared.lua")),
            _ => (0, include_str!("wait_exclusive.lua")),
        };
        self.pieces[index].get_or_init(|| {
            Fragments::parse(FRAGMENTS)
                .and(of_mode)
                .with("keys", &self.form.piece(&lua_string(&self.epoch_key)))
                .with("prelude", PRELUDE)
                .with("hand_over", HAND_OVER)
                .with("shared_vote", SHARED_VOTE)
                .with("behind", &BEHIND.to_string())
                .with("served_at_once", &SERVED_AT_ONCE.to_string())
        })
    }

    fn text<'s>(&self, script: &'s Script) -> &'s Text {
        script.text.get_or_init(|| {
            let body = self.pieces(script.wait_of).expand(script.source);
            let code = format!("{}{body}", self.constants);
            let hash = redis::Script::new(&code).get_hash().to_owned();
            Text { code, hash }
        })
    }

    /// A request that runs a script.
    fn run<'o>(&self, script: &Script, output: &'o mut Vec<u8>) -> Request<'o> {
        let (request, text) = (Request::new(output), self.text(script));
        match script.was_sent.swap(true, Ordering::Relaxed) {
            false => request.arg("EVAL").arg(&text.code),
            true => request.arg("EVALSHA").arg(&text.hash),
        }
    }

    fn all(&self) -> [&Script; 12] {
        [
            &self.acquire,
            &self.wait,
            &self.extend,
            &self.release,
            &self.delete,
            &self.plain,
            &self.shared,
            &self.wait_shared,
            &self.permit,
            &self.acquire_many,
            &self.extend_many,
            &self.delete_many,
        ]
    }

    /// Returns the reply. If the server refused a command of a script without naming it, adds the
    /// command.
    pub(super) fn name_refused(&self, value: Value) -> Value {
        let code = |details: &str| {
            let mut sent = self
                .all()
                .into_iter()
                .filter_map(|script| script.text.get());
            let text = sent.find(|text| details.contains(&text.hash));
            text.map(|text| &*text.code)
        };
        name_refused(value, code)
    }

    /// Writes the request for one call. Every argument costs the server as much as a small command,
    /// so only those that are needed are sent. Tokens up to `cap` are known to be within the skew of
    /// the server's clock. `bells` says where a waiter is notified.
    pub(super) fn one<'o>(
        &self,
        job: &Job,
        cap: u64,
        bells: &Bells,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let call = &job.call;
        let claim = call.claim();
        if let (Verb::Acquire | Verb::Wait | Verb::Release { .. }, Some(seat)) =
            (call.verb(), claim.seat())
        {
            return self.one_of_semaphore(call, seat, bells, output);
        }
        let shared = claim.mode() == Mode::Shared;
        let script = match call.verb() {
            Verb::Wait if shared => &self.wait_shared,
            _ if shared => &self.shared,
            Verb::Acquire if claim.is_fenced() => &self.acquire,
            Verb::Wait => &self.wait,
            Verb::Extend if claim.is_fenced() => &self.extend,
            Verb::Release { .. } if job.is_plain_delete => &self.delete,
            _ if !claim.is_fenced() && !job.released => &self.plain,
            _ => &self.release,
        };
        let is_acquire = std::ptr::eq(script, &self.acquire);
        let derives_fence = is_acquire || job.is_plain_delete;
        let request = self.run(script, output);
        let request = self.with_keys(request, claim.name(), derives_fence);
        let request = request.arg(claim.owner());
        if job.is_plain_delete {
            return request;
        }
        if is_acquire {
            let (request, token) = (request.arg(Number(whole_ms(claim.ttl()))), claim.token());
            return match claim.has_token_in_place() {
                true => request.maybe((token > cap).then_some("T")),
                false => request.arg("T").arg(Number(token)),
            };
        }
        let request = request.arg(Number(claim.token()));
        if shared && call.verb() != Verb::Wait {
            return with_shared_arguments(request, call);
        }
        let request = match call.verb() {
            Verb::Acquire | Verb::Extend => request.arg(Number(whole_ms(claim.ttl()))),
            Verb::Wait => request
                .arg(bells.address(claim))
                .maybe(claim.is_on_one_node().then_some("0")),
            Verb::Release { keep: None } => request,
            Verb::Release { keep: Some(keep) } => {
                let announced_to = || Number(ANNOUNCED_TO as u64 - 1);
                request
                    .arg(Number(whole_ms(keep)))
                    .arg(claim.kept_value())
                    .maybe(claim.has_result().then(announced_to))
            }
        };
        match call.verb() {
            Verb::Extend if !claim.is_fenced() => request.arg("X"),
            Verb::Acquire if job.overtook => request.arg("L"),
            _ => request,
        }
    }

    /// With the keys of a name. A script that `derives_fence` needs that of a name with braces only.
    fn with_keys<'o>(&self, request: Request<'o>, name: &Name, derives_fence: bool) -> Request<'o> {
        match self.form {
            KeyForm::Derived if derives_fence && !name.has_braces() => {
                request.arg("1").arg(name.as_bytes())
            }
            KeyForm::Derived => request
                .arg("2")
                .arg(name.as_bytes())
                .arg(SideKey(FENCE_PREFIX, name)),
            KeyForm::Declared => request
                .arg("8")
                .arg(name.as_bytes())
                .arg(SideKey(FENCE_PREFIX, name))
                .arg(SideKey("leasehold:line:", name))
                .arg(SideKey("leasehold:seen:", name))
                .arg(SideKey("leasehold:bell:", name))
                .arg(SideKey("leasehold:since:", name))
                .arg(SideKey("leasehold:readers:", name))
                .arg(&self.epoch_key),
        }
    }

    /// The request for a claim of a semaphore. It declares all keys.
    fn one_of_semaphore<'o>(
        &self,
        call: &Call,
        seat: &Seat,
        bells: &Bells,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let (claim, semaphore) = (call.claim(), seat.semaphore());
        let searched: Vec<u32> = seat.searched().collect();
        let mut request = self
            .run(&self.permit, output)
            .arg(Number(7 + searched.len() as u64))
            .arg(claim.name().as_bytes())
            .arg(SideKey(FENCE_PREFIX, claim.name()))
            .arg(SideKey("leasehold:line:", semaphore))
            .arg(SideKey("leasehold:seen:", semaphore))
            .arg(SideKey("leasehold:bell:", semaphore))
            .arg(semaphore.as_bytes())
            .arg(&self.epoch_key);
        for permit in &searched {
            request = request.arg(semaphore.permit(*permit).as_bytes());
        }
        let verb = match call.verb() {
            Verb::Acquire | Verb::Extend => "A",
            Verb::Wait => "W",
            Verb::Release { .. } if seat.number().is_some() => "R",
            Verb::Release { .. } => "L",
        };
        let permits = seat.permits().map(|permits| permits.to_string());
        let first = searched.first().copied().unwrap_or_default();
        let request = request
            .arg(claim.owner())
            .arg(Number(claim.token()))
            .arg(verb)
            .arg(semaphore.as_bytes())
            .arg(seat.place(claim.owner()).unwrap_or_default())
            .arg(permits.unwrap_or_default())
            .arg(Number(u64::from(first)));
        match call.verb() {
            Verb::Acquire | Verb::Extend => request.arg(Number(whole_ms(claim.ttl()))),
            Verb::Wait => request.arg(bells.address(claim)),
            Verb::Release { .. } if seat.number().is_none() => {
                request.maybe(seat.resizes().then_some("resize"))
            }
            Verb::Release { keep: None } => request,
            Verb::Release { keep: Some(keep) } => {
                request.arg(Number(whole_ms(keep))).arg(claim.kept_value())
            }
        }
    }

    /// A request for several calls, with two keys each.
    fn run_many<'c, 'o>(
        &self,
        script: &Script,
        calls: &impl Calls<'c>,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let count = calls.len() as u64;
        self.run(script, output).arg(Number(2 * count))
    }

    /// The request for many acquires that [share one](shares_script).
    pub(super) fn acquire_many<'c, 'o>(
        &self,
        calls: impl Calls<'c>,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let request = self.run_many(&self.acquire_many, &calls, output);
        let request = calls.clone().fold(request, with_fence);
        let request = calls.clone().fold(request, with_name);
        with_ttl(calls.clone().fold(request, with_owner), calls)
    }

    /// The request for many extends that [share one](shares_script).
    pub(super) fn extend_many<'c, 'o>(
        &self,
        calls: impl Calls<'c>,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let request = self.run_many(&self.extend_many, &calls, output);
        let request = calls.clone().fold(request, with_name);
        let request = calls.clone().fold(request, with_fence);
        with_ttl(calls.clone().fold(request, with_owner), calls)
    }

    /// The request for many releases that are plain deletes.
    pub(super) fn delete_many<'c, 'o>(
        &self,
        calls: impl Calls<'c>,
        output: &'o mut Vec<u8>,
    ) -> Request<'o> {
        let request = self.run_many(&self.delete_many, &calls, output);
        let request = calls.clone().fold(request, with_name);
        let request = calls.clone().fold(request, with_fence);
        calls.fold(request, with_owner)
    }
}

/// The request for a release that is a plain delete, where the server has a command for it.
pub(super) fn delete<'o>(call: &Call, native: Native, output: &'o mut Vec<u8>) -> Request<'o> {
    let (request, claim) = (Request::new(output), call.claim());
    let request = match native {
        Native::DelIfEq => request.arg("DELIFEQ").arg(claim.name().as_bytes()),
        Native::DelEx => request
            .arg("DELEX")
            .arg(claim.name().as_bytes())
            .arg("IFEQ"),
    };
    request.arg(claim.owner())
}

/// The request that returns whether a lock has waiters.
pub(super) fn look_for_line<'o>(call: &Call, output: &'o mut Vec<u8>) -> Request<'o> {
    let line = SideKey("leasehold:line:", call.claim().name());
    Request::new(output).arg("EXISTS").arg(line)
}

/// With what shared.lua needs besides the owner value and the token.
fn with_shared_arguments<'o>(request: Request<'o>, call: &Call) -> Request<'o> {
    let claim = call.claim();
    match call.verb() {
        Verb::Release { keep: None } => request.arg("R"),
        Verb::Release { keep: Some(keep) } => request
            .arg("R")
            .arg(Number(whole_ms(keep)))
            .arg(claim.kept_value()),
        Verb::Extend => request
            .arg("X")
            .arg(Number(whole_ms(claim.ttl())))
            .maybe(claim.replaces()),
        Verb::Acquire | Verb::Wait => request.arg("A").arg(Number(whole_ms(claim.ttl()))),
    }
}

/// Calls that share a request.
pub(super) trait Calls<'c>: ExactSizeIterator<Item = &'c Call> + Clone {}

impl<'c, C: ExactSizeIterator<Item = &'c Call> + Clone> Calls<'c> for C {}

fn with_name<'o>(request: Request<'o>, call: &Call) -> Request<'o> {
    request.arg(call.claim().name().as_bytes())
}

fn with_fence<'o>(request: Request<'o>, call: &Call) -> Request<'o> {
    request.arg(SideKey(FENCE_PREFIX, call.claim().name()))
}

fn with_owner<'o>(request: Request<'o>, call: &Call) -> Request<'o> {
    request.arg(call.claim().owner())
}

/// A request for several calls that have the same TTL.
fn with_ttl<'c, 'o>(request: Request<'o>, mut calls: impl Calls<'c>) -> Request<'o> {
    let first = calls.next().map(|first| whole_ms(first.claim().ttl()));
    request.maybe(first.map(Number))
}

/// The request for a lock without a token, after [`look_for_line`].
pub(super) fn set<'o>(call: &Call, output: &'o mut Vec<u8>) -> Request<'o> {
    let claim = call.claim();
    Request::new(output)
        .arg("SET")
        .arg(claim.name().as_bytes())
        .arg(claim.owner())
        .arg("NX")
        .arg("PX")
        .arg(Number(whole_ms(claim.ttl())))
}

/// Rounds up, and is never zero: `PX 0` is an error, and `PEXPIRE 0` deletes.
fn whole_ms(time: Duration) -> u64 {
    let ms = time.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// Returns the constants as text, as in the epoch record.
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

/// The prefix of the keys of fences.
pub(super) const FENCE_PREFIX: &str = "leasehold:fence:";

/// Returns the key of a name's fence. It contains the hash tag of the name, so that both are in the
/// same slot of a cluster. Different names have different keys.
pub(super) fn fence_key(name: &Name) -> Vec<u8> {
    name.tagged_behind(FENCE_PREFIX.as_bytes())
}

/// Another key of a name, as the scripts name it; see fragments.lua.
fn side_key(prefix: &str, name: &Name) -> Vec<u8> {
    name.tagged_behind(prefix.as_bytes())
}

/// The key of the line of waiters.
pub(super) fn line_key(name: &Name) -> Vec<u8> {
    side_key("leasehold:line:", name)
}

/// The key under which the scripts record when a token was granted.
pub(super) fn since_key(name: &Name) -> Vec<u8> {
    side_key("leasehold:since:", name)
}

/// The key of the readers.
pub(super) fn readers_key(name: &Name) -> Vec<u8> {
    side_key("leasehold:readers:", name)
}

/// The key of a name's history.
pub(super) fn history_key(name: &Name) -> Vec<u8> {
    side_key("leasehold:history:", name)
}

/// The fence in the text that the scripts write: F, and W if that is stored apart from it. (The scripts
/// read it by `highest` and `highest_written` of fragments.lua.)
pub(super) fn parse_fence(text: &str) -> Option<(u64, Option<u64>)> {
    let text = text.strip_suffix('+').unwrap_or(text);
    match text.split_once('/') {
        None => Some((text.parse().ok()?, None)),
        Some((highest, written)) => Some((highest.parse().ok()?, Some(written.parse().ok()?))),
    }
}

/// Returns the name whose fence has this key.
pub(super) fn name_of_fence(key: &[u8]) -> Option<Name> {
    Name::from_tagged(key.strip_prefix(FENCE_PREFIX.as_bytes())?)
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
        // Names that are made to collide do not collide.
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
        let code = &one.text(&one.acquire).code;
        assert!(code.contains("local S, F, FLOOR, FLOOR16, FENCE_MS = 10000000, 86400000000, 15,"));
        let other = Scripts::new(
            b"leasehold:epoch",
            &constants,
            "run:constants:6",
            16,
            KeyForm::Derived,
        );
        let hash = |of: &Scripts| of.text(&of.acquire).hash.clone();
        assert_ne!(hash(&one), hash(&other));
        assert!(!describe(&constants).contains(':'));
    }

    #[test]
    fn a_fence_has_one_number_or_two_and_maybe_the_mark_of_a_line() {
        for (text, fence) in [
            ("16", Some((16, None))),
            ("16+", Some((16, None))),
            ("32/16", Some((32, Some(16)))),
            ("32/16+", Some((32, Some(16)))),
            ("", None),
            ("+", None),
            ("32/", None),
            ("/16", None),
            ("32/16/8", None),
        ] {
            assert_eq!(parse_fence(text), fence, "{text}");
        }
    }

    #[test]
    fn no_time_is_rounded_to_zero() {
        assert_eq!(whole_ms(Duration::from_nanos(1_000)), 1);
        assert_eq!(whole_ms(Duration::from_millis(10)), 10);
        assert_eq!(whole_ms(Duration::from_micros(10_001)), 11);
    }
}

//! The holder of a lock, as the value at the lock's key describes it.
//!
//! The value is `secret:token:pid@host:label`. The secret is 20 random bytes as hex, new for every
//! attempt. It alone proves ownership and is never shown. The other parts let people see which
//! process holds a lock. An `s` after the token says that the claim is shared
//! ([`Mode::Shared`]), so no message or table needs a field for the mode.
//!
//! A name that is kept taken after a release has the value `kept:token:pid@host:label`. If the holder
//! left a result behind, `\nAT_MS\nRESULT` follows, which is why a label contains no line feed.
//!
//! While readers share a lock, its key holds a **marker**, `shared:token:pid@host:label`, of the
//! reader that joined last. It is nobody's owner value: a client that does not know about readers
//! sees a lock of another owner.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::mode::Mode;
use crate::base::name::shown;
use crate::base::past_lease::LATEST_MS;
use crate::planted;

/// The longest label, in bytes.
pub(crate) const MAX_LABEL: usize = 256;

const SECRET_BYTES: usize = 20;
const SECRET_CHARS: usize = SECRET_BYTES * 2;
/// Replaces the secret of a lock that `min_hold` keeps taken after its release. Such a lock has no
/// owner, so no client can extend or release it.
const KEPT: &[u8] = b"kept";
/// Replaces the secret in a marker.
const SHARED: &[u8] = b"shared";
/// Follows the token of a shared claim.
const SHARED_SUFFIX: u8 = b's';

/// The holder of a lock, as far as the value on the server describes it.
///
/// A value that another library wrote has none of these parts. It is the owner of the lock like any
/// other value, and is shown as unknown.
///
/// ```
/// use leasehold::Holder;
///
/// let value = b"00112233445566778899aabbccddeeff00112233:1794780664497528:4711@web-1:nightly";
/// let holder = Holder::parse(value);
/// assert_eq!(holder.token, Some(1_794_780_664_497_528));
/// assert_eq!(holder.to_string(), "web-1 pid 4711 (nightly), token 1794780664497528");
/// assert_eq!(Holder::parse(b"of another library").to_string(), "another owner");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Holder {
    /// A short id of the holder's claim, the same as
    /// [`Sighting::owner_id`](crate::Sighting::owner_id). No other claim has it, on any lock or
    /// node. `None` if the lock was released and `min_hold` keeps it taken.
    pub owner_id: Option<String>,
    /// The fencing token of the holder's lease; 0 if the lease has none.
    pub token: Option<u64>,
    /// The holder's host name.
    pub host: Option<String>,
    /// The holder's process id.
    pub pid: Option<u32>,
    /// The label that the holder set ([`Options::label`](crate::Options::label)).
    pub label: Option<String>,
    /// Whether the holder has released the lock and `min_hold` or a result keeps it taken.
    pub kept: bool,
    /// The result that the holder stored when it released the lock ([`Once`](crate::Once)).
    pub result: Option<StoredResult>,
    /// Whether the holder is a reader, which shares the lock with other readers. If a refusal names
    /// it and [`owner_id`](Self::owner_id) is `None`, this stands for all readers, and names the one
    /// that joined or renewed last, which may have left since.
    pub shared: bool,
}

/// A result that keeps its name taken until its period is over. See [`Once`](crate::Once).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredResult {
    /// When the work ended, by the clock of the client that did it.
    pub at: SystemTime,
    /// The result.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for StoredResult {
    /// Shows how long the result is, and not the result: it may be long, and errors contain holders.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResult")
            .field("at", &self.at)
            .field("len", &self.bytes.len())
            .finish()
    }
}

impl Holder {
    /// Parses the value of a lock. Accepts any bytes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        Self::parse_ours(value).unwrap_or_default()
    }

    /// Returns about when the holder requested the lock: a token is a time in microseconds since
    /// 1970, by the holder's clock. A holder that waited in line was granted the lock later: see
    /// [`Sighting::since`](crate::Sighting::since). `None` for a holder without a token, and for a
    /// token that is ahead of the clock: in the first seconds after a server has started, tokens are
    /// ahead by up to the allowed skew, and do not tell when the lock was requested.
    ///
    /// ```
    /// use leasehold::Holder;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let value = b"00112233445566778899aabbccddeeff00112233:1763000000000000:4711@web-1:";
    /// let since = UNIX_EPOCH + Duration::from_micros(1_763_000_000_000_000);
    /// assert_eq!(Holder::parse(value).since(), Some(since));
    /// ```
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        let token = self.token.filter(|token| *token > 0)?;
        let asked = UNIX_EPOCH.checked_add(Duration::from_micros(token))?;
        (asked <= SystemTime::now()).then_some(asked)
    }

    /// Parses `token:pid@host:label`, what an owner value has besides its secret.
    pub(crate) fn parse_public(public: &[u8]) -> Option<Self> {
        let value = [KEPT, b":", public].concat();
        let holder = Self::parse_ours(&value)?;
        Some(Self {
            kept: false,
            result: None,
            ..holder
        })
    }

    /// Whether this stands for all readers of a lock. It names the reader that joined or renewed last,
    /// which may have left since. Refusals contain such holders.
    fn is_marker(&self) -> bool {
        self.shared && !self.kept && self.owner_id.is_none()
    }

    fn parse_ours(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(4, |&b| b == b':');
        let secret = parts.next()?;
        let (kept, marker) = (secret == KEPT, secret == SHARED);
        let public = kept || marker;
        if !public && (secret.len() != SECRET_CHARS || !secret.iter().all(u8::is_ascii_hexdigit)) {
            return None;
        }
        let (token, mode) = parse_token(parts.next()?)?;
        let (pid, host) = std::str::from_utf8(parts.next()?).ok()?.split_once('@')?;
        let (label, result) = match (parts.next()?, kept) {
            (label, false) => (label, None),
            (rest, true) => split_result(rest)?,
        };
        Some(Self {
            owner_id: (!public).then(|| owner_id(value)),
            token: Some(token),
            host: Some(shown(host.as_bytes())),
            pid: pid.parse().ok(),
            label: (!label.is_empty()).then(|| label_of(label)),
            kept,
            result,
            shared: marker || mode == Mode::Shared,
        })
    }
}

/// The label as its holder gave it. One that no client of this crate writes may be longer, and contain
/// what must not reach a terminal.
fn label_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LABEL)]);
    text.replace(char::is_control, "\u{fffd}")
}

/// Splits the end of a kept value into the label and the result, if there is one.
fn split_result(rest: &[u8]) -> Option<(&[u8], Option<StoredResult>)> {
    let mut parts = rest.splitn(3, |&b| b == b'\n');
    let label = parts.next()?;
    let Some(at_ms) = parts.next() else {
        return Some((label, None));
    };
    let at_ms: u64 = std::str::from_utf8(at_ms).ok()?.parse().ok()?;
    if at_ms > LATEST_MS {
        return None;
    }
    let result = StoredResult {
        at: UNIX_EPOCH + Duration::from_millis(at_ms),
        bytes: parts.next()?.into(),
    };
    Some((label, Some(result)))
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(host), Some(pid)) = (&self.host, self.pid) else {
            return f.write_str("another owner");
        };
        match (self.kept, &self.result) {
            (true, None) => f.write_str("min_hold of ")?,
            (true, Some(_)) => f.write_str("the result of ")?,
            _ => {}
        }
        if self.is_marker() {
            f.write_str("readers (latest: ")?;
        } else if self.shared {
            f.write_str("reader ")?;
        }
        write!(f, "{host} pid {pid}")?;
        if let Some(label) = &self.label {
            write!(f, " ({label})")?;
        }
        if let Some(token) = self.token.filter(|token| *token > 0) {
            write!(f, ", token {token}")?;
        }
        if self.is_marker() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Creates the owner value of one attempt at an exclusive lock.
#[cfg(test)]
pub(crate) fn new_owner(token: u64, label: &str) -> Box<[u8]> {
    new_owner_in(Mode::Exclusive, token, label)
}

/// Creates the owner value of one attempt.
#[cfg(test)]
pub(crate) fn new_owner_in(mode: Mode, token: u64, label: &str) -> Box<[u8]> {
    Secrets::default().new_owner(mode, token, label)
}

/// The random part of the owner values of one client.
///
/// The operating system provides random bytes for many values at once: a system call for each would be
/// a tenth of what the client spends on a lock. They belong to the client and not to the thread or the
/// process, because a process that is forked has copies of both. It needs a client of its own anyway.
pub(crate) struct Secrets(Mutex<Random>);

struct Random {
    bytes: [u8; 64 * SECRET_BYTES],
    used: usize,
}

impl Default for Secrets {
    fn default() -> Self {
        let bytes = [0; 64 * SECRET_BYTES];
        let used = bytes.len();
        Self(Mutex::new(Random { bytes, used }))
    }
}

impl Secrets {
    fn next(&self) -> [u8; SECRET_BYTES] {
        let random = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if random.used == random.bytes.len() {
            getrandom::fill(&mut random.bytes)
                .expect("the operating system provides random numbers");
            random.used = 0;
        }
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&random.bytes[random.used..][..SECRET_BYTES]);
        random.used += SECRET_BYTES;
        secret
    }

    /// Creates the owner value of one attempt.
    ///
    /// Rule: **every attempt** has a new random value. With one value per client or per object, a
    /// delayed release of an earlier attempt would release a later lock.
    pub(crate) fn new_owner(&self, mode: Mode, token: u64, label: &str) -> Box<[u8]> {
        // Planted bug: values differ only in their labels.
        let (secret, token) = match planted::on(planted::Bug::OwnerPerClient) {
            false => (self.next(), token),
            true => ([0; SECRET_BYTES], 0),
        };
        let (pid_at_host, digits) = (pid_at_host(), token_digits(token, mode));
        let length = SECRET_CHARS + 3 + digits.len() + pid_at_host.len() + label.len();
        let mut value = Vec::with_capacity(length);
        for byte in secret {
            value.extend([byte >> 4, byte & 15].map(|half| b"0123456789abcdef"[usize::from(half)]));
        }
        for part in [digits.as_bytes(), pid_at_host.as_bytes(), label.as_bytes()] {
            value.push(b':');
            value.extend_from_slice(part);
        }
        value.into_boxed_slice()
    }
}

/// Returns the token in an owner value of leasehold. `None` for values of other libraries, for
/// locks that `min_hold` keeps, and for markers.
pub(crate) fn owned_token(value: &[u8]) -> Option<u64> {
    parse_owner(value).map(|(token, _)| token)
}

/// Returns how the claim with this owner value holds the lock, or how a claim held it whose value is
/// [kept](kept_value). Values of other libraries are exclusive.
pub(crate) fn owner_mode(value: &[u8]) -> Mode {
    let kept = || {
        let public = value.strip_prefix(KEPT)?.strip_prefix(b":")?;
        parse_token(public.split(|&b| b == b':').next()?)
    };
    let parsed = parse_owner(value).or_else(kept);
    parsed.map_or(Mode::Exclusive, |(_, mode)| mode)
}

fn parse_owner(value: &[u8]) -> Option<(u64, Mode)> {
    let (secret, rest) = value.split_at_checked(SECRET_CHARS)?;
    let digits = rest.strip_prefix(b":")?.split(|&b| b == b':').next()?;
    let ours = secret.iter().all(u8::is_ascii_hexdigit);
    parse_token(digits).filter(|_| ours)
}

/// Parses a token and the mode of its claim.
fn parse_token(text: &[u8]) -> Option<(u64, Mode)> {
    let (digits, mode) = match text.strip_suffix(&[SHARED_SUFFIX]) {
        Some(digits) => (digits, Mode::Shared),
        None => (text, Mode::Exclusive),
    };
    let token = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((token, mode))
}

/// Returns the marker that a reader with this owner value leaves at the lock's key.
pub(crate) fn marker_value(owner: &[u8]) -> Vec<u8> {
    let public = owner.get(SECRET_CHARS..).unwrap_or_default();
    let token_end = public.iter().skip(1).position(|&b| b == b':');
    let (token, rest) = public.split_at(token_end.map_or(0, |end| end + 1));
    let token = token.strip_suffix(&[SHARED_SUFFIX]).unwrap_or(token);
    [SHARED, token, rest].concat()
}

/// Whether a lock's value is a marker. Strict, because readers join a lock with a marker: the lock
/// of another library must not look like one. (The scripts check the same: `is_marker` in
/// fragments.lua.)
pub(crate) fn is_marker(value: &[u8]) -> bool {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let mut parts = value.splitn(4, |&b| b == b':');
    let (word, token, process) = (parts.next(), parts.next(), parts.next());
    let pid = process.and_then(|process| process.split(|&b| b == b'@').next());
    let has_host = process.is_some_and(|process| process.contains(&b'@'));
    word == Some(SHARED)
        && token.is_some_and(digits)
        && pid.is_some_and(digits)
        && has_host
        && parts.next().is_some()
}

/// Returns a short id that distinguishes owner values without revealing the secret: 48 bits of a
/// hash (FNV-1a), from which the 160 random bits cannot be restored.
pub(crate) fn owner_id(value: &[u8]) -> String {
    let hash = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:012x}", (hash ^ hash >> 48) & 0xffff_ffff_ffff)
}

/// Returns the value without the secret, for a lock that `min_hold` keeps.
pub(crate) fn kept_value(owner: &[u8]) -> Vec<u8> {
    let public = owner.get(SECRET_CHARS..).unwrap_or_default();
    [KEPT, public].concat()
}

/// Returns the value for a name that a result keeps taken. `token` is that of the lease, which may be
/// larger than that of the claim.
pub(crate) fn kept_result(owner: &[u8], token: u64, at: SystemTime, bytes: &[u8]) -> Vec<u8> {
    let public = owner.get(SECRET_CHARS + 1..).unwrap_or_default();
    let who = public.splitn(2, |&b| b == b':').nth(1).unwrap_or_default();
    let at_ms = at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let (token, at_ms) = (token.to_string(), at_ms.to_string());
    let head = [KEPT, token.as_bytes(), who].join(&b':');
    [&*head, at_ms.as_bytes(), bytes].join(&b'\n')
}

/// Returns `token:pid@host:label` of an owner value, with the token of a lease, which may be larger than
/// that of the claim.
pub(crate) fn public_part(owner: &[u8], token: u64) -> Vec<u8> {
    let public = owner.get(SECRET_CHARS + 1..).unwrap_or_default();
    let who = public.splitn(2, |&b| b == b':').nth(1).unwrap_or_default();
    let digits = token_digits(token, owner_mode(owner));
    [digits.as_bytes(), who].join(&b':')
}

fn token_digits(token: u64, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => token.to_string(),
        Mode::Shared => format!("{token}s"),
    }
}

/// This process, as it is in owner values.
pub(crate) fn pid_at_host() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        // ':' separates the parts of the value.
        format!("{}@{}", std::process::id(), host_name().replace(':', "_"))
    })
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ahead_of_the_clock_tells_no_time() {
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let token = ahead.duration_since(UNIX_EPOCH).unwrap().as_micros();
        let holder = Holder::parse(&new_owner(u64::try_from(token).unwrap(), ""));
        assert_eq!(holder.since(), None);
    }

    #[test]
    fn parsing_a_value_does_not_reveal_its_secret() {
        let value = new_owner(1_763_000_000_000_000, "nightly: backup");
        let holder = Holder::parse(&value);
        assert_eq!(holder.token, Some(1_763_000_000_000_000));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.label.as_deref(), Some("nightly: backup"));
        assert!(!holder.kept);
        let secret = std::str::from_utf8(&value[..SECRET_CHARS]).unwrap();
        assert!(!format!("{holder} {holder:?}").contains(secret));
    }

    #[test]
    fn every_attempt_has_its_own_value() {
        assert_ne!(new_owner(1, ""), new_owner(1, ""));
    }

    #[test]
    fn a_label_is_what_its_holder_gave() {
        let label = format!("C:\\app;{}", "é".repeat(120));
        let holder = Holder::parse(&new_owner(1, &label));
        assert_eq!(holder.label.as_deref(), Some(&*label));
        let foreign = Holder::parse(&new_owner(1, "a\u{1b}[2Jb"));
        assert_eq!(foreign.label.as_deref(), Some("a\u{fffd}[2Jb"));
    }

    #[test]
    fn a_kept_value_has_no_secret() {
        let value = new_owner(7, "x");
        let kept = kept_value(&value);
        assert!(!kept.windows(8).any(|w| w == &value[..8]));
        let holder = Holder::parse(&kept);
        assert!(holder.kept);
        assert_eq!(holder.token, Some(7));
    }

    #[test]
    fn a_kept_value_can_carry_a_result() {
        let value = new_owner(16, "refill: 1");
        let at = UNIX_EPOCH + Duration::from_millis(1_763_000_000_123);
        for bytes in [&b""[..], b"one\ntwo\n", b"\xff:\n\0"] {
            let kept = kept_result(&value, 19, at, bytes);
            assert!(!kept.windows(8).any(|w| w == &value[..8]));
            let holder = Holder::parse(&kept);
            assert!(holder.kept && holder.owner_id.is_none());
            assert_eq!(holder.token, Some(19));
            assert_eq!(holder.label.as_deref(), Some("refill: 1"));
            assert_eq!(holder.pid, Some(std::process::id()));
            let result = holder.result.clone().unwrap();
            assert_eq!((result.at, &*result.bytes), (at, bytes));
            assert!(holder.to_string().starts_with("the result of "));
        }
        // A program that shows the time could not write it.
        let absurd = b"kept:1700000000000000:1@h:\n253402300800000\nresult";
        assert_eq!(Holder::parse(absurd), Holder::default());
        // Only a kept name has a result: the label of a lock that is held is what it is.
        let mut held = new_owner(16, "x").into_vec();
        held.extend(b"\n1\nresult");
        assert_eq!(Holder::parse(&held).result, None);
    }

    #[test]
    fn the_owner_value_of_a_reader_says_so() {
        let value = new_owner_in(Mode::Shared, 32, "x: y");
        assert_eq!(owner_mode(&value), Mode::Shared);
        assert_eq!(owned_token(&value), Some(32));
        let holder = Holder::parse(&value);
        assert!(holder.shared && holder.token == Some(32));
        assert!(holder.to_string().starts_with("reader "), "{holder}");
        assert_eq!(owner_mode(&kept_value(&value)), Mode::Shared);
        let exclusive = new_owner(32, "s");
        assert_eq!(owner_mode(&exclusive), Mode::Exclusive);
        assert_eq!(owner_mode(&kept_value(&exclusive)), Mode::Exclusive);
    }

    #[test]
    fn a_marker_is_nobodys_value_and_has_no_secret() {
        let value = new_owner_in(Mode::Shared, 32, "x: y");
        let marker = marker_value(&value);
        assert!(marker.starts_with(b"shared:32:"), "{marker:?}");
        assert!(marker.ends_with(b":x: y"));
        assert!(is_marker(&marker) && owned_token(&marker).is_none());
        let holder = Holder::parse(&marker);
        assert_eq!((holder.token, holder.owner_id), (Some(32), None));
        assert!(holder.shared && !holder.kept);
        let text = Holder::parse(&marker).to_string();
        assert!(
            text.starts_with("readers (latest: ") && text.ends_with(", token 32)"),
            "{text}"
        );
    }

    /// Readers join a lock with a marker.
    #[test]
    fn the_lock_of_another_library_is_no_marker() {
        for value in [
            &b"shared"[..],
            b"shared:",
            b"shared:1",
            b"shared:1:2",
            b"shared:1:2@h",
            b"shared:x:2@h:",
            b"shared:1:x@h:",
            b"shared:1:2:@h",
            b"shared:1s:2@h:",
            b"shared:1::",
            b"reshared:1:2@h:",
        ] {
            assert!(!is_marker(value), "{}", value.escape_ascii());
        }
        assert!(is_marker(b"shared:1:2@h:"));
    }

    #[test]
    fn foreign_values_are_unknown_holders() {
        for value in [&b""[..], b"\xff\xfe\x00", b"3f2a", &[b'a'; 40], &[b':'; 5]] {
            assert_eq!(Holder::parse(value), Holder::default());
            assert_eq!(Holder::parse(value).to_string(), "another owner");
        }
    }
}

//! The holder of a lock, as the value at the lock's key describes it.
//!
//! The value is `secret:token:pid@host:label`. The secret is 20 random bytes as hex, new for every
//! attempt. It alone proves ownership and is never shown. The other parts let people see which
//! process holds a lock.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::name::shown;
use crate::planted;

const SECRET_BYTES: usize = 20;
const SECRET_CHARS: usize = SECRET_BYTES * 2;
/// Replaces the secret of a lock that `min_hold` keeps taken after its release. Such a lock has no
/// owner, so no client can extend or release it.
const KEPT: &[u8] = b"kept";

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
    /// Whether the holder has released the lock and `min_hold` keeps it taken.
    pub kept: bool,
}

impl Holder {
    /// Parses the value of a lock. Accepts any bytes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        Self::parse_ours(value).unwrap_or_default()
    }

    /// Returns about when the holder requested the lock: a token is a time in microseconds since
    /// 1970, by the holder's clock. A holder that waited in line was granted the lock later: see
    /// [`Sighting::since`](crate::Sighting::since). The result is never in the future: in the first
    /// seconds after a server has started, tokens are ahead of the clock by up to the allowed skew,
    /// and then this is the current time.
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
        Some(asked.min(SystemTime::now()))
    }

    fn parse_ours(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(4, |&b| b == b':');
        let secret = parts.next()?;
        let kept = secret == KEPT;
        if !kept && (secret.len() != SECRET_CHARS || !secret.iter().all(u8::is_ascii_hexdigit)) {
            return None;
        }
        let token = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let (pid, host) = std::str::from_utf8(parts.next()?).ok()?.split_once('@')?;
        let label = parts.next()?;
        Some(Self {
            owner_id: (!kept).then(|| owner_id(value)),
            token: Some(token),
            host: Some(shown(host.as_bytes())),
            pid: pid.parse().ok(),
            label: (!label.is_empty()).then(|| shown(label)),
            kept,
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(host), Some(pid)) = (&self.host, self.pid) else {
            return f.write_str("another owner");
        };
        if self.kept {
            f.write_str("min_hold of ")?;
        }
        write!(f, "{host} pid {pid}")?;
        if let Some(label) = &self.label {
            write!(f, " ({label})")?;
        }
        if let Some(token) = self.token.filter(|token| *token > 0) {
            write!(f, ", token {token}")?;
        }
        Ok(())
    }
}

/// Creates the owner value of one attempt.
///
/// Rule: **every attempt** has a new random value. With one value per client or per object, a
/// delayed release of an earlier attempt would release a later lock.
pub(crate) fn new_owner(token: u64, label: &str) -> Box<[u8]> {
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).expect("the operating system provides random numbers");
    // Planted bug: values differ only in their labels.
    let (secret, token) = match planted::on(planted::Bug::OwnerPerClient) {
        false => (secret, token),
        true => ([0; SECRET_BYTES], 0),
    };
    let (pid_at_host, digits) = (pid_at_host(), token_digits(token));
    let mut value =
        Vec::with_capacity(SECRET_CHARS + 3 + digits.len() + pid_at_host.len() + label.len());
    for byte in secret {
        value.push(b"0123456789abcdef"[usize::from(byte >> 4)]);
        value.push(b"0123456789abcdef"[usize::from(byte & 15)]);
    }
    for part in [digits.as_bytes(), pid_at_host.as_bytes(), label.as_bytes()] {
        value.push(b':');
        value.extend_from_slice(part);
    }
    value.into_boxed_slice()
}

/// Returns the token in an owner value of leasehold. `None` for values of other libraries, and for
/// locks that `min_hold` keeps.
pub(crate) fn owned_token(value: &[u8]) -> Option<u64> {
    let (secret, rest) = value.split_at_checked(SECRET_CHARS)?;
    let digits = rest.strip_prefix(b":")?.split(|&b| b == b':').next()?;
    let ours = secret.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| ours)?;
    digits.parse().ok()
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

fn token_digits(token: u64) -> String {
    token.to_string()
}

fn pid_at_host() -> &'static str {
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
    fn since_is_never_in_the_future() {
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let token = ahead.duration_since(UNIX_EPOCH).unwrap().as_micros();
        let holder = Holder::parse(&new_owner(u64::try_from(token).unwrap(), ""));
        assert!(holder.since().unwrap() <= SystemTime::now());
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
    fn a_kept_value_has_no_secret() {
        let value = new_owner(7, "x");
        let kept = kept_value(&value);
        assert!(!kept.windows(8).any(|w| w == &value[..8]));
        let holder = Holder::parse(&kept);
        assert!(holder.kept);
        assert_eq!(holder.token, Some(7));
    }

    #[test]
    fn foreign_values_are_unknown_holders() {
        for value in [&b""[..], b"\xff\xfe\x00", b"3f2a", &[b'a'; 40], &[b':'; 5]] {
            assert_eq!(Holder::parse(value), Holder::default());
            assert_eq!(Holder::parse(value).to_string(), "another owner");
        }
    }
}

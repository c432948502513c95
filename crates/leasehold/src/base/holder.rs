//! Who holds a lock: the value at the lock's key, written and read back.
//!
//! The value is `secret:token:pid@host:label`. The secret is 20 random bytes as
//! hex, new for every attempt; it alone proves ownership and is never shown.
//! The rest is there so that people can see who holds a lock.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::name::shown;
use crate::planted;

const SECRET_BYTES: usize = 20;
const SECRET_CHARS: usize = SECRET_BYTES * 2;
/// What replaces the secret of a lock that is kept for its `min_hold` after its
/// release: nobody owns it any more, so nobody can extend or release it.
const KEPT: &[u8] = b"kept";

/// Who holds a lock, as far as the value on the server tells.
///
/// A value that another library wrote carries no such information; it is
/// respected as an owner like any other, and shown as unknown.
///
/// ```
/// use leasehold::Holder;
///
/// let value = b"00112233445566778899aabbccddeeff00112233:1794780664497528:4711@web-1:nightly";
/// let holder = Holder::parse(value);
/// assert_eq!(holder.token, Some(1_794_780_664_497_528));
/// assert_eq!(holder.to_string(), "pid 4711 on web-1 (nightly), token 1794780664497528");
/// assert_eq!(Holder::parse(b"of another library").to_string(), "another owner");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Holder {
    /// A short name for the holder's claim, as [`Sighting::owner_id`](crate::Sighting::owner_id):
    /// no other claim has it, on whatever lock and nodes. `None` once the lock is only kept.
    pub owner_id: Option<String>,
    /// The fencing token of the holder's lease; 0 if it has none.
    pub token: Option<u64>,
    /// The holder's host name.
    pub host: Option<String>,
    /// The holder's process id.
    pub pid: Option<u32>,
    /// The label that the holder gave itself ([`Options::label`](crate::Options::label)).
    pub label: Option<String>,
    /// The holder has released the lock, and `min_hold` keeps it taken.
    pub kept: bool,
}

impl Holder {
    /// Reads what a lock's value says about its owner. Accepts any bytes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        Self::parse_ours(value).unwrap_or_default()
    }

    /// About when the holder asked for the lock: tokens are microseconds since 1970, by the
    /// holder's clock. A holder that waited in line was granted the lock later than this: see
    /// [`Sighting::since`](crate::Sighting::since). Never in the future: in the first seconds after
    /// a server's start, tokens are ahead of the clock by up to the allowed skew, and this is the
    /// present time.
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
            f.write_str("nobody any more, kept for min_hold by ")?;
        }
        write!(f, "pid {pid} on {host}")?;
        if let Some(label) = &self.label {
            write!(f, " ({label})")?;
        }
        if let Some(token) = self.token.filter(|token| *token > 0) {
            write!(f, ", token {token}")?;
        }
        Ok(())
    }
}

/// A new owner value for one attempt.
///
/// Rule: a new random value for **every attempt**. With a value per client or
/// per object, a delayed release of an earlier attempt frees a later lock.
pub(crate) fn new_owner(token: u64, label: &str) -> Box<[u8]> {
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).expect("the operating system has no randomness to give");
    // Planted bug: nothing but the label tells one value from another.
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

/// The token in an owner value of ours; `None` for the values of others, and for one that
/// nobody owns any more.
pub(crate) fn owned_token(value: &[u8]) -> Option<u64> {
    let (secret, rest) = value.split_at_checked(SECRET_CHARS)?;
    let digits = rest.strip_prefix(b":")?.split(|&b| b == b':').next()?;
    let ours = secret.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| ours)?;
    digits.parse().ok()
}

/// A short name for an owner value, which tells owners apart and keeps the secret: 48 bits
/// of a hash of it (FNV-1a) cannot be turned back into its 160 random ones.
pub(crate) fn owner_id(value: &[u8]) -> String {
    let hash = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:012x}", (hash ^ hash >> 48) & 0xffff_ffff_ffff)
}

/// The same value without the secret, for a lock that `min_hold` keeps.
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
    fn no_lock_is_held_since_a_time_to_come() {
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let token = ahead.duration_since(UNIX_EPOCH).unwrap().as_micros();
        let holder = Holder::parse(&new_owner(u64::try_from(token).unwrap(), ""));
        assert!(holder.since().unwrap() <= SystemTime::now());
    }

    #[test]
    fn a_value_reads_back_without_its_secret() {
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
    fn a_kept_value_has_lost_its_secret() {
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

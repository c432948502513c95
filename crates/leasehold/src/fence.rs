//! Checks of fencing tokens, for the resources that locks protect.
//!
//! A lease can end while its holder is still working: the process was paused, the network was slow.
//! Only the resource can refuse such a holder. For each name it stores two numbers, the largest token
//! of exclusive access (`written`) and the largest of shared access (`read`), and checks the token of
//! every access:
//!
//! | access with token `t` | is allowed if | and then stores |
//! |---|---|---|
//! | exclusive | `written ≤ t` and `read ≤ t` | `written = t` |
//! | shared | `written < t` | `read = t`, unless it is larger |
//!
//! Two numbers are needed because holders of a shared lock have different tokens and must not refuse
//! each other. With exclusive locks only, `read` stays 0.
//!
//! The check must be atomic with the work: in the same transaction, or in the same script. It must come
//! before the first access, reads included: otherwise a holder with an old token could read what a
//! newer holder is about to change.
//!
//! # SQL
//! Create the table [`SQL_TABLE`] once. Begin each transaction with [`Fence::sql`], with two parameters:
//! a name and the token. If it changes one row, go on. If it changes none, roll back: a newer token was
//! used. The statements work in PostgreSQL and in SQLite, with any client library.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = leasehold::Client::in_memory();
//! # let (mut postgres, _) = tokio_postgres::connect("", tokio_postgres::NoTls).await?;
//! let lease = client.mutex("accounts/7").lock().await?;
//! let fence = lease.fence();
//! let transaction = postgres.transaction().await?;
//! if transaction.execute(fence.sql(), &[&"accounts/7", &fence.token]).await? == 0 {
//!     return Err("another holder with a newer token was here".into());
//! }
//! // … the work …
//! transaction.commit().await?;
//! # Ok(()) }
//! ```
//!
//! # Redis
//! [`redis_script`] puts the check in front of a script.

use crate::Lease;
use crate::base::mode::Mode;

/// Creates the table of fences, if it does not exist. For PostgreSQL and SQLite.
pub const SQL_TABLE: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_fences (
    name TEXT PRIMARY KEY,
    written BIGINT NOT NULL,
    read BIGINT NOT NULL
)";

const SQL_EXCLUSIVE: &str = "\
INSERT INTO leasehold_fences (name, written, read) VALUES ($1, $2, 0)
ON CONFLICT (name) DO UPDATE SET written = excluded.written
WHERE leasehold_fences.written <= excluded.written
  AND leasehold_fences.read <= excluded.written";

const SQL_SHARED: &str = "\
INSERT INTO leasehold_fences (name, written, read) VALUES ($1, 0, $2)
ON CONFLICT (name) DO UPDATE SET read = CASE
    WHEN leasehold_fences.read < excluded.read THEN excluded.read ELSE leasehold_fences.read END
WHERE leasehold_fences.written < excluded.read";

/// What a resource has to know about a lease to check its token. From [`Lease::fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fence {
    /// The token, as the signed integer that SQL databases use; see [`Lease::token`].
    pub token: i64,
    /// How the lease holds the lock.
    pub mode: Mode,
}

impl Fence {
    /// Returns the statement that checks and stores the token, with the parameters `$1` (the name) and
    /// `$2` (the token, as a signed 64-bit integer). It changes one row if the token is valid, and none
    /// if a newer token was used.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::in_memory();
    /// let mut database = rusqlite::Connection::open_in_memory()?;
    /// database.execute(leasehold::fence::SQL_TABLE, ())?;
    ///
    /// let lease = client.mutex("report").lock().await?;
    /// let fence = lease.fence();
    /// let transaction = database.transaction()?;
    /// let passed = transaction.execute(fence.sql(), ("report", fence.token))?;
    /// assert_eq!(passed, 1);
    /// // … the work …
    /// transaction.commit()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn sql(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => SQL_EXCLUSIVE,
            Mode::Shared => SQL_SHARED,
        }
    }
}

impl Lease {
    /// Returns what a resource has to know to check the token of this lease; see
    /// [`fence`](crate::fence).
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence {
            // Tokens are below 2^53.
            token: i64::try_from(self.token()).unwrap_or(i64::MAX),
            mode: self.mode(),
        }
    }
}

/// Returns a Lua script for Redis that checks the token and then runs `body`. `KEYS[1]` is the key of
/// the fence, a hash that belongs to the resource. `ARGV[1]` is the token, and `ARGV[2]` is `exclusive`
/// or `shared` (the [`Display`](std::fmt::Display) of the lease's mode). The body uses the further keys
/// and arguments. If a newer token was used, the script returns an error that begins with `FENCED`.
///
/// ```
/// let script = leasehold::fence::redis_script("return redis.call('SET', KEYS[2], ARGV[3])");
/// // EVAL script 2 balance:fence balance TOKEN exclusive 100
/// # assert!(script.ends_with("ARGV[3])\n"));
/// ```
#[must_use]
pub fn redis_script(body: &str) -> String {
    format!(
        "\
do
  local token, shared = tonumber(ARGV[1]), ARGV[2] == 'shared'
  local known = redis.call('HMGET', KEYS[1], 'written', 'read')
  local written, read = tonumber(known[1] or 0), tonumber(known[2] or 0)
  if not token or not shared and ARGV[2] ~= 'exclusive' then
    return redis.error_reply('ERR ARGV[1] must be a token, and ARGV[2] exclusive or shared')
  elseif shared and written >= token or not shared and math.max(written, read) > token then
    return redis.error_reply('FENCED a newer token was used')
  elseif not shared then
    redis.call('HSET', KEYS[1], 'written', ARGV[1])
  elseif read < token then
    redis.call('HSET', KEYS[1], 'read', ARGV[1])
  end
end
{body}
"
    )
}

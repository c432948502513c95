//! The name of a lock: bytes of any value, of limited length, escaped when shown.

use std::fmt;
use std::sync::Arc;

use crate::base::error::Invalid;

/// The name of a lock: 1 to 1024 bytes of any value.
///
/// On Redis the lock is a plain string at exactly this key, as with other libraries. `Display`
/// escapes bytes that are not printable.
///
/// ```
/// use leasehold::Name;
///
/// let name = Name::new("orders/42")?;
/// assert_eq!(name.to_string(), "orders/42");
/// assert_eq!(Name::new(b"a\xff\n")?.to_string(), "a\\xff\\n");
/// assert!(Name::new("").is_err());
/// # Ok::<(), leasehold::Invalid>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Checks the length and copies the bytes.
    ///
    /// # Errors
    /// [`Invalid::Name`] if `bytes` is empty or longer than [`Name::MAX_LEN`].
    /// [`Invalid::ReservedName`] if it begins with `leasehold:`, like the keys that leasehold keeps
    /// for itself.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, Invalid> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() || bytes.len() > Self::MAX_LEN {
            return Err(Invalid::Name { len: bytes.len() });
        }
        if bytes.starts_with(b"leasehold:") {
            return Err(Invalid::ReservedName);
        }
        Ok(Self(bytes.into()))
    }

    /// Adds a prefix, which does not count towards the length.
    pub(crate) fn prefixed(&self, prefix: &[u8]) -> Result<Self, Invalid> {
        let bytes = [prefix, &self.0].concat();
        match bytes.starts_with(b"leasehold:") {
            true => Err(Invalid::ReservedName),
            false => Ok(Self(bytes.into())),
        }
    }

    /// Removes the prefix from a key. `None` if the key does not have it.
    pub(crate) fn without_prefix(&self, prefix: &[u8]) -> Option<Self> {
        match prefix {
            [] => Some(self.clone()),
            prefix => Self::new(self.0.strip_prefix(prefix)?).ok(),
        }
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(&self.0, f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Writes bytes so that they can neither break a line nor move the cursor: printable UTF-8
/// unchanged, everything else escaped.
pub(crate) fn escape(bytes: &[u8], out: &mut impl fmt::Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                write!(out, "{}", c.escape_default())?;
            } else {
                out.write_char(c)?;
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// Text from outside (a message of a server, a value of another library), escaped and cut to a
/// length that fits into an error message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MAX: usize = 200;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = escape(&bytes[..bytes.len().min(MAX)], &mut text);
    if bytes.len() > MAX {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact() {
        assert!(Name::new([b'x'; 1024]).is_ok());
        assert_eq!(Name::new([b'x'; 1025]), Err(Invalid::Name { len: 1025 }));
        assert_eq!(Name::new([]), Err(Invalid::Name { len: 0 }));
        assert_eq!(Name::new("leasehold:epoch"), Err(Invalid::ReservedName));
        let prefixed = Name::new("hold:x").unwrap().prefixed(b"lease");
        assert_eq!(prefixed, Err(Invalid::ReservedName));
    }

    #[test]
    fn terminal_escapes_are_defused() {
        let name = Name::new(b"\x1b[2Jok \xc3\xa9 \xff").unwrap();
        assert_eq!(name.to_string(), "\\u{1b}[2Jok é \\xff");
    }

    #[test]
    fn long_text_is_cut() {
        assert!(shown(&[b'a'; 1000]).chars().count() <= 201);
    }
}

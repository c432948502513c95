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

/// What the keys of semaphores, gates, latches and permits begin with.
const SEMAPHORE: &[u8] = b"leasehold:permits:";
const GATE: &[u8] = b"leasehold:gate:";
const LATCH: &[u8] = b"leasehold:latch:";
const PERMIT: &[u8] = b"leasehold:permit:";

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

    /// The key of the semaphore with this name. Its line is that of this key, so that it has nothing to
    /// do with the lock of the same name.
    #[doc(hidden)]
    #[must_use]
    pub fn semaphore(&self) -> Self {
        Self([SEMAPHORE, &self.tagged()].concat().into())
    }

    /// The name of the semaphore with this key. `None` if it is no semaphore's key.
    pub(crate) fn as_semaphore(&self) -> Option<Self> {
        Self::from_tagged(self.0.strip_prefix(SEMAPHORE)?)
    }

    /// The key of a permit of the semaphore with this key.
    #[doc(hidden)]
    #[must_use]
    pub fn permit(&self, number: u32) -> Self {
        let tagged = self.0.strip_prefix(SEMAPHORE).unwrap_or(&self.0);
        Self(
            [PERMIT, tagged, b":", number.to_string().as_bytes()]
                .concat()
                .into(),
        )
    }

    /// The key of the semaphore and the number of the permit with this key. `None` if it is no permit's
    /// key.
    pub(crate) fn as_permit(&self) -> Option<(Self, u32)> {
        let rest = self.0.strip_prefix(PERMIT)?;
        let colon = rest.iter().rposition(|&b| b == b':')?;
        let number = std::str::from_utf8(&rest[colon + 1..]).ok()?.parse().ok()?;
        let name = Self::from_tagged(&rest[..colon])?;
        Some((name.semaphore(), number))
    }

    /// The key of the lock that a client holds while it collects several permits of the semaphore with
    /// this key.
    #[doc(hidden)]
    #[must_use]
    pub fn gate(&self) -> Self {
        let tagged = self.0.strip_prefix(SEMAPHORE).unwrap_or(&self.0);
        Self([GATE, tagged].concat().into())
    }

    /// The name of the semaphore for which this key is a [gate](Self::gate).
    #[doc(hidden)]
    #[must_use]
    pub fn as_gate(&self) -> Option<Self> {
        Self::from_tagged(self.0.strip_prefix(GATE)?)
    }

    /// The latch and the party whose [arrival](Self::arrival) has this key.
    #[doc(hidden)]
    #[must_use]
    pub fn as_arrival(&self) -> Option<(Self, Self)> {
        let rest = self.0.strip_prefix(LATCH)?;
        let colon = rest.iter().position(|&b| b == b':')?;
        let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let (tagged, party) = rest[colon + 1..].split_at_checked(length)?;
        let latch = Self::from_tagged(tagged)?;
        Some((latch, Self::new(party.strip_prefix(b":")?).ok()?))
    }

    /// The key of the arrival of a party at the latch with this name. The length of the name separates
    /// it from the party: both may contain any bytes.
    pub(crate) fn arrival(&self, party: &Self) -> Self {
        let tagged = self.tagged();
        let length = tagged.len().to_string();
        let parts = [
            LATCH,
            length.as_bytes(),
            b":",
            &tagged,
            b":",
            party.as_bytes(),
        ];
        Self(parts.concat().into())
    }

    /// A key as a node stores it: a name, or a key that this module makes of names.
    pub(crate) fn from_key(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(b"leasehold:") {
            return Self::new(bytes).ok();
        }
        let key = Self(bytes.into());
        let of_semaphore = key.as_semaphore().is_some() || key.as_permit().is_some();
        let other = bytes.starts_with(GATE) || bytes.starts_with(LATCH);
        (of_semaphore || other).then_some(key)
    }

    /// The name with its hash tag in front, so that a key that contains it is in the same slot of a
    /// cluster. Different names are different then, too.
    pub(crate) fn tagged(&self) -> Vec<u8> {
        self.tagged_behind(b"")
    }

    /// The same behind a prefix.
    pub(crate) fn tagged_behind(&self, prefix: &[u8]) -> Vec<u8> {
        let parts = self.tagged_parts();
        let mut key =
            Vec::with_capacity(prefix.len() + parts.iter().map(|p| p.len()).sum::<usize>());
        key.extend_from_slice(prefix);
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    /// Whether the name contains a brace, which may be that of a hash tag. If not, the whole name is
    /// the tag.
    #[cfg(feature = "redis")]
    pub(crate) fn has_braces(&self) -> bool {
        self.0.iter().any(|b| matches!(b, b'{' | b'}'))
    }

    /// The parts of the name with its hash tag in front.
    pub(crate) fn tagged_parts(&self) -> [&[u8]; 4] {
        let name = self.as_bytes();
        let open = name.iter().position(|&b| b == b'{');
        let tag = open.and_then(|open| {
            let rest = &name[open + 1..];
            let close = rest.iter().position(|&b| b == b'}')?;
            (close > 0).then(|| &rest[..close])
        });
        match tag {
            Some(tag) => [b"{", tag, b"}:", name],
            None if open.is_none() && !name.contains(&b'}') => [b"{", name, b"}", b""],
            // The cluster hashes the whole name, but its braces prevent it from being a tag.
            None => [name, b"", b"", b""],
        }
    }

    /// Returns the name that is [written so](Self::tagged).
    pub(crate) fn from_tagged(tagged: &[u8]) -> Option<Self> {
        let close = tagged.iter().position(|&b| b == b'}');
        let within = close.and_then(|close| tagged.get(1..close));
        let behind = close.and_then(|close| tagged.get(close + 2..));
        let candidates = [within, behind, Some(tagged)].into_iter().flatten();
        candidates
            .filter_map(Self::from_key)
            .find(|name| name.tagged() == tagged)
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

/// Whether a character is not visible and changes how the text around it is shown: control characters,
/// marks of the direction of writing, separators of lines, and spaces without a width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{61c}' | '\u{ad}')
}

/// Writes bytes so that they can neither break a line, nor move the cursor, nor change the order of
/// what is around them: visible UTF-8 unchanged, everything else escaped.
pub(crate) fn escape(bytes: &[u8], out: &mut impl fmt::Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_hidden(c) || c == '\\' {
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
    fn the_keys_of_semaphores_and_permits_are_read_again() {
        for name in [
            "exports",
            "a{user1}b",
            "a{}b{c}",
            "x}y",
            "{x}",
            "x:3",
            "a:{b}:7",
        ] {
            let name = Name::new(name).unwrap();
            let semaphore = name.semaphore();
            assert_eq!(semaphore.as_semaphore(), Some(name.clone()));
            let permit = semaphore.permit(17);
            assert_eq!(permit.as_permit(), Some((semaphore.clone(), 17)));
            assert!(semaphore.as_permit().is_none() && permit.as_semaphore().is_none());
            for key in [
                &name,
                &semaphore,
                &permit,
                &semaphore.gate(),
                &name.arrival(&name),
            ] {
                assert_eq!(Name::from_key(key.as_bytes()).as_ref(), Some(key));
            }
        }
        let keys = Name::new("exports").unwrap().semaphore();
        assert_eq!(keys.to_string(), "leasehold:permits:{exports}");
        assert_eq!(keys.permit(3).to_string(), "leasehold:permit:{exports}:3");
        assert_eq!(keys.gate().to_string(), "leasehold:gate:{exports}");
        let (latch, party) = (Name::new("import").unwrap(), Name::new("orders").unwrap());
        let arrival = latch.arrival(&party).to_string();
        assert_eq!(arrival, "leasehold:latch:8:{import}:orders");
        assert_eq!(latch.arrival(&party).as_arrival(), Some((latch, party)));
        assert_eq!(keys.gate().as_gate(), Some(Name::new("exports").unwrap()));
        // Different latches have different keys, whatever their names and parties contain.
        let key = |name: &str, party: &str| {
            let party = Name::new(party).unwrap();
            Name::new(name).unwrap().arrival(&party)
        };
        assert_ne!(key("job", "{job}:p"), key("{job}", "p"));
        assert_ne!(key("x}", "a:b"), key("x}:a", "b"));
        for other in [
            "leasehold:epoch",
            "leasehold:permit:{a}",
            "leasehold:permit:{a}:x",
        ] {
            assert!(Name::from_key(other.as_bytes()).is_none(), "{other}");
        }
    }

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
        // Marks that would show the rest backwards, or nothing at all.
        let name = Name::new("a\u{202e}b\u{200b}\u{feff} 注文").unwrap();
        assert_eq!(name.to_string(), "a\\u{202e}b\\u{200b}\\u{feff} 注文");
    }

    #[test]
    fn long_text_is_cut() {
        assert!(shown(&[b'a'; 1000]).chars().count() <= 201);
    }
}

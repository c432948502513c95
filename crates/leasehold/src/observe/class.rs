//! The class of a name, for the labels of metrics.
//!
//! There may be millions of names, and each value of a label costs the monitoring system a series.
//! So names never become labels. A class is what the caller says, or a pattern made of the name, and
//! there is a limit to how many a client uses.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The class of names that have no other.
const OTHER: &str = "other";
/// How many classes a client uses. Further ones become [`OTHER`].
const MAX_CLASSES: usize = 100;
/// The longest class, in bytes. Longer ones become [`OTHER`].
const MAX_LEN: usize = 100;
/// The shortest run of hexadecimal digits that counts as an id.
const MIN_HEX: usize = 8;

/// The classes that a client has used.
pub(super) struct Classes {
    known: RwLock<HashSet<Arc<str>>>,
    other: Arc<str>,
}

impl Default for Classes {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            other: OTHER.into(),
        }
    }
}

impl Classes {
    /// The class of a name: the one that the caller has set, or the name's pattern.
    pub(super) fn of(&self, name: &[u8], set: Option<&Arc<str>>) -> Arc<str> {
        match set {
            Some(class) => self.known(class),
            None => match pattern(name) {
                Some(pattern) => self.known(&pattern),
                None => Arc::clone(&self.other),
            },
        }
    }

    /// The class itself, or [`OTHER`] if there are too many.
    fn known(&self, class: &str) -> Arc<str> {
        if class.is_empty() || class.len() > MAX_LEN || class.chars().any(char::is_control) {
            return Arc::clone(&self.other);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(class) = known.get(class) {
            return Arc::clone(class);
        }
        let is_full = known.len() >= MAX_CLASSES;
        drop(known);
        if is_full {
            return Arc::clone(&self.other);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_CLASSES && !known.contains(class) {
            return Arc::clone(&self.other);
        }
        let class: Arc<str> = class.into();
        known.insert(Arc::clone(&class));
        class
    }
}

/// The pattern of a name: what follows the last `/` or `:` becomes `*`, and so does each id before
/// it. `None` for a name that is not text.
fn pattern(name: &[u8]) -> Option<String> {
    let name = str::from_utf8(name).ok()?;
    let is_separator = |c: char| matches!(c, '/' | ':');
    let (path, last) = match name.rfind(is_separator) {
        Some(at) => name.split_at(at + 1),
        None => ("", name),
    };
    let mut pattern = String::with_capacity(name.len());
    for part in path.split_inclusive(is_separator) {
        let (text, separator) = part.split_at(part.len() - 1);
        collapse(text, &mut pattern);
        pattern.push_str(separator);
    }
    match path.is_empty() {
        true => collapse(last, &mut pattern),
        false => pattern.push('*'),
    }
    Some(pattern)
}

/// Adds a text to a pattern. Each word that looks like an id becomes `*`, and so do ids that `-`, `_`
/// or `.` joins, such as a date.
fn collapse(mut text: &str, pattern: &mut String) {
    let mut after_id = false;
    while !text.is_empty() {
        let uuid = text.get(..UUID_LEN).filter(|text| is_uuid(text.as_bytes()));
        let end = text.find(|c: char| !c.is_alphanumeric());
        let (word, rest) = text.split_at(uuid.map_or(end.unwrap_or(text.len()), str::len));
        let is_id = uuid.is_some() || is_id(word);
        if is_id && after_id && pattern.ends_with(['-', '_', '.']) {
            pattern.pop();
        } else if is_id {
            pattern.push('*');
        } else {
            pattern.push_str(word);
        }
        let joint = rest.find(char::is_alphanumeric).unwrap_or(rest.len());
        pattern.push_str(&rest[..joint]);
        after_id = is_id;
        text = &rest[joint..];
    }
}

/// Whether a word looks like an id: a number, or hexadecimal digits of the length of a hash.
fn is_id(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits > 0 && (digits == word.len() || is_hex && word.len() >= MIN_HEX)
}

/// The length of a UUID as text.
const UUID_LEN: usize = 36;

fn is_uuid(text: &[u8]) -> bool {
    let mut bytes = text.iter().enumerate();
    bytes.all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_no_ids() {
        let cases = [
            ("orders/42", "orders/*"),
            ("orders/EU/42", "orders/EU/*"),
            ("orders", "orders"),
            ("nightly-report", "nightly-report"),
            ("user/7/cart", "user/*/*"),
            ("lock:orders:42", "lock:orders:*"),
            ("job-17", "job-*"),
            ("job-17-step-3", "job-*-step-*"),
            ("17", "*"),
            ("2026-11-18", "*"),
            ("v2", "v2"),
            ("backup_20261118.tar", "backup_*.tar"),
            ("550e8400-e29b-41d4-a716-446655440000", "*"),
            ("cart-550e8400-e29b-41d4-a716-446655440000", "cart-*"),
            ("abcdefab-abcd-abcd-abcd-abcdefabcdef.lock", "*.lock"),
            ("t/550e8400-e29b-41d4-a716-446655440000/x", "t/*/*"),
            ("deadbeef", "deadbeef"),
            ("9f86d081884c7d659a2feaa0c55ad015", "*"),
            ("a/", "a/*"),
            ("/", "/*"),
            ("größe/1", "größe/*"),
        ];
        for (name, expected) in cases {
            assert_eq!(
                pattern(name.as_bytes()).as_deref(),
                Some(expected),
                "{name}"
            );
        }
        assert_eq!(pattern(b"\xff"), None);
    }

    #[test]
    fn the_number_of_classes_is_limited() {
        let classes = Classes::default();
        for number in 0..10 * MAX_CLASSES {
            let name = format!("{}x", "a".repeat(1 + number % 50));
            classes.of(format!("{name}{number}b/1").as_bytes(), None);
        }
        assert_eq!(classes.known.read().unwrap().len(), MAX_CLASSES);
        assert_eq!(&*classes.of(b"new/1", None), OTHER);
        assert_eq!(&*classes.of(b"x", Some(&"set".into())), OTHER);
        // Those that are known stay.
        assert_eq!(&*classes.of(b"ax0b/7", None), "ax0b/*");
    }

    #[test]
    fn a_class_that_is_no_label_is_other() {
        let classes = Classes::default();
        let long: Arc<str> = "x".repeat(MAX_LEN + 1).into();
        assert_eq!(&*classes.of(b"a", Some(&long)), OTHER);
        assert_eq!(&*classes.of(b"a", Some(&"".into())), OTHER);
        assert_eq!(&*classes.of(b"a", Some(&"a\nb".into())), OTHER);
        assert_eq!(&*classes.of(b"\xff\xfe", None), OTHER);
        assert_eq!(&*classes.of(b"a", Some(&"billing".into())), "billing");
    }
}

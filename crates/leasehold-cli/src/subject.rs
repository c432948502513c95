//! What a key on the nodes stands for, in words of the user.

use leasehold::{Inspection, Name, Refusal};

/// What the keys begin with that the library makes of names.
const GATE: &[u8] = b"leasehold:gate:";
const LATCH: &[u8] = b"leasehold:latch:";

/// A lock, or something that the library keeps like one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    /// The name of the lock, semaphore or latch, without the prefix.
    pub(crate) name: Name,
    pub(crate) kind: Kind,
}

/// In the order in which they are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lock,
    /// A permit of a semaphore.
    Permit(u32),
    /// The lock of the process that collects several permits of a semaphore.
    Collector,
    /// The arrival of a party at a latch.
    Party(String),
}

impl Subject {
    /// What was inspected, by a client with this prefix.
    pub(crate) fn of(inspection: &Inspection, prefix: &str) -> Self {
        let of_lock = || Self {
            name: inspection.name.clone(),
            kind: match inspection.permit {
                Some(number) => Kind::Permit(number),
                None => Kind::Lock,
            },
        };
        Self::of_key(inspection.key.as_bytes(), prefix.as_bytes()).unwrap_or_else(of_lock)
    }

    /// The collector or the party with this key.
    fn of_key(key: &[u8], prefix: &[u8]) -> Option<Self> {
        let without_prefix = |name: Name| Name::new(name.as_bytes().strip_prefix(prefix)?).ok();
        if let Some(tagged) = key.strip_prefix(GATE) {
            return Some(Self {
                name: without_prefix(from_tagged(tagged)?)?,
                kind: Kind::Collector,
            });
        }
        let rest = key.strip_prefix(LATCH)?;
        let mut colons = (0..rest.len()).rev().filter(|&index| rest[index] == b':');
        // A name with a hash tag contains that tag once more, so the longest name is the right one.
        let (name, party) =
            colons.find_map(|colon| Some((from_tagged(&rest[..colon])?, &rest[colon + 1..])))?;
        Some(Self {
            name: without_prefix(name)?,
            kind: Kind::Party(Name::new(party).ok()?.to_string()),
        })
    }
}

/// The name of the semaphore whose collector keeps others from it, if the refusal is about that.
pub(crate) fn collected(refusal: &Refusal) -> Option<Name> {
    let key = refusal.name.as_ref()?;
    let subject = Subject::of_key(key.as_bytes(), b"")?;
    (subject.kind == Kind::Collector).then_some(subject.name)
}

/// The name that the library writes like this in its keys: with its hash tag in front.
fn from_tagged(tagged: &[u8]) -> Option<Name> {
    let close = tagged.iter().position(|&byte| byte == b'}');
    let within = close.and_then(|close| tagged.get(1..close));
    let behind = close.and_then(|close| tagged.get(close + 2..));
    let candidates = [within, behind, Some(tagged)].into_iter().flatten();
    let mut names = candidates.filter_map(|name| Name::new(name).ok());
    let key = [GATE, tagged].concat();
    names.find(|name| name.semaphore().gate().as_bytes() == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read() {
        for name in ["exports", "a{user1}b", "a{}b{c}", "x}y", "{x}", "x:3"] {
            let key = Name::new(name).expect("a name").semaphore().gate();
            let subject = Subject::of_key(key.as_bytes(), b"").expect("a subject");
            assert_eq!(subject.name.to_string(), name);
            assert_eq!(subject.kind, Kind::Collector);
        }
        for (key, prefix, name, party) in [
            ("leasehold:latch:{import}:orders", "", "import", "orders"),
            ("leasehold:latch:{import}:a:b", "", "import", "a:b"),
            ("leasehold:latch:{t}:a{t}b:orders", "", "a{t}b", "orders"),
            (
                "leasehold:latch:{p:import}:orders",
                "p:",
                "import",
                "orders",
            ),
        ] {
            let subject = Subject::of_key(key.as_bytes(), prefix.as_bytes());
            let subject = subject.expect("a subject");
            assert_eq!(subject.name.to_string(), name);
            assert_eq!(subject.kind, Kind::Party(party.to_owned()));
        }
        for key in ["exports", "leasehold:permits:{a}", "leasehold:latch:{a}"] {
            assert_eq!(Subject::of_key(key.as_bytes(), b""), None);
        }
    }
}

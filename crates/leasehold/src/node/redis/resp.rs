//! Reads the values of the Redis protocol (RESP 2 and 3).

use redis::{RedisResult, Value};

/// How deep values may be nested. Replies to the requests of this crate are far below.
const MAX_DEPTH: usize = 32;

/// What a server sent is not a value of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads the first value. Returns it with its length; `None` if it is not complete yet.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(RedisResult<Value>, usize)>, Malformed> {
    if let Some((value, end)) = common(bytes, 0) {
        return Ok(Some((Ok(value), end)));
    }
    // It is of a rare kind, or not complete. The parser of the `redis` crate knows all kinds, and takes
    // several times as long.
    let end = end_of_value(bytes, 0, 0)?;
    Ok(end.map(|end| (redis::parse_redis_value(&bytes[..end]), end)))
}

/// Where the value that begins at `at` ends; `None` if it is not complete.
fn end_of_value(bytes: &[u8], at: usize, depth: usize) -> Result<Option<usize>, Malformed> {
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    let Some(&kind) = bytes.get(at) else {
        return Ok(None);
    };
    let Some((line, mut end)) = line(bytes, at + 1) else {
        return Ok(None);
    };
    let values = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => 0,
        b'$' | b'!' | b'=' => {
            if let Some(length) = length(line)? {
                end = end.checked_add(length + 2).ok_or(Malformed)?;
            }
            return Ok((end <= bytes.len()).then_some(end));
        }
        b'*' | b'~' | b'>' => length(line)?.unwrap_or(0),
        b'%' => 2 * length(line)?.unwrap_or(0),
        // Attributes stand before the value that they belong to.
        b'|' => 2 * length(line)?.unwrap_or(0) + 1,
        _ => return Err(Malformed),
    };
    for _ in 0..values {
        match end_of_value(bytes, end, depth + 1)? {
            Some(next) => end = next,
            None => return Ok(None),
        }
    }
    Ok(Some(end))
}

/// The rest of the line, and where the next one begins.
fn line(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let length = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((&rest[..length], at + length + 2))
}

/// A length; `None` if it is that of a value that does not exist (-1).
fn length(digits: &[u8]) -> Result<Option<usize>, Malformed> {
    match number(digits) {
        Some(-1) => Ok(None),
        // A server that announces more than this is not one.
        Some(length @ 0..=0x2000_0000) => Ok(usize::try_from(length).ok()),
        _ => Err(Malformed),
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The first value and its length, if it is complete and of a common kind.
fn common(bytes: &[u8], depth: usize) -> Option<(Value, usize)> {
    let (kind, (line, mut end)) = (bytes.first()?, line(bytes, 1)?);
    let value = match kind {
        b':' => Value::Int(number(line)?),
        b'_' => Value::Nil,
        b'+' if line == b"OK" => Value::Okay,
        b'$' => match length(line).ok()? {
            None => Value::Nil,
            Some(length) => {
                let text = bytes.get(end..end + length + 2)?;
                end += length + 2;
                Value::BulkString(text[..length].to_vec())
            }
        },
        b'*' if depth < MAX_DEPTH => {
            let mut values = Vec::new();
            for _ in 0..length(line).ok()?? {
                let (value, length) = common(bytes.get(end..)?, depth + 1)?;
                values.push(value);
                end += length;
            }
            Value::Array(values)
        }
        _ => return None,
    };
    Some((value, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = String> {
        let text = "[a-z +:$*-]{0,8}";
        let leaf = prop_oneof![
            any::<i64>().prop_map(|n| format!(":{n}\r\n")),
            text.prop_map(|text| format!("+{text}\r\n")),
            text.prop_map(|text| format!("-ERR {text}\r\n")),
            "(?s).{0,40}".prop_map(|text| format!("${}\r\n{text}\r\n", text.len())),
            Just("$-1\r\n".to_owned()),
            Just("*-1\r\n".to_owned()),
            Just("_\r\n".to_owned()),
            Just("#t\r\n".to_owned()),
            Just(",1.5\r\n".to_owned()),
            Just("+OK\r\n".to_owned()),
            text.prop_map(|text| format!("={}\r\ntxt:{text}\r\n", text.len() + 4)),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            let list = proptest::collection::vec(inner.clone(), 0..5);
            let pairs = proptest::collection::vec((inner.clone(), inner), 0..3);
            prop_oneof![
                list.clone()
                    .prop_map(|v| format!("*{}\r\n{}", v.len(), v.concat())),
                list.prop_map(|v| format!("~{}\r\n{}", v.len(), v.concat())),
                pairs.prop_map(|v| {
                    let body: String = v.iter().map(|(a, b)| format!("{a}{b}")).collect();
                    format!("%{}\r\n{body}", v.len())
                }),
            ]
        })
    }

    proptest! {
        /// The parser of the `redis` crate is the reference.
        #[test]
        fn values_are_read_as_the_redis_crate_reads_them(text in value(), next in value()) {
            let bytes = format!("{text}{next}");
            let (read_value, length) = read(bytes.as_bytes()).unwrap().expect("complete");
            prop_assert_eq!(length, text.len());
            let reference = redis::parse_redis_value(text.as_bytes());
            prop_assert_eq!(format!("{read_value:?}"), format!("{reference:?}"));
            for cut in 0..text.len() {
                prop_assert!(matches!(read(&text.as_bytes()[..cut]), Ok(None)), "cut at {}", cut);
            }
        }

        #[test]
        fn garbage_causes_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        let deep = "*1\r\n".repeat(100);
        for bytes in [
            "hello\r\n",
            "$x\r\n",
            "$-2\r\n",
            "*99999999999\r\n",
            "HTTP/1.1 400\r\n",
            &deep,
        ] {
            assert_eq!(read(bytes.as_bytes()).unwrap_err(), Malformed, "{bytes}");
        }
    }
}

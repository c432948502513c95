//! Passwords in the URLs of nodes.

use percent_encoding::percent_decode_str;

/// Stands for a password.
const MASK: &str = "***";

/// Whether a URL contains a password. A URL that is malformed may contain one where it does not
/// belong, so whatever could be a password counts as one.
pub(crate) fn has_password(url: &str) -> bool {
    masked(url) != url
}

/// A URL without what is, or could be, a password.
pub(crate) fn masked(url: &str) -> String {
    // Behind `local:` is a path.
    if url.starts_with("local:") {
        return url.to_owned();
    }
    let (scheme, rest) = match url.find("://") {
        Some(at) => url.split_at(at + "://".len()),
        None => ("", url),
    };
    // A password may contain `/`, `?` and `@` that should have been written as %2F, %3F and %40.
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:{MASK}@{host}"),
            None => rest.to_owned(),
        },
        None => without_words_for_ports(rest),
    };
    let shown = match shown.split_once('?') {
        Some((place, query)) => format!("{place}?{}", masked_query(query)),
        None => shown,
    };
    format!("{scheme}{shown}")
}

/// Replaces a port that is not a number: the host may have been forgotten, as in `user:password`.
fn without_words_for_ports(rest: &str) -> String {
    let (hosts, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let hosts = hosts.split(',').map(|host| {
        // An IPv6 address has its colons in brackets.
        let port = host.rsplit_once(']').map_or(host, |(_, port)| port);
        match port.split_once(':') {
            Some((_, port)) if port.contains(|c: char| !c.is_ascii_digit()) => {
                let host = &host[..host.len() - port.len()];
                format!("{host}{MASK}")
            }
            _ => host.to_owned(),
        }
    });
    hosts.collect::<Vec<_>>().join(",") + path
}

/// Replaces the values of all parameters whose names contain `pass`, also if the name is not one that
/// the library knows. A part without a name may be the rest of a password with an `&` in it.
fn masked_query(query: &str) -> String {
    let mut is_after_password = false;
    let parts = query.split('&').map(|part| {
        let start = starts(part).find(|&start| {
            let key = part[start..].split('=').next().unwrap_or_default();
            let key = percent_decode_str(key).decode_utf8_lossy().to_lowercase();
            key.contains("pass") && part[start..].contains('=')
        });
        let is_rest = is_after_password && !part.contains('=');
        is_after_password |= start.is_some();
        match start.and_then(|start| Some(start + part[start..].find('=')? + 1)) {
            Some(value) => format!("{}{MASK}", &part[..value]),
            None if is_rest => MASK.to_owned(),
            None => part.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join("&")
}

/// Where parameters begin: some programs separate them by `;`.
fn starts(part: &str) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(part.match_indices(';').map(|(at, _)| at + 1))
}

#[cfg(test)]
mod tests {
    use super::{has_password, masked};

    #[test]
    fn passwords_are_masked() {
        for (url, shown) in [
            ("redis://user:a:b@host:1/2", "redis://user:***@host:1/2"),
            ("rediss://:s3cr3t@host", "rediss://:***@host"),
            (
                "redis+unix:///r.sock?db=1&pass=x",
                "redis+unix:///r.sock?db=1&pass=***",
            ),
            (
                "redis+sentinel://u:x@a,b/s?sentinel_user=v&sentinel_pass=y",
                "redis+sentinel://u:***@a,b/s?sentinel_user=v&sentinel_pass=***",
            ),
        ] {
            assert_eq!(masked(url), shown);
            assert!(has_password(url), "{url}");
        }
    }

    #[test]
    fn passwords_in_malformed_urls_are_masked() {
        for (url, shown) in [
            ("redis://:p/ass@h", "redis://:***@h"),
            ("redis://u:p?ass@h", "redis://u:***@h"),
            ("redis://u:p@ss@h", "redis://u:***@h"),
            ("redis:u:pass@h", "redis:***@h"),
            ("u:pass@h", "u:***@h"),
            ("redis://u:secret", "redis://u:***"),
            ("redis://u:secret/0", "redis://u:***/0"),
            (
                "redis+sentinel://a:1,u:x1/s",
                "redis+sentinel://a:1,u:***/s",
            ),
            ("redis://h?password=x", "redis://h?password=***"),
            ("redis://h?PASS=x", "redis://h?PASS=***"),
            ("redis://h?%70ass=x", "redis://h?%70ass=***"),
            (
                "redis://h?a=1;sentinel_pass=x;y&b=2",
                "redis://h?a=1;sentinel_pass=***&b=2",
            ),
            (
                "redis+unix:///s?pass=x&y&db=1",
                "redis+unix:///s?pass=***&***&db=1",
            ),
            ("redis+unix:///s?pass=x@y", "redis+unix:///s?pass=***"),
            ("redis+unix:///s?pass=x:y@z", "redis+unix:///s?pass=***"),
        ] {
            assert_eq!(masked(url), shown);
            assert!(has_password(url), "{url}");
        }
    }

    #[test]
    fn urls_without_a_password() {
        for url in [
            "redis://host:6379",
            "redis://[::1]:6379/0",
            "redis://[::1]",
            "redis://user@host",
            "redis://h/1?a=b",
            "redis+sentinel://u@a:1,b:2,c/s/2",
            "redis+unix:///run/a.sock?db=1",
            "local:/a:b@c",
        ] {
            assert_eq!(masked(url), url);
            assert!(!has_password(url), "{url}");
        }
    }
}

//! The text that a server answers to INFO.

use std::str::FromStr;

use crate::base::name::shown;

/// The fields of INFO. A field that the server does not show is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info(String);

impl Info {
    /// Escapes what a terminal would not print: the fields are shown to people.
    pub(crate) fn new(text: &str) -> Self {
        let lines = text.lines().map(|line| shown(line.as_bytes()) + "\n");
        Self(lines.collect())
    }

    /// A field. An empty value counts as hidden: some services show the name only.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let value = |line: &str| {
            let start = line.len() - line.strip_prefix(name)?.strip_prefix(':')?.len();
            Some(start)
        };
        let mut lines = self.0.lines();
        let found = lines.find_map(|line| Some(&line[value(line)?..]))?.trim();
        (!found.is_empty()).then_some(found)
    }

    /// A field that is a number.
    pub(crate) fn number<N: FromStr>(&self, name: &str) -> Option<N> {
        self.text(name)?.parse().ok()
    }

    /// Part of a field such as `slave0:ip=10.0.0.7,port=6379,lag=1`.
    pub(crate) fn part<'i>(field: &'i str, name: &str) -> Option<&'i str> {
        let mut parts = field.split(',');
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let info = Info::new("# Memory\r\nused_memory:7\r\nused_memory_rss:9\r\nempty:\r\n");
        assert_eq!(info.number("used_memory"), Some(7));
        assert_eq!(info.number("used_memory_rss"), Some(9));
        assert_eq!(info.number::<u64>("memory"), None);
        assert_eq!(info.text("empty"), None);
        assert_eq!(Info::default().text("used_memory"), None);
        assert_eq!(Info::part("ip=10.0.0.7,port=6379", "port"), Some("6379"));
        assert_eq!(Info::part("ip=10.0.0.7,port=6379", "lag"), None);
    }
}

//! The figures of a turn, of tasks in this process or of a peer's program.

use std::time::Duration;

use serde_json::Value;

/// The figures of one turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tally {
    /// The actual length of the turn.
    pub(crate) length: Duration,
    /// Acquires that were followed by a release.
    pub(crate) pairs: u64,
    /// Acquires by a contender other than the previous holder.
    pub(crate) handovers: u64,
    /// Of all waits, including those that were not over at the end.
    pub(crate) mean_wait: Duration,
    pub(crate) longest_wait: Duration,
    /// How long a lock was held on average: the timers of contenders are late by different
    /// amounts.
    pub(crate) held: Duration,
    /// Acquires that gave up, and releases that failed. They do not end the wait.
    pub(crate) errors: u64,
}

impl Tally {
    pub(crate) fn pairs_per_s(&self) -> f64 {
        self.pairs as f64 / self.length.as_secs_f64()
    }

    pub(crate) fn handovers_per_s(&self) -> f64 {
        self.handovers as f64 / self.length.as_secs_f64()
    }

    /// Parses the line that a peer's program prints.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(line.trim()).map_err(|error| format!("{error}: {line:?}"))?;
        let count = |field: &str| {
            let count = value[field].as_u64();
            count.ok_or_else(|| format!("no count {field:?} in {line:?}"))
        };
        let ms = |field: &str| {
            let ms = value[field].as_f64();
            ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
                .ok_or_else(|| format!("no time {field:?} in {line:?}"))
        };
        let length = ms("length_ms")?;
        if length.is_zero() {
            return Err(format!("a turn of no length: {line:?}"));
        }
        Ok(Self {
            length,
            pairs: count("pairs")?,
            handovers: count("handovers")?,
            mean_wait: ms("mean_wait_ms")?,
            longest_wait: ms("longest_wait_ms")?,
            held: ms("held_ms")?,
            errors: count("errors")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_peers_are_read_or_refused() {
        let line = r#"{"length_ms":2000,"pairs":9,"handovers":8,"mean_wait_ms":1.5,
            "longest_wait_ms":20,"held_ms":1.1,"errors":0}"#;
        let tally = Tally::parse(line).unwrap();
        assert_eq!((tally.pairs, tally.handovers_per_s()), (9, 4.0));
        assert_eq!(tally.longest_wait, Duration::from_millis(20));
        assert!(Tally::parse("Traceback").is_err());
        assert!(Tally::parse(&line.replace("pairs", "sets")).is_err());
        assert!(Tally::parse(&line.replace("2000", "0")).is_err());
        assert!(Tally::parse(&line.replace("1.5", "-1")).is_err());
    }
}

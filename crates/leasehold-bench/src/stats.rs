//! Medians and spreads.

use std::time::Duration;

/// The median of some values and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }
}

/// The smallest value that at least `percent` of the values do not exceed (nearest rank). `None`
/// if there are no values.
pub(crate) fn percentile(values: &[Duration], percent: f64) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50.0), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&values, 99.0), Some(Duration::from_millis(198)));
        assert_eq!(
            percentile(&values[..1], 99.0),
            Some(Duration::from_millis(200))
        );
        assert_eq!(percentile(&[], 50.0), None);
    }
}

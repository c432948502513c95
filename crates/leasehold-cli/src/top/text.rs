//! Text that fits into a column of the screen.

use std::borrow::Cow;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::report::{short, visible};

/// The mark of a text that was cut.
const CUT: char = '…';

/// Cuts a text to a number of columns.
pub(super) fn fit(text: &str, width: usize) -> Cow<'_, str> {
    let text = visible(text);
    if text.width() <= width {
        return text;
    }
    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        // The mark needs a column.
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        cut.push(c);
    }
    if width > 0 {
        cut.push(CUT);
    }
    cut.into()
}

/// Cuts the first of two texts, so that the second stays visible as long as there is space.
pub(super) fn fit_both(first: &str, second: &str, width: usize) -> String {
    /// How much stays of the first.
    const LEAST: usize = 8;
    let second = visible(second);
    let space = width
        .saturating_sub(second.width())
        .max(LEAST.min(first.width()));
    fit(&format!("{}{second}", fit(first, space)), width).into_owned()
}

/// A duration with at most two units, or with one if that does not fit.
pub(super) fn duration(time: Duration, width: usize) -> String {
    let text = short(time);
    match text.split_once(' ') {
        Some((first, _)) if text.len() > width => first.to_owned(),
        _ => text,
    }
}

/// `1 lock`, `2 locks`.
pub(super) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_columns() {
        for (text, width, expected) in [
            ("orders", 6, "orders"),
            ("orders", 5, "orde…"),
            ("orders", 1, "…"),
            ("orders", 0, ""),
            // Two columns for each character: the third does not fit beside the mark.
            ("注文注文", 8, "注文注文"),
            ("注文注文", 6, "注文…"),
            ("注文注文", 5, "注文…"),
            ("e\u{301}te\u{301}", 3, "e\u{301}te\u{301}"),
        ] {
            let cut = fit(text, width);
            assert_eq!(cut, expected, "{text} {width}");
            assert!(cut.width() <= width, "{text} {width}");
        }
    }

    #[test]
    fn the_second_text_stays() {
        assert_eq!(fit_both("web-1", " pid 17", 20), "web-1 pid 17");
        assert_eq!(
            fit_both("host.example.com", " pid 17", 20),
            "host.example… pid 17"
        );
        // Not more than all of the first text is lost.
        assert_eq!(
            fit_both("host.example.com", " (a long label)", 15),
            "host.ex… (a lo…"
        );
        assert_eq!(fit_both("a", " (a long label)", 6), "a (a …");
    }

    #[test]
    fn what_is_hidden_is_escaped() {
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(visible("\u{1b}[2J"), "\\u{1b}[2J");
        assert_eq!(visible("naïve 注文"), "naïve 注文");
    }

    #[test]
    fn durations_lose_their_second_unit() {
        let time = Duration::from_secs(12 * 60 + 30);
        assert_eq!(duration(time, 7), "12m 30s");
        assert_eq!(duration(time, 6), "12m");
        assert_eq!(duration(Duration::from_secs(100 * 86_400), 7), "100days");
    }
}

//! What is drawn over the list: details, confirmation, help and notices.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::{MOST_PROBLEMS, Theme, age_text, last, wrapped};
use crate::args::Format;
use crate::break_lock::{consequences, question};
use crate::report::visible;
use crate::show::{NotVoting, kind_and_state, page};
use crate::subject::Kind;
use crate::top::app::{App, Confirm, Details, Mode};
use crate::top::text::fit;

const HELP: [(&str, &str); 13] = [
    (
        "Up Down k j",
        "select a lock; also PgUp, PgDn, Home (g), End (G)",
    ),
    (
        "Enter d",
        "details of the selected lock, as `leasehold show`",
    ),
    ("b", "break the selected lock, after confirmation"),
    (
        "/",
        "filter: a part of the name or holder, or a pattern with * or ?",
    ),
    ("Esc", "clear the filter; close what is open"),
    ("s", "sort by age, name, waiters, or time left"),
    ("S", "reverse the order"),
    ("p Space", "pause, or go on"),
    ("r", "refresh now"),
    ("+ -", "a longer or shorter interval"),
    ("Ctrl-L", "draw the screen again"),
    ("Ctrl-Z", "stop; `fg` continues"),
    ("q Ctrl-C", "quit"),
];

/// The space for what the user types in a dialog, with the cursor.
const INPUT: usize = 13;

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: Theme, now: Instant) {
    let width = inner_width(frame.area());
    let not_voting = not_voting(app);
    let problems = app.problems();
    match &mut app.mode {
        Mode::List | Mode::Filter => {}
        Mode::Details(details) => {
            let age = now.saturating_duration_since(details.at);
            draw_details(frame, details, (age, &problems), &not_voting, theme);
        }
        Mode::Confirm(confirm) => {
            let age = now.saturating_duration_since(confirm.at);
            draw_confirm(frame, confirm, (age, &problems), theme);
        }
        Mode::Help(first) => {
            let lines = HELP
                .iter()
                .flat_map(|(keys, what)| help(keys, what, width, theme));
            let lines: Vec<_> = lines.collect();
            let hidden = lines.len().saturating_sub(most_lines(frame));
            *first = (*first).min(hidden);
            let below = if hidden > 0 { " Up Down:scroll " } else { "" };
            draw_box(frame, ("keys", below), lines, *first, Style::new());
        }
    }
    if let Some(notice) = &app.notice {
        let lines = notice.iter().flat_map(|text| wrapped(text, width));
        let lines = cut(lines.collect(), most_lines(frame), width);
        draw_box(frame, ("leasehold", " any key "), lines, 0, Style::new());
    }
}

/// The nodes that do not vote yet, as `show` prints them.
fn not_voting(app: &App) -> NotVoting {
    let waits = app.nodes.iter().filter_map(|node| {
        let votes_in = node.answer.as_ref().ok()?.votes_in?;
        (votes_in > Duration::ZERO).then(|| (node.node.clone(), votes_in))
    });
    waits.collect()
}

fn inner_width(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(4))
}

/// How many lines a box can have.
fn most_lines(frame: &Frame<'_>) -> usize {
    usize::from(frame.area().height.saturating_sub(2))
}

/// The keys and what they do, in lines whose second column is wrapped.
fn help(keys: &str, what: &str, width: usize, theme: Theme) -> Vec<Line<'static>> {
    const INDENT: usize = 13;
    let lines = wrapped(what, width.saturating_sub(INDENT)).into_iter();
    let line = |(number, what): (usize, Line<'_>)| {
        let keys = if number == 0 { keys } else { "" };
        Line::from(vec![
            Span::styled(format!("{keys:<12} "), theme.header()),
            Span::raw(what.to_string()),
        ])
    };
    lines.enumerate().map(line).collect()
}

/// Everything that `show` prints about a lock. The data are of this age, and these are the problems.
fn draw_details(
    frame: &mut Frame<'_>,
    details: &mut Details,
    (age, problems): (Duration, &[String]),
    not_voting: &NotVoting,
    theme: Theme,
) {
    let area = frame.area();
    let row = &details.row;
    let width = inner_width(area);
    let mut lines = Vec::new();
    for problem in problems.iter().take(MOST_PROBLEMS) {
        let problem = wrapped(problem, width).into_iter();
        lines.extend(problem.map(|line| Line::styled(format!(" {line}"), theme.warning())));
    }
    if row.subject.kind != Kind::Lock {
        // What the key below belongs to.
        let kind = kind_and_state(&row.subject, &row.inspection);
        lines.push(Line::raw(format!(" {}: {kind}", row.subject.name)));
    }
    if !details.is_held {
        let text = " no longer held; this is what was seen last";
        lines.push(Line::styled(
            text,
            Style::new().add_modifier(Modifier::BOLD),
        ));
    }
    for line in page(&row.after(age), Format::Wide, not_voting).lines() {
        lines.extend(hanging(&visible(line), width));
    }
    let keys = " Esc:back b:break Up Down:scroll ";
    let height = usize::from(area.height.saturating_sub(3));
    details.scroll = details.scroll.min(lines.len().saturating_sub(height));
    let title = format!(" details, {} ", age_text(age));
    let block = Block::bordered().title(title).title_bottom(keys);
    let lines: Vec<_> = lines.into_iter().skip(details.scroll).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A line of a page, whose continuation lines are indented as the second column is.
fn hanging(line: &str, width: usize) -> Vec<Line<'static>> {
    /// ` waiters  `.
    const INDENT: usize = 10;
    let (key, rest) = line.trim_start().split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim_start();
    let mut lines = wrapped(rest, width.saturating_sub(INDENT).max(1)).into_iter();
    let first = lines.next().unwrap_or_default();
    let first = Line::raw(format!(" {key:<8} {first}"));
    let rest = lines.map(|line| Line::raw(format!("{:INDENT$}{line}", "")));
    [first].into_iter().chain(rest).collect()
}

/// The question is always visible, and what the user types. What is above it is shortened.
fn draw_confirm(
    frame: &mut Frame<'_>,
    confirm: &Confirm,
    (age, problems): (Duration, &[String]),
    theme: Theme,
) {
    let width = inner_width(frame.area());
    let Some(lock) = confirm.choices.get(confirm.chosen) else {
        return;
    };
    let text = format!("{} Type y and press Enter (Esc: no): ", question(lock));
    let mut asked = wrapped(&text, width);
    if asked
        .last()
        .is_some_and(|line| line.width() + INPUT > width)
    {
        asked.push(Line::default());
    }
    if let Some(line) = asked.last_mut() {
        // The end of a long text is what the user types.
        let input = visible(&confirm.input);
        line.push_span(Span::raw(last(&input, INPUT - 1).to_owned()));
        line.push_span(Span::styled(" ", theme.selected()));
    }
    let mut lines = Vec::new();
    if let Some(problem) = problems.first() {
        let problem = fit(problem, width).into_owned();
        lines.push(Line::styled(problem, theme.warning()));
    }
    let count = confirm.choices.len();
    if count > 1 {
        let number = confirm.chosen + 1;
        let text = format!("Reader {number} of {count} (Tab: the next one)");
        lines.push(Line::styled(
            text,
            Style::new().add_modifier(Modifier::BOLD),
        ));
    }
    let mut lock = lock.clone();
    lock.remaining = lock.remaining.map(|left| left.saturating_sub(age));
    let text = visible_lines(&consequences(&confirm.row.inspection, &lock));
    lines.extend(text.iter().flat_map(|line| wrapped(line, width)));
    lines.push(Line::raw(""));
    let mut lines = cut(lines, most_lines(frame).saturating_sub(asked.len()), width);
    lines.append(&mut asked);
    let title = format!("break {}", confirm.row.title());
    let below = format!(" {} ", age_text(age));
    draw_box(frame, (&title, &below), lines, 0, theme.bad());
}

/// The first lines, with a mark if that is not all.
fn cut(mut lines: Vec<Line<'static>>, most: usize, width: usize) -> Vec<Line<'static>> {
    let is_cut = lines[most.min(lines.len())..]
        .iter()
        .any(|line| line.width() > 0);
    lines.truncate(most);
    if let Some(line) = lines.last_mut().filter(|_| is_cut) {
        let text = fit(&format!("{line} …"), width).into_owned();
        *line = Line::styled(text, line.style);
    }
    lines
}

/// Each line of a text, complete sentences.
fn visible_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| visible(line).into_owned())
        .collect();
    if let Some(last) = lines.last_mut() {
        last.push('.');
    }
    lines
}

/// A box in the middle of the screen, whose first lines are skipped. The second title is at the right
/// of its lower border.
fn draw_box(
    frame: &mut Frame<'_>,
    (title, below): (&str, &str),
    lines: Vec<Line<'_>>,
    skipped: usize,
    border: Style,
) {
    let area = frame.area();
    let widest = lines.iter().map(Line::width).max().unwrap_or(0);
    let title = format!(" {} ", fit(title, inner_width(area)));
    let width = u16::try_from(widest.max(title.len()) + 4).unwrap_or(u16::MAX);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let (width, height) = (width.min(area.width), height.min(area.height));
    let area = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    let padding = ratatui::widgets::Padding::horizontal(1);
    let block = Block::bordered()
        .title(title)
        .title_bottom(Line::raw(below).right_aligned())
        .border_style(border)
        .padding(padding);
    let lines: Vec<_> = lines.into_iter().skip(skipped).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

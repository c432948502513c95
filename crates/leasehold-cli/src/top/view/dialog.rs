//! What is drawn over the list: details, confirmation, help and notices.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::{Theme, wrapped};
use crate::args::Format;
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

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: Theme) {
    let area = frame.area();
    let not_voting = not_voting(app);
    match &mut app.mode {
        Mode::List | Mode::Filter => {}
        Mode::Details(details) => draw_details(frame, details, &not_voting),
        Mode::Confirm(confirm) => draw_confirm(frame, confirm, theme),
        Mode::Help => {
            let lines = HELP.iter().map(|(keys, what)| {
                Line::from(vec![
                    Span::styled(format!("{keys:<12} "), theme.header()),
                    Span::raw(*what),
                ])
            });
            draw_box(frame, "keys", lines.collect(), Style::new());
        }
    }
    if let Some(notice) = &app.notice {
        let width = inner_width(area);
        let lines = notice.iter().flat_map(|text| wrapped(text, width));
        let close = [Line::raw(""), Line::raw("(any key)")];
        draw_box(
            frame,
            "leasehold",
            lines.chain(close).collect(),
            Style::new(),
        );
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

/// Everything that `show` prints about a lock.
fn draw_details(frame: &mut Frame<'_>, details: &mut Details, not_voting: &NotVoting) {
    let area = frame.area();
    let row = &details.row;
    let mut lines = Vec::new();
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
    let width = inner_width(area);
    for line in page(&row.inspection, Format::Wide, not_voting).lines() {
        lines.extend(hanging(&visible(line), width));
    }
    let keys = " Esc:back b:break Up Down:scroll ";
    let height = usize::from(area.height.saturating_sub(3));
    details.scroll = details.scroll.min(lines.len().saturating_sub(height));
    let block = Block::bordered().title(" details ").title_bottom(keys);
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

fn draw_confirm(frame: &mut Frame<'_>, confirm: &Confirm, theme: Theme) {
    let width = inner_width(frame.area());
    let mut lines = Vec::new();
    let count = confirm.choices.len();
    if count > 1 {
        let number = confirm.chosen + 1;
        let text = format!("Reader {number} of {count} (Tab: the next one)");
        lines.push(Line::styled(
            text,
            Style::new().add_modifier(Modifier::BOLD),
        ));
    }
    if let Some((_, text)) = confirm.choices.get(confirm.chosen) {
        let text = visible_lines(text);
        lines.extend(text.iter().flat_map(|line| wrapped(line, width)));
    }
    lines.push(Line::raw(""));
    lines.push(Line::from(vec![
        Span::raw("Break the lock? Type y and press Enter (Esc: no): "),
        Span::raw(fit(&confirm.input, 20).into_owned()),
        Span::styled(" ", theme.selected()),
    ]));
    let title = format!("break {}", confirm.title);
    draw_box(frame, &title, lines, theme.bad());
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

/// A box in the middle of the screen.
fn draw_box(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>, border: Style) {
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
        .border_style(border)
        .padding(padding);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

//! Draws the screen.

mod dialog;
mod nodes;

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::app::{App, Mode};
use super::columns::{Column, MIN_HEIGHT, MIN_WIDTH, columns};
use super::renewal::Renews;
use super::row::{Order, Row};
use super::text::{count, duration, fit, fit_both};
use crate::report::{exact, short, visible};
use crate::show::left_text;

/// How many lines of the table there are at least: with less space, the nodes get one line.
const LEAST_ROWS: usize = 6;
/// How many lines the problems may take.
const MOST_PROBLEMS: usize = 2;

/// How things are emphasised. Without colours there are bold and inverse texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    has_colours: bool,
}

impl Theme {
    /// No colours if the user has set `NO_COLOR`.
    pub(super) fn of_environment() -> Self {
        let no_color = std::env::var_os("NO_COLOR");
        Self {
            has_colours: no_color.is_none_or(|value| value.is_empty()),
        }
    }

    fn colour(self, colour: Color) -> Style {
        match self.has_colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn good(self) -> Style {
        self.colour(Color::Green)
    }

    fn warning(self) -> Style {
        self.colour(Color::Yellow)
    }

    fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn header(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: &Theme, now: Instant) {
    let area = frame.area();
    app.resize(area.width, area.height);
    if app.is_too_small {
        let text = format!(
            "{} x {} is too small: leasehold top needs {MIN_WIDTH} x {MIN_HEIGHT}. q quits.",
            area.width, area.height
        );
        let lines = wrapped(&text, usize::from(area.width));
        frame.render_widget(Paragraph::new(lines), area);
        return;
    }
    let height = usize::from(area.height);
    let mut problems = app.problems();
    problems.truncate(MOST_PROBLEMS);
    // The first line, the header of the table, and the last line.
    let others = 3 + problems.len();
    let nodes = nodes::lines(
        app,
        *theme,
        area.width,
        height.saturating_sub(others + LEAST_ROWS),
    );
    let [top, above, table, below, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::try_from(nodes.len()).unwrap_or(u16::MAX)),
        Constraint::Min(2),
        Constraint::Length(u16::try_from(problems.len()).unwrap_or(0)),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title(app, *theme, area.width, now), top);
    frame.render_widget(Paragraph::new(nodes), above);
    app.scroll(usize::from(table.height).saturating_sub(1));
    locks(frame, app, *theme, table);
    let width = usize::from(area.width);
    let problems: Vec<_> = problems
        .iter()
        .map(|text| Line::styled(fit(text, width).into_owned(), theme.warning()))
        .collect();
    frame.render_widget(Paragraph::new(problems), below);
    frame.render_widget(footer(app, *theme, width), bottom);
    dialog::draw(frame, app, *theme, now);
}

/// A text in lines of at most this width, broken at spaces where possible.
fn wrapped(text: &str, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fit(word, width).into_owned()),
        }
    }
    lines.into_iter().map(Line::raw).collect()
}

/// The first line: what is shown, and how old it is.
fn title(app: &App, theme: Theme, width: u16, now: Instant) -> Paragraph<'static> {
    let (shown, all) = (app.shown.len(), app.rows.len());
    let locks = match shown == all {
        true => count(all, "lock"),
        false => format!("{shown} of {}", count(all, "lock")),
    };
    let waiters = count(app.waiters(), "waiter");
    let age = app.read_at.map(|at| now.saturating_duration_since(at));
    let pace = match app.is_paused {
        true => "paused".to_owned(),
        false => format!("every {}", exact(app.interval)),
    };
    let is_old = age.is_some_and(|age| age > app.interval * 2 + Duration::from_secs(3));
    let data = age.map_or("no data yet".to_owned(), age_text);
    let right = format!("{pace}, {data}");
    let left = format!("leasehold top  {locks}, {waiters}");
    let left = match left.width() + right.width() < usize::from(width) {
        true => left,
        false => locks,
    };
    let space = usize::from(width).saturating_sub(left.width() + right.width());
    let style = match app.is_paused || is_old || age.is_none() {
        true => theme.warning().add_modifier(Modifier::BOLD),
        false => Style::new(),
    };
    Paragraph::new(Line::from(vec![
        Span::styled(left, Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(" ".repeat(space.max(1))),
        Span::styled(right, style),
    ]))
}

fn age_text(age: Duration) -> String {
    // Whole seconds, so that the line is calm.
    format!("data {} old", short(Duration::from_secs(age.as_secs())))
}

/// The table of locks. Only the lines that are visible are made.
fn locks(frame: &mut Frame<'_>, app: &App, theme: Theme, area: Rect) {
    let columns = columns(area.width, nodes::count(app));
    let header = columns.iter().map(|(column, _)| {
        let mark = match (is_sorted_by(*column, app.order), app.is_reversed) {
            (false, _) => "",
            (true, false) => "↓",
            (true, true) => "↑",
        };
        Cell::new(format!("{}{mark}", column.header()))
    });
    let header = Cells::new(header).style(theme.header());
    let lines = app.shown.iter().enumerate().skip(app.top).take(app.page);
    let rows = lines.map(|(line, &index)| {
        let row = &app.rows[index];
        let cells = columns
            .iter()
            .map(|(column, width)| cell(*column, row, app, theme, usize::from(*width)));
        Cells::new(cells).style(match line == app.cursor {
            true => theme.selected(),
            false => Style::new(),
        })
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
    if app.shown.is_empty() && app.read_at.is_some() && area.height > 1 {
        let text = match app.filter.text() {
            "" => "no locks are held".to_owned(),
            text => format!("no held lock matches `{}`", visible(text)),
        };
        let area = Rect {
            y: area.y + 1,
            height: 1,
            ..area
        };
        frame.render_widget(fit(&text, usize::from(area.width)).into_owned(), area);
    }
}

fn is_sorted_by(column: Column, order: Order) -> bool {
    matches!(
        (column, order),
        (Column::Name, Order::Name)
            | (Column::Held, Order::Age)
            | (Column::Waiters, Order::Waiters)
            | (Column::Left, Order::Left)
    )
}

fn cell(column: Column, row: &Row, app: &App, theme: Theme, width: usize) -> Cell<'static> {
    let unknown = || "-".to_owned();
    match column {
        Column::Name => {
            let (name, remark) = row.name();
            Cell::new(fit_both(&name, &remark, width))
        }
        Column::Holder => Cell::new(fit_both(&row.host, &row.process, width)),
        Column::Held => Cell::new(row.age.map_or_else(unknown, |age| duration(age, width))),
        Column::Left => Cell::new(match row.left {
            Some(left) => duration(left, width),
            None => left_text(None),
        }),
        Column::Renews => match app.renewals.of(row) {
            Renews::Yes => Cell::new("yes").style(theme.good()),
            Renews::No => Cell::new("no").style(theme.warning()),
            Renews::Unknown => Cell::new("-"),
        },
        Column::Waiters => {
            let waiters = row
                .waiters
                .map_or_else(unknown, |waiters| waiters.to_string());
            Cell::new(fit(&waiters, width).into_owned())
        }
        Column::Votes => {
            let text = row.votes();
            match row.inspection.lock().is_some() {
                true => Cell::new(text),
                false => Cell::new(text).style(theme.bad()),
            }
        }
        Column::Marks => Cell::new(row.marks()),
        Column::Token => Cell::new(row.token.map_or_else(unknown, |token| token.to_string())),
    }
}

/// The last line: the filter, or the most important keys.
fn footer(app: &App, theme: Theme, width: usize) -> Paragraph<'static> {
    let filter = visible(app.filter.text());
    if let Mode::Filter = app.mode {
        // The end of a long text is what the user types.
        let text = last(&format!("/{filter}"), width.saturating_sub(1)).to_owned();
        let cursor = Span::styled(" ", theme.selected());
        return Paragraph::new(Line::from(vec![Span::raw(text), cursor]));
    }
    if app.is_busy {
        return Paragraph::new("breaking the lock...");
    }
    let mut text = String::new();
    if !filter.is_empty() {
        text += &format!("filter: {filter} (Esc clears)  ");
    }
    let reversed = if app.is_reversed { ", reversed" } else { "" };
    let order = app.order.label();
    text +=
        &format!("?:help q:quit s:sort ({order}{reversed}) /:filter Enter:details b:break p:pause");
    Paragraph::new(fit(&text, width).into_owned())
}

/// The end of a text, as far as it fits.
fn last(text: &str, width: usize) -> &str {
    let (mut start, mut left) = (text.len(), width);
    for (at, c) in text.char_indices().rev() {
        let Some(rest) = left.checked_sub(c.width().unwrap_or(0)) else {
            break;
        };
        (start, left) = (at, rest);
    }
    &text[start..]
}

#[cfg(test)]
mod tests;

//! What the screen shows, and what a key does. Reads no clock and no terminal.

use std::time::{Duration, Instant};

use leasehold::doctor::NodeState;
use leasehold::{Name, Sighting};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::{MIN_HEIGHT, MIN_WIDTH};
use super::renewal::Renewals;
use super::row::{Filter, Order, Row};
use crate::report::visible;
use crate::show::readers;
use crate::subject::Kind;

/// The intervals that `+` and `-` choose from, in milliseconds.
const INTERVALS_MS: [u64; 10] = [
    100, 250, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000,
];

/// News for the screen.
#[derive(Debug)]
pub(super) enum Update {
    Locks(Result<Locks, String>),
    Nodes(Result<Vec<NodeState>, String>),
    /// The messages about a lock that was broken, or why it was not.
    Broken(Result<Vec<String>, String>),
}

/// The result of a refresh.
#[derive(Debug)]
pub(super) struct Locks {
    pub(super) rows: Vec<Row>,
    /// The nodes that did not answer, and why.
    pub(super) missing: Vec<(String, String)>,
    pub(super) at: Instant,
    /// How long the refresh took.
    pub(super) took: Duration,
}

/// What is to be done after a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Quit,
    /// Stop this process until it is continued (Ctrl-Z).
    Suspend,
    /// Draw everything again: something else has written to the terminal.
    Redraw,
    /// The interval or the pause has changed.
    Pace,
    /// Refresh now.
    Refresh,
    Break(Target),
}

/// Whose lock is to be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: Name,
    pub(super) permit: Option<u32>,
    pub(super) owner: String,
}

/// What the keys do at the moment.
#[derive(Debug)]
pub(super) enum Mode {
    List,
    /// The user edits the filter.
    Filter,
    Details(Details),
    Confirm(Confirm),
    /// The keys, from this line on.
    Help(usize),
}

/// The page about one lock.
#[derive(Debug)]
pub(super) struct Details {
    /// The lock as it was seen last.
    pub(super) row: Row,
    /// When that was.
    pub(super) at: Instant,
    pub(super) is_held: bool,
    /// The first line that is shown.
    pub(super) scroll: usize,
}

/// The question whether a lock is to be broken.
#[derive(Debug)]
pub(super) struct Confirm {
    pub(super) row: Row,
    /// The holder, or each of several readers, as they were seen last.
    pub(super) choices: Vec<Sighting>,
    /// When that was.
    pub(super) at: Instant,
    pub(super) chosen: usize,
    pub(super) input: String,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct App {
    pub(super) rows: Vec<Row>,
    /// The rows that the filter lets through, sorted.
    pub(super) shown: Vec<usize>,
    /// The selected line of those that are shown.
    pub(super) cursor: usize,
    /// The first line of the table that is visible.
    pub(super) top: usize,
    /// How many lines of the table are visible.
    pub(super) page: usize,
    pub(super) nodes: Vec<NodeState>,
    pub(super) renewals: Renewals,
    /// When the locks were read.
    pub(super) read_at: Option<Instant>,
    /// Why the locks could not be read in the last refresh.
    locks_failure: Vec<String>,
    /// Why the states of the nodes could not be read: those that are shown are older.
    nodes_failure: Vec<String>,
    /// The nodes that did not list their locks, and why.
    pub(super) missing: Vec<(String, String)>,
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    pub(super) filter: Filter,
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    pub(super) mode: Mode,
    /// What is shown over everything else until a key is pressed.
    pub(super) notice: Option<Vec<String>>,
    /// A lock is being broken.
    pub(super) is_busy: bool,
    /// Nothing but a message fits on the screen.
    pub(super) is_too_small: bool,
}

impl App {
    pub(super) fn new(interval: Duration, filter: Filter) -> Self {
        Self {
            rows: Vec::new(),
            shown: Vec::new(),
            cursor: 0,
            top: 0,
            page: 1,
            nodes: Vec::new(),
            renewals: Renewals::default(),
            read_at: None,
            locks_failure: Vec::new(),
            nodes_failure: Vec::new(),
            missing: Vec::new(),
            order: Order::Age,
            is_reversed: false,
            filter,
            interval,
            is_paused: false,
            mode: Mode::List,
            notice: None,
            is_busy: false,
            is_too_small: false,
        }
    }

    /// Takes in the size of the screen. On one that is too small, the user would confirm what is not
    /// visible.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        self.is_too_small = width < MIN_WIDTH || height < MIN_HEIGHT;
        if self.is_too_small && matches!(self.mode, Mode::Confirm(_)) {
            self.mode = Mode::List;
        }
    }

    /// The selected lock.
    pub(super) fn selected(&self) -> Option<&Row> {
        self.rows.get(*self.shown.get(self.cursor)?)
    }

    /// All waiters of the locks that are shown. The permits of a semaphore have one line together.
    pub(super) fn waiters(&self) -> usize {
        let mut last = None;
        let mut sum = 0;
        let mut rows: Vec<_> = self.shown.iter().map(|&index| &self.rows[index]).collect();
        rows.sort_by(|one, other| one.subject.cmp(&other.subject));
        for row in rows {
            let is_permit = matches!(row.subject.kind, Kind::Permit(_));
            let line = is_permit.then_some(&row.subject.name);
            if line.is_none() || line != last {
                sum += row.waiters.unwrap_or(0);
            }
            last = line;
        }
        sum
    }

    /// What is wrong, apart from what the states of the nodes show.
    pub(super) fn problems(&self) -> Vec<String> {
        let is_shown_down = |node: &str| {
            let mut nodes = self.nodes.iter();
            nodes.any(|state| state.node == node && state.answer.is_err())
        };
        let missing = self.missing.iter();
        let missing = missing.filter(|(node, _)| !is_shown_down(node));
        let missing = missing.map(|(node, why)| format!("{node} did not list its locks ({why})"));
        let mut problems = self.locks_failure.clone();
        // Both fail for the same reason if the configuration cannot be read.
        if self.nodes_failure != problems {
            problems.extend_from_slice(&self.nodes_failure);
        }
        problems.extend(missing);
        problems
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Locks(Ok(locks)) => self.take_locks(locks),
            Update::Locks(Err(why)) => self.locks_failure = lines(&why),
            Update::Nodes(Ok(nodes)) => {
                self.nodes = nodes;
                self.nodes_failure.clear();
            }
            Update::Nodes(Err(why)) => self.nodes_failure = lines(&why),
            Update::Broken(result) => {
                self.is_busy = false;
                let messages = result.unwrap_or_else(|why| vec![why]);
                self.notice = Some(messages.iter().flat_map(|text| lines(text)).collect());
            }
        }
    }

    fn take_locks(&mut self, locks: Locks) {
        self.renewals.observe(&locks.rows, locks.at, locks.took);
        let selected = self.selected().map(|row| row.key().clone());
        self.rows = locks.rows;
        self.read_at = Some(locks.at);
        self.locks_failure.clear();
        self.missing = locks.missing;
        self.arrange(selected.as_ref());
        let find = |old: &Row| self.rows.iter().find(|row| row.key() == old.key());
        match &mut self.mode {
            Mode::Details(details) => match find(&details.row) {
                Some(row) => {
                    (details.row, details.at, details.is_held) = (row.clone(), locks.at, true);
                }
                None => details.is_held = false,
            },
            Mode::Confirm(confirm) => {
                if let Some(row) = find(&confirm.row) {
                    confirm.update(row, locks.at);
                }
            }
            _ => {}
        }
    }

    /// Filters and sorts the rows. The lock with this key stays selected, or the line.
    fn arrange(&mut self, selected: Option<&Name>) {
        let all = 0..self.rows.len();
        self.shown = all
            .filter(|&index| self.filter.matches(&self.rows[index]))
            .collect();
        let (rows, order) = (&self.rows, self.order);
        self.shown
            .sort_by(|&one, &other| order.compare(&rows[one], &rows[other]));
        if self.is_reversed {
            self.shown.reverse();
        }
        let mut shown = self.shown.iter();
        let same = selected.and_then(|key| shown.position(|&index| rows[index].key() == key));
        self.select(same.unwrap_or(self.cursor));
    }

    /// Arranges the rows anew, and keeps the selected lock.
    fn rearrange(&mut self) {
        let selected = self.selected().map(|row| row.key().clone());
        self.arrange(selected.as_ref());
    }

    fn select(&mut self, line: usize) {
        self.cursor = line.min(self.shown.len().saturating_sub(1));
        self.scroll(self.page);
    }

    /// Makes the selected line visible among so many lines.
    pub(super) fn scroll(&mut self, page: usize) {
        self.page = page.max(1);
        let last = self.shown.len().saturating_sub(self.page);
        let least = (self.cursor + 1).saturating_sub(self.page);
        self.top = self.top.clamp(least, self.cursor.max(least)).min(last);
    }

    /// Takes in a text that was pasted. It is never a command: it could contain the keys that break
    /// a lock.
    pub(super) fn paste(&mut self, text: &str) {
        if let Mode::Filter = self.mode
            && !self.is_too_small
        {
            let text: String = text.chars().filter(|c| !c.is_control()).collect();
            self.set_filter(format!("{}{text}", self.filter.text()));
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Effect {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Effect::Quit,
            KeyCode::Char('z') if control => return Effect::Suspend,
            KeyCode::Char('q') if self.is_too_small && !control => return Effect::Quit,
            _ if self.is_too_small => return Effect::Nothing,
            KeyCode::Char('l') if control => return Effect::Redraw,
            _ => {}
        }
        if self.notice.take().is_some() {
            return Effect::Nothing;
        }
        match &mut self.mode {
            Mode::List => self.list_key(key.code, control),
            Mode::Filter => self.filter_key(key.code, control),
            Mode::Details(_) => self.details_key(key.code),
            Mode::Confirm(_) => self.confirm_key(key.code, control),
            Mode::Help(first) => {
                if !scroll(first, key.code, self.page) {
                    self.mode = Mode::List;
                }
                Effect::Nothing
            }
        }
    }

    fn list_key(&mut self, code: KeyCode, control: bool) -> Effect {
        let page = self.page;
        match code {
            KeyCode::Char('f') if control => self.select(self.cursor.saturating_add(page)),
            KeyCode::Char('b') if control => self.select(self.cursor.saturating_sub(page)),
            _ if control => {}
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.cursor.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.cursor.saturating_add(1)),
            KeyCode::PageUp => self.select(self.cursor.saturating_sub(page)),
            KeyCode::PageDown => self.select(self.cursor.saturating_add(page)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Enter | KeyCode::Char('d') => self.open_details(),
            KeyCode::Char('b') => self.ask_to_break(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.is_reversed = false;
                self.rearrange();
            }
            KeyCode::Char('S') => {
                self.is_reversed = !self.is_reversed;
                self.rearrange();
            }
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return Effect::Pace;
            }
            KeyCode::Char('+' | '=') => return self.set_interval(true),
            KeyCode::Char('-') => return self.set_interval(false),
            KeyCode::Char('r') => return Effect::Refresh,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help(0),
            _ => {}
        }
        Effect::Nothing
    }

    /// The next longer or shorter interval.
    fn set_interval(&mut self, is_longer: bool) -> Effect {
        let mut steps = INTERVALS_MS.map(Duration::from_millis).into_iter();
        let next = match is_longer {
            true => steps.find(|step| *step > self.interval),
            false => steps.rfind(|step| *step < self.interval),
        };
        let Some(next) = next else {
            return Effect::Nothing;
        };
        self.interval = next;
        Effect::Pace
    }

    fn set_filter(&mut self, text: String) {
        self.filter = Filter::new(text);
        self.rearrange();
    }

    fn filter_key(&mut self, code: KeyCode, control: bool) -> Effect {
        let mut text = self.filter.text().to_owned();
        match code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.mode = Mode::List;
                self.set_filter(String::new());
            }
            KeyCode::Backspace => {
                text.pop();
                self.set_filter(text);
            }
            KeyCode::Char('u') if control => self.set_filter(String::new()),
            KeyCode::Char(c) if !control => {
                text.push(c);
                self.set_filter(text);
            }
            KeyCode::Up => self.select(self.cursor.saturating_sub(1)),
            KeyCode::Down => self.select(self.cursor.saturating_add(1)),
            _ => {}
        }
        Effect::Nothing
    }

    fn open_details(&mut self) {
        if let (Some(row), Some(at)) = (self.selected().cloned(), self.read_at) {
            self.mode = Mode::Details(Details {
                row,
                at,
                is_held: true,
                scroll: 0,
            });
        }
    }

    fn details_key(&mut self, code: KeyCode) -> Effect {
        let page = self.page;
        let Mode::Details(details) = &mut self.mode else {
            return Effect::Nothing;
        };
        match code {
            _ if scroll(&mut details.scroll, code, page) => {}
            KeyCode::Char('b') => self.ask_to_break(),
            KeyCode::Char('r') => return Effect::Refresh,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | 'd') | KeyCode::Left => {
                self.mode = Mode::List;
            }
            _ => {}
        }
        Effect::Nothing
    }

    /// Asks whether the lock is to be broken that is selected, or whose details are shown.
    fn ask_to_break(&mut self) {
        let seen = match &self.mode {
            Mode::Details(details) => Some((&details.row, details.at)),
            _ => self.selected().zip(self.read_at),
        };
        let Some((row, at)) = seen else { return };
        if matches!(row.subject.kind, Kind::Collector | Kind::Party(_)) {
            self.notice = Some(vec![
                format!("{} cannot be broken.", row.title()),
                "It is not a lock of its own, but a part of a semaphore or a latch. It expires by \
                 itself."
                    .to_owned(),
            ]);
            return;
        }
        self.mode = Mode::Confirm(Confirm {
            choices: holders(row),
            row: row.clone(),
            at,
            chosen: 0,
            input: String::new(),
        });
    }

    fn confirm_key(&mut self, code: KeyCode, control: bool) -> Effect {
        let Mode::Confirm(confirm) = &mut self.mode else {
            return Effect::Nothing;
        };
        let count = confirm.choices.len().max(1);
        match code {
            KeyCode::Esc => self.mode = Mode::List,
            KeyCode::Down | KeyCode::Tab => confirm.chosen = (confirm.chosen + 1) % count,
            KeyCode::Up | KeyCode::BackTab => confirm.chosen = (confirm.chosen + count - 1) % count,
            KeyCode::Backspace => _ = confirm.input.pop(),
            KeyCode::Char(c) if !control => confirm.input.push(c),
            KeyCode::Enter => {
                let target = confirm.target();
                self.mode = Mode::List;
                match target {
                    Some(target) => {
                        self.is_busy = true;
                        return Effect::Break(target);
                    }
                    None => {
                        let text = "Not confirmed; nothing was changed.";
                        self.notice = Some(vec![text.to_owned()]);
                    }
                }
            }
            _ => {}
        }
        Effect::Nothing
    }
}

impl Confirm {
    /// Takes in a later look at the lock, if it still has the holders among which the user chooses.
    fn update(&mut self, row: &Row, at: Instant) {
        let now = holders(row);
        let same = |old: &Sighting| now.iter().find(|new| new.owner_id() == old.owner_id());
        let choices: Option<Vec<_>> = self.choices.iter().map(|old| same(old).cloned()).collect();
        if let Some(choices) = choices {
            (self.row, self.choices, self.at) = (row.clone(), choices, at);
        }
    }

    /// What is to be broken, if the user has confirmed it: with `y`, or with the name.
    fn target(&self) -> Option<Target> {
        let lock = self.choices.get(self.chosen)?;
        let name = &self.row.inspection.name;
        let input = self.input.trim();
        let is_name = !input.is_empty() && input == name.to_string();
        (is_name || matches!(input, "y" | "Y" | "yes")).then(|| Target {
            name: name.clone(),
            permit: self.row.inspection.permit,
            owner: lock.owner_id(),
        })
    }
}

/// The holder of a lock, or each of its readers.
fn holders(row: &Row) -> Vec<Sighting> {
    let mut holders = readers(&row.inspection);
    if holders.is_empty() {
        let of_row = |seen: &&Sighting| seen.owner_id() == row.owner;
        holders.extend(row.inspection.sightings().find(of_row));
    }
    holders.into_iter().cloned().collect()
}

/// Scrolls a page whose first visible line this is. Drawing limits it to the length of the page. Returns
/// whether the key is one that scrolls.
fn scroll(first: &mut usize, code: KeyCode, page: usize) -> bool {
    *first = match code {
        KeyCode::Up | KeyCode::Char('k') => first.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => first.saturating_add(1),
        KeyCode::PageUp => first.saturating_sub(page),
        KeyCode::PageDown | KeyCode::Char(' ') => first.saturating_add(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => return false,
    };
    true
}

/// The lines of a text, without what must not reach the terminal.
fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| visible(line).into_owned())
        .collect()
}

#[cfg(test)]
pub(super) mod tests;

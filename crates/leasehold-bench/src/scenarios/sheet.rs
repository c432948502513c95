//! Results in which each line is a contender at one value of a variable, such as the number of
//! nodes.

use super::Column;
use crate::contenders::Kind;
use crate::stats::Spread;

/// The figures of one turn, by name.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// The result of a scenario.
pub(crate) struct Sheet {
    pub(crate) id: &'static str,
    pub(crate) row: u8,
    pub(crate) work: &'static str,
    /// The variable in which lines of one contender differ, such as `nodes`.
    pub(crate) variable: &'static str,
    pub(crate) lines: Vec<Line>,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
}

/// A contender's turns at one value of the variable.
pub(crate) struct Line {
    pub(crate) at: usize,
    pub(crate) column: Column<Figures>,
}

impl Sheet {
    /// An empty sheet. The id starts with the row.
    pub(super) fn new(id: &'static str, work: &'static str, variable: &'static str) -> Self {
        let row = id.split('/').next().and_then(|row| row.parse().ok());
        Self {
            id,
            row: row.unwrap_or(0),
            work,
            variable,
            lines: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, at: usize, kind: Kind) {
        let column = Column::new(kind);
        self.lines.push(Line { at, column });
    }

    /// Gives every line one turn per round, with a different line first each time. A line that
    /// failed is not tried again.
    pub(super) fn take_turns(
        &mut self,
        rounds: usize,
        mut turn: impl FnMut(usize, Kind, usize) -> Result<Figures, String>,
    ) {
        for round in 0..rounds {
            for offset in 0..self.lines.len() {
                let index = (round + offset) % self.lines.len();
                let Line { at, column } = &mut self.lines[index];
                let outcome = match column.trouble() {
                    Some(why) => Err(why.to_owned()),
                    None => turn(*at, column.kind, round),
                };
                column.take(outcome);
                eprint!(".");
            }
        }
    }

    /// One figure of a line over all rounds that the contender completed.
    pub(crate) fn figure(&self, at: usize, kind: Kind, figure: &str) -> Option<Spread> {
        let turns = &self.line(at, kind)?.column.turns;
        Spread::of(turns.iter().flatten().filter_map(|turn| find(turn, figure)))
    }

    /// The ratio of a figure at `to` to the figure at `from`, round by round.
    pub(crate) fn growth(
        &self,
        kind: Kind,
        figure: &str,
        from: usize,
        to: usize,
    ) -> Option<Spread> {
        let from = &self.line(from, kind)?.column.turns;
        let to = &self.line(to, kind)?.column.turns;
        Spread::of(from.iter().zip(to).filter_map(|turns| match turns {
            (Ok(from), Ok(to)) => Some(find(to, figure)? / find(from, figure)?),
            _ => None,
        }))
    }

    /// The values of the variable at which this contender took part, ascending.
    pub(crate) fn steps(&self, kind: Kind) -> Vec<usize> {
        let lines = self.lines.iter().filter(|line| line.column.kind == kind);
        let mut steps: Vec<usize> = lines.map(|line| line.at).collect();
        steps.sort_unstable();
        steps
    }

    /// The contenders, each once.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for line in &self.lines {
            if !kinds.contains(&line.column.kind) {
                kinds.push(line.column.kind);
            }
        }
        kinds
    }

    fn line(&self, at: usize, kind: Kind) -> Option<&Line> {
        let mut lines = self.lines.iter();
        lines.find(|line| line.at == at && line.column.kind == kind)
    }
}

fn find(figures: &Figures, name: &str) -> Option<f64> {
    let found = figures.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_taken_round_by_round() {
        let mut sheet = Sheet::new("10/nodes", "", "nodes");
        sheet.add(1, Kind::Leasehold);
        sheet.add(3, Kind::Leasehold);
        // The second round is slower as a whole; the third fails at 3.
        sheet.take_turns(3, |at, _, round| match (at, round) {
            (3, 2) => Err("failed".into()),
            _ => Ok(vec![("cost", (at * 2 * (round + 1)) as f64)]),
        });
        let growth = sheet.growth(Kind::Leasehold, "cost", 1, 3).unwrap();
        assert_eq!((growth.min, growth.max), (3.0, 3.0));
        assert_eq!((sheet.row, sheet.steps(Kind::Leasehold)), (10, vec![1, 3]));
        assert_eq!(sheet.figure(1, Kind::Leasehold, "cost").unwrap().max, 6.0);
    }
}

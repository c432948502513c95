//! Which columns the table of locks has, and how wide they are.

/// The smallest screen.
pub(super) const MIN_WIDTH: u16 = 40;
pub(super) const MIN_HEIGHT: u16 = 8;

/// A column of the table of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Holder,
    Held,
    Left,
    Renews,
    Waiters,
    Votes,
    /// A mark for each node, after the votes.
    Marks,
    Token,
}

impl Column {
    pub(super) fn header(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Holder => "HOLDER",
            Self::Held => "HELD",
            Self::Left => "LEFT",
            Self::Renews => "RENEWS",
            Self::Waiters => "WAIT",
            Self::Votes => "VOTES",
            Self::Marks => "NODES",
            Self::Token => "TOKEN",
        }
    }
}

/// The columns from left to right, with their widths, for a screen of this width and so many nodes.
/// There is a space between two columns.
pub(super) fn columns(width: u16, nodes: usize) -> Vec<(Column, u16)> {
    /// The least width of name and holder. With less, other columns are left out.
    const NAME: u16 = 14;
    const HOLDER: u16 = 16;
    let marks = u16::try_from(nodes).unwrap_or(u16::MAX).max(5);
    // In the order in which they are left out, from the last to the first.
    let others = [
        (Column::Held, 7),
        (Column::Left, 7),
        (Column::Waiters, 4),
        (Column::Votes, 5),
        (Column::Renews, 6),
        (Column::Token, 16),
        (Column::Marks, marks),
    ];
    let mut space = width.saturating_sub(NAME + 1 + HOLDER);
    // The last two are worth less than a name that is readable.
    let comfort = 12;
    let mut chosen = Vec::new();
    for (column, wide) in others {
        let reserve = match column {
            Column::Token | Column::Marks => comfort,
            _ => 0,
        };
        let Some(rest) = space.checked_sub(wide.saturating_add(1)) else {
            break;
        };
        if rest < reserve {
            break;
        }
        space = rest;
        chosen.push((column, wide));
    }
    let order = |column: &Column| match column {
        Column::Renews => 2,
        Column::Waiters => 3,
        Column::Votes => 4,
        Column::Marks => 5,
        Column::Token => 6,
        Column::Left => 1,
        _ => 0,
    };
    chosen.sort_by_key(|(column, _)| order(column));
    let more_name = space * 2 / 5;
    let mut all = vec![
        (Column::Name, NAME + more_name),
        (Column::Holder, HOLDER + space - more_name),
    ];
    all.extend(chosen);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(width: u16, nodes: usize) -> Vec<&'static str> {
        let columns = columns(width, nodes);
        columns.iter().map(|(column, _)| column.header()).collect()
    }

    #[test]
    fn columns_depend_on_the_width() {
        let common = ["NAME", "HOLDER", "HELD", "LEFT", "RENEWS", "WAIT", "VOTES"];
        assert_eq!(names(80, 3), common);
        assert_eq!(names(MIN_WIDTH, 3), ["NAME", "HOLDER", "HELD"]);
        assert_eq!(
            names(60, 3),
            ["NAME", "HOLDER", "HELD", "LEFT", "WAIT", "VOTES"]
        );
        assert_eq!(names(120, 3), [&common[..], &["NODES", "TOKEN"]].concat());
    }

    #[test]
    fn columns_fill_the_width() {
        for width in MIN_WIDTH..300 {
            for nodes in [1, 3, 5, 60] {
                let columns = columns(width, nodes);
                let spaces = columns.len() as u16 - 1;
                let sum: u16 = columns.iter().map(|(_, wide)| wide).sum();
                assert_eq!(sum + spaces, width, "{columns:?}");
            }
        }
    }
}

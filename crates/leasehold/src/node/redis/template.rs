//! Scripts are put together from pieces, as text.
//!
//! A line `-- @name(arguments)` is replaced by the piece of that name, and `@name(arguments)` within a
//! line by the expression of that name. In both, `$parameter` stands for the argument. Pieces may use
//! other pieces. Comments are left out of the result, which is sent to the server for every connection.

/// Pieces by name.
pub(super) struct Fragments {
    pieces: Vec<Piece>,
}

struct Piece {
    name: String,
    parameters: Vec<String>,
    body: String,
}

impl Fragments {
    /// Reads pieces, each of which begins with a line `-- @@ name(parameters)`, and expressions,
    /// each of which is a line `-- @= name(parameters) expression`.
    pub(super) fn parse(source: &str) -> Self {
        Self { pieces: Vec::new() }.and(source)
    }

    /// Adds the pieces of another source.
    pub(super) fn and(self, source: &str) -> Self {
        let Self { mut pieces } = self;
        // An expression is one line, and what follows is no part of it.
        let mut open = false;
        for line in source.lines() {
            let (whole, expression) = (line.strip_prefix("-- @@ "), line.strip_prefix("-- @= "));
            if let Some(head) = whole.or(expression) {
                open = whole.is_some();
                let (name, parameters, rest) = read_head(head);
                pieces.push(Piece {
                    name: name.to_owned(),
                    parameters,
                    body: rest.trim_start().to_owned(),
                });
            } else if let Some(piece) = pieces.last_mut().filter(|_| open) {
                piece.body.push_str(line);
                piece.body.push('\n');
            }
        }
        Self { pieces }
    }

    /// Adds a piece without parameters.
    pub(super) fn with(mut self, name: &str, body: &str) -> Self {
        self.pieces.push(Piece {
            name: name.to_owned(),
            parameters: Vec::new(),
            body: body.to_owned(),
        });
        self
    }

    /// Returns a script with all pieces inserted and without comments. If a piece does not exist,
    /// its name stays and the server refuses the script; the tests find this.
    pub(super) fn expand(&self, source: &str) -> String {
        let mut code = String::with_capacity(2 * source.len());
        self.expand_into(source, &mut code);
        code
    }

    fn expand_into(&self, source: &str, code: &mut String) {
        for line in source.lines() {
            let text = line.trim_start();
            match text.strip_prefix("-- @").map(read_head) {
                Some((name, arguments, _)) => match self.piece(name) {
                    Some(piece) => self.expand_into(&piece.filled(&arguments), code),
                    None => {
                        code.push_str(text.trim_start_matches("-- "));
                        code.push('\n');
                    }
                },
                None if text.is_empty() || text.starts_with("--") => {}
                None => {
                    code.push_str(&self.expand_line(text));
                    code.push('\n');
                }
            }
        }
    }

    /// Replaces the expressions in a line of code.
    fn expand_line(&self, line: &str) -> String {
        let Some((before, head)) = line.split_once('@') else {
            return line.to_owned();
        };
        let (name, arguments, after) = read_head(head);
        match self.piece(name) {
            Some(piece) => {
                let expression = self.expand_line(piece.filled(&arguments).trim_end());
                format!("{before}{expression}{}", self.expand_line(after))
            }
            None => line.to_owned(),
        }
    }

    fn piece(&self, name: &str) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.name == name)
    }
}

impl Piece {
    fn filled(&self, arguments: &[String]) -> String {
        let mut body = self.body.clone();
        // The longest first, so that no parameter is mistaken for the beginning of another.
        let mut filled: Vec<_> = self.parameters.iter().zip(arguments).collect();
        filled.sort_by_key(|(parameter, _)| std::cmp::Reverse(parameter.len()));
        for (parameter, argument) in filled {
            body = body.replace(&format!("${parameter}"), argument);
        }
        body
    }
}

/// Reads `name(a, b)` or `name`: the name, the arguments, and what follows the closing parenthesis.
fn read_head(head: &str) -> (&str, Vec<String>, &str) {
    let Some((name, list)) = head.split_once('(') else {
        return (head.trim(), Vec::new(), "");
    };
    let (mut arguments, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in list.char_indices() {
        match character {
            ',' | ')' if depth == 0 => {
                arguments.push(list[start..at].trim().to_owned());
                start = at + 1;
                if character == ')' {
                    break;
                }
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    (name, arguments, &list[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_take_the_place_of_their_lines() {
        let fragments = Fragments::parse(
            "-- About all of them.\n\
             -- @@ set(key, key_ms)\n\
             -- Sets it.\n\
             call('SET', $key, 'PX', $key_ms)\n\
             \n\
             -- @= first(list) $list[1]\n\
             -- @= both(a, b) ($a and @first($b))\n\
             \n\
             -- @@ twice(key)\n\
             -- @set($key, '1')\n\
             -- @set(KEYS[2], '2')\n",
        );
        let fragments = fragments.with("end", "return 1\n");
        let code =
            fragments.expand("local a\n-- Why.\nif a then\n  -- @twice(KEYS[1])\nend\n-- @end\n");
        assert_eq!(
            code,
            "local a\nif a then\ncall('SET', KEYS[1], 'PX', '1')\ncall('SET', KEYS[2], 'PX', '2')\n\
             end\nreturn 1\n"
        );
        assert_eq!(fragments.expand("  -- @missing(a)\n"), "@missing(a)\n");
        assert_eq!(
            fragments.expand("if @both(f(x, y), KEYS) or @first(ARGV) then\n"),
            "if (f(x, y) and KEYS[1]) or ARGV[1] then\n"
        );
    }
}

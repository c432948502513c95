//! Scripts are put together from pieces, as text.
//!
//! A line `-- @name(arguments)` is replaced by the piece of that name. In the piece, `$parameter`
//! stands for the argument. Pieces may use other pieces. Comments are left out of the result, which
//! is sent to the server for every connection.

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
    /// Reads pieces, each of which begins with a line `-- @@ name(parameters)`.
    pub(super) fn parse(source: &str) -> Self {
        let mut pieces = Vec::<Piece>::new();
        for line in source.lines() {
            if let Some(head) = line.strip_prefix("-- @@ ") {
                let (name, parameters) = read_head(head);
                pieces.push(Piece {
                    name,
                    parameters,
                    body: String::new(),
                });
            } else if let Some(piece) = pieces.last_mut() {
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

    /// A script with all pieces in place and without comments. A piece that does not exist is an
    /// error of the script's author, which the tests find: the name stays, and the server refuses it.
    pub(super) fn expand(&self, source: &str) -> String {
        let mut code = String::with_capacity(2 * source.len());
        self.expand_into(source, &mut code);
        code
    }

    fn expand_into(&self, source: &str, code: &mut String) {
        for line in source.lines() {
            let text = line.trim_start();
            let head = text.strip_prefix("-- @").map(read_head);
            match head {
                Some((name, arguments)) => match self.pieces.iter().find(|p| p.name == name) {
                    Some(piece) => self.expand_into(&piece.filled(&arguments), code),
                    None => {
                        code.push_str(text.trim_start_matches("-- "));
                        code.push('\n');
                    }
                },
                None if text.is_empty() || text.starts_with("--") => {}
                None => {
                    code.push_str(text);
                    code.push('\n');
                }
            }
        }
    }
}

impl Piece {
    fn filled(&self, arguments: &[String]) -> String {
        let mut body = self.body.clone();
        // The longest first: no parameter is taken for the beginning of another.
        let mut filled: Vec<_> = self.parameters.iter().zip(arguments).collect();
        filled.sort_by_key(|(parameter, _)| std::cmp::Reverse(parameter.len()));
        for (parameter, argument) in filled {
            body = body.replace(&format!("${parameter}"), argument);
        }
        body
    }
}

/// `name(a, b)` or `name`.
fn read_head(head: &str) -> (String, Vec<String>) {
    let Some((name, list)) = head.split_once('(') else {
        return (head.trim().to_owned(), Vec::new());
    };
    let list = list.trim_end().trim_end_matches(')');
    let items = list.split(", ").map(str::to_owned).collect();
    (name.to_owned(), items)
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
    }
}

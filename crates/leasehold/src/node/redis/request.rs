//! A request in the encoding of the Redis protocol, for the paths on which every allocation counts.

use crate::base::name::Name;

/// A request, behind those that are written already. It is complete after [`end`](Self::end).
#[must_use = "a request has to be ended"]
pub(super) struct Request<'o> {
    output: &'o mut Vec<u8>,
    /// Where it begins.
    start: usize,
    arguments: u64,
}

impl<'o> Request<'o> {
    pub(super) fn new(output: &'o mut Vec<u8>) -> Self {
        Self {
            start: output.len(),
            output,
            arguments: 0,
        }
    }

    /// Adds the command, or an argument.
    pub(super) fn arg(mut self, argument: impl Argument) -> Self {
        self.arguments += 1;
        argument.append_to(self.output);
        self
    }

    /// Adds an argument if there is one.
    pub(super) fn maybe(self, argument: Option<impl Argument>) -> Self {
        match argument {
            Some(argument) => self.arg(argument),
            None => self,
        }
    }

    /// Completes the request: the number of arguments stands before them.
    pub(super) fn end(self) {
        let (start, end) = (self.start, self.output.len());
        append_line(self.output, b'*', self.arguments);
        let header = self.output.len() - end;
        self.output[start..].rotate_right(header);
    }
}

/// What can be an argument: bytes, or a number in decimal digits.
pub(super) trait Argument {
    fn append_to(&self, output: &mut Vec<u8>);
}

impl<T: AsRef<[u8]>> Argument for T {
    fn append_to(&self, output: &mut Vec<u8>) {
        let bytes = self.as_ref();
        append_line(output, b'$', bytes.len() as u64);
        output.extend_from_slice(bytes);
        output.extend_from_slice(b"\r\n");
    }
}

/// A number as an argument.
pub(super) struct Number(pub(super) u64);

impl Argument for Number {
    fn append_to(&self, output: &mut Vec<u8>) {
        let mut buffer = [0; DIGITS];
        digits(self.0, &mut buffer).append_to(output);
    }
}

/// A key of a name: a prefix, and the name with its hash tag.
pub(super) struct SideKey<'n>(pub(super) &'static str, pub(super) &'n Name);

impl Argument for SideKey<'_> {
    fn append_to(&self, output: &mut Vec<u8>) {
        let parts = self.1.tagged_parts();
        let length = self.0.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        append_line(output, b'$', length as u64);
        output.extend_from_slice(self.0.as_bytes());
        parts.iter().for_each(|part| output.extend_from_slice(part));
        output.extend_from_slice(b"\r\n");
    }
}

/// The digits of the largest number.
const DIGITS: usize = 20;

fn append_line(output: &mut Vec<u8>, kind: u8, number: u64) {
    // Nearly all numbers have one digit or two.
    let (tens, ones) = ((number / 10) as u8, (number % 10) as u8);
    match number {
        0..10 => output.extend_from_slice(&[kind, b'0' + ones, b'\r', b'\n']),
        10..100 => output.extend_from_slice(&[kind, b'0' + tens, b'0' + ones, b'\r', b'\n']),
        _ => {
            let mut buffer = [0; DIGITS];
            output.push(kind);
            output.extend_from_slice(digits(number, &mut buffer));
            output.extend_from_slice(b"\r\n");
        }
    }
}

fn digits(mut number: u64, buffer: &mut [u8; DIGITS]) -> &[u8] {
    let mut start = DIGITS;
    loop {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encoding of the `redis` crate is the reference.
    #[test]
    fn requests_are_encoded_as_the_redis_crate_encodes_them() {
        let numbers = [0, 9, 10, 1_794_780_664_497_528, u64::MAX];
        let mut output = b"before".to_vec();
        let name = Name::new("a{b}c").unwrap();
        let mut ours = Request::new(&mut output)
            .arg("EVALSHA")
            .arg([])
            .arg(b"a\r\n\0\xff".to_vec())
            .arg(SideKey("prefix:", &name))
            .maybe(None::<&str>);
        let mut theirs = redis::Cmd::new();
        theirs.arg("EVALSHA").arg(b"").arg(b"a\r\n\0\xff");
        theirs.arg(name.tagged_behind(b"prefix:"));
        for number in numbers {
            ours = ours.arg(Number(number));
            theirs.arg(number);
        }
        ours.end();
        assert_eq!(output, [b"before", &*theirs.get_packed_command()].concat());
    }
}

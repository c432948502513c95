//! A request in the encoding of the Redis protocol, for the paths on which every allocation counts.

/// A request: a command and its arguments.
pub(super) struct Request {
    arguments: u64,
    bytes: Vec<u8>,
}

impl Request {
    /// An empty request, with room for this many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            arguments: 0,
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Adds an argument.
    pub(super) fn arg(&mut self, argument: impl Argument) -> &mut Self {
        self.arguments += 1;
        argument.append_to(&mut self.bytes);
        self
    }

    /// Writes the request behind others.
    pub(super) fn write_to(&self, output: &mut Vec<u8>) {
        output.reserve(self.bytes.len() + 24);
        append_line(output, b'*', self.arguments);
        output.extend_from_slice(&self.bytes);
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

/// The digits of the largest number.
const DIGITS: usize = 20;

fn append_line(output: &mut Vec<u8>, kind: u8, number: u64) {
    let mut buffer = [0; DIGITS];
    output.push(kind);
    output.extend_from_slice(digits(number, &mut buffer));
    output.extend_from_slice(b"\r\n");
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
        let (mut ours, mut theirs) = (Request::with_capacity(0), redis::Cmd::new());
        ours.arg("EVALSHA").arg([]).arg(b"a\r\n\0\xff".to_vec());
        theirs.arg("EVALSHA").arg(b"").arg(b"a\r\n\0\xff");
        for number in numbers {
            ours.arg(Number(number));
            theirs.arg(number);
        }
        ours.write_to(&mut output);
        assert_eq!(output, [b"before", &*theirs.get_packed_command()].concat());
    }
}

//! A set of small numbers that is cheap to copy, compare and hash.

/// Numbers below 8: attempts, nodes or tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bits(u8);

impl Bits {
    pub fn insert(&mut self, number: u8) {
        self.0 |= 1 << number;
    }

    pub fn remove(&mut self, number: u8) {
        self.0 &= !(1 << number);
    }

    pub fn contains(self, number: u8) -> bool {
        self.0 >> number & 1 == 1
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn max(self) -> Option<u8> {
        (0..8).rev().find(|&number| self.contains(number))
    }
}

/// An index as a small number.
pub fn small(index: usize) -> u8 {
    u8::try_from(index).expect("nodes and attempts are few")
}

//! A set of a client's nodes.

/// A set of nodes by their index. A client has at most [`NodeSet::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    pub(crate) const MAX: usize = 64;

    pub(crate) fn all() -> Self {
        Self(u64::MAX)
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 >> node & 1 == 1
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let next = |left: &u64| (*left != 0).then(|| left & (left - 1));
        std::iter::successors(Some(self.0), next)
            .take_while(|left| *left != 0)
            .map(|left| left.trailing_zeros() as usize)
    }

    pub(crate) fn intersect(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        Self(nodes.into_iter().fold(0, |set, node| set | 1 << node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in() {
        let set: NodeSet = [0, 3, 63].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 63]);
        assert_eq!(set.len(), 3);
        let other: NodeSet = [3, 4].into_iter().collect();
        assert_eq!(set.intersect(other).iter().collect::<Vec<_>>(), [3]);
        assert_eq!(set.union(other).iter().collect::<Vec<_>>(), [0, 3, 4, 63]);
    }
}

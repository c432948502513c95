//! The nodes of a client.

use std::ops::Deref;
use std::sync::Arc;

use crate::node::Node;
use crate::observe::Sight;

/// The nodes of a client, and where requests to them are counted.
pub(crate) struct Nodes {
    list: Box<[Arc<dyn Node>]>,
    pub(crate) sight: Arc<Sight>,
}

impl Nodes {
    pub(crate) fn new(list: Vec<Arc<dyn Node>>, sight: Arc<Sight>) -> Self {
        let list = list.into_boxed_slice();
        Self { list, sight }
    }
}

impl Deref for Nodes {
    type Target = [Arc<dyn Node>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

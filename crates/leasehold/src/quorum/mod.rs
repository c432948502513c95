//! Sends a request to all nodes and counts their votes. One node is a majority of one, so there is
//! no other code path for one node.

mod broadcast;
mod node_set;
mod nodes;
pub mod round;
mod wait;

pub(crate) use broadcast::{Broadcast, Question};
pub(crate) use node_set::NodeSet;
pub(crate) use nodes::Nodes;
pub(crate) use wait::WaitSignals;

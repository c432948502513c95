//! A request to all nodes and the counting of their votes. One node is a majority
//! of one: there is no other path.

mod broadcast;
mod node_set;
pub mod round;
mod wait;

pub(crate) use broadcast::{Broadcast, Question};
pub(crate) use node_set::NodeSet;
pub(crate) use wait::WaitSignals;

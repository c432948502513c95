//! A request to all nodes and the counting of their votes. One node is a majority
//! of one: there is no other path.

mod canvass;
mod nodes;
pub mod round;

pub(crate) use canvass::{Canvass, Question};
pub(crate) use nodes::NodeSet;

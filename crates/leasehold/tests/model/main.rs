//! x
mod bits;
mod check;
mod fault;
mod node;
mod timed;
mod tokens;

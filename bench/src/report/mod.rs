//! The results, for people and for programs.

mod json;
mod text;

pub(crate) use json::write_json;
pub(crate) use text::text;

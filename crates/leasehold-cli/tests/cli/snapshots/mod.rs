//! Everything that the tool prints, compared with the files in this directory.
//!
//! After a change of a text, `UPDATE_EXPECT=1 cargo test -p leasehold-cli snapshots` writes the
//! files anew. Review them with `git diff`.

mod config;
mod errors;
mod help;
mod output;
mod transcript;

//! The results, for readers and for programs.

mod bars;
mod contention;
mod json;
mod plot;
mod plots;
mod text;

pub(crate) use json::write_json;
pub(crate) use plots::write_plots;
pub(crate) use text::text;

use std::path::{Path, PathBuf};

/// The directory of the output files, beside this crate's manifest.
fn out_dir() -> std::io::Result<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

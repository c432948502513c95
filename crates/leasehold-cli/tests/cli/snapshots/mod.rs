//! Everything that the tool prints, compared with the files in this directory.
//!
//! After a change of a text, `UPDATE_EXPECT=1 cargo test -p leasehold-cli snapshots` writes the
//! files anew. Review them with `git diff`.

mod errors;
mod help;
mod output;
mod transcript;

use crate::Place;

/// The id of the owner of a lock, as `show` prints it.
fn owner_id(place: &Place, name: &str) -> String {
    let page = place.ok(&["show", name]);
    let mut lines = page.lines();
    let owner = lines.find_map(|line| line.trim().strip_prefix("owner"));
    owner.expect("an owner").trim().to_owned()
}

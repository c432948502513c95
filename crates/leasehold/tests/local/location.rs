//! The location of the store, and its permissions.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::puppet::Puppet;
use super::store::Store;

fn mode(path: impl AsRef<Path>) -> u32 {
    let path = path.as_ref();
    let meta = std::fs::metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    meta.permissions().mode() & 0o7777
}

/// Owner values are secrets, including those in the log and in the index.
#[test]
fn a_new_store_is_private_to_its_user() {
    let store = Store::new();
    // Not because of the user's umask.
    let mut puppet = Puppet::through(&["sh", "-c", "umask 0 && exec \"$0\" \"$@\""]);
    puppet.open(&store.url());
    puppet.lock("a");
    for end in ["", "-wal", "-shm"] {
        assert_eq!(mode(store.beside(end)), 0o600, "{end}");
    }
    let mut other = Puppet::of(&store.url());
    other.send_lock("a");
    store.until_waiters(1);
    assert_eq!(mode(store.beside(".wake")), 0o700);
}

/// The mode of an existing file is the user's choice.
#[test]
fn the_mode_of_an_existing_store_is_kept() {
    let store = Store::new();
    Puppet::of(&store.url()).lock("a");
    let chosen = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(store.path(), chosen).expect("changed");
    Puppet::of(&store.url()).lock("a");
    assert_eq!(mode(store.path()), 0o640);
}

/// Starts a puppet that finds its directories in these variables.
fn at_home(home: &Path, state: Option<&str>) -> Puppet {
    let umask = ["sh", "-c", "umask 0 && exec \"$0\" \"$@\""];
    Puppet::start(&umask, |command| {
        command.env("HOME", home).env_remove("XDG_STATE_HOME");
        if let Some(state) = state {
            command.env("XDG_STATE_HOME", state);
        }
    })
}

#[test]
fn the_default_is_in_the_state_directory() {
    let home = Store::new();
    let state = home.dir().join("state/of/mine");
    let text = state.to_str().expect("a path of text");
    let mut puppet = at_home(home.dir(), Some(text));
    puppet.open("local:");
    puppet.lock("a");
    assert_eq!(mode(state.join("leasehold")), 0o700);
    assert_eq!(mode(state.join("leasehold/locks.db")), 0o600);
    assert!(!home.dir().join(".local").exists());
    // The same store by its full path.
    let named = format!("local:{text}/leasehold/locks.db");
    assert!(Puppet::of(&named).finds_held("a"));
}

/// Without the variable, or with a value that the standard says to ignore.
#[test]
fn otherwise_the_default_is_below_the_home_directory() {
    for state in [None, Some("relative/state"), Some("")] {
        let home = Store::new();
        let mut puppet = at_home(home.dir(), state);
        puppet.open("local:");
        puppet.lock("a");
        let dir = home.dir().join(".local/state/leasehold");
        assert_eq!(mode(&dir), 0o700, "{state:?}");
        assert_eq!(mode(dir.join("locks.db")), 0o600, "{state:?}");
    }
}

/// Two paths to one file are one store.
#[test]
fn a_link_leads_to_the_same_store() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    let held = holder.lock("a");
    let link = store.beside(".link");
    std::os::unix::fs::symlink(store.path(), &link).expect("a link");
    let mut other = Puppet::of(&format!("local:{}", link.display()));
    assert!(other.finds_held("a"));
    other.send_lock("a");
    store.until_waiters(1);
    holder.release("a");
    assert!(other.receive_lease().token > held.token);
}

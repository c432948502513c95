//! Finds the configuration file.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::exit::Failure;
use crate::private_file::OpenFile;

/// The variable that names the file.
pub(crate) const CONFIG_VARIABLE: &str = "LEASEHOLD_CONFIG";
/// For all users of the machine.
const SYSTEM: [&str; 2] = ["/etc/leasehold/leasehold.toml", "/etc/leasehold.toml"];

/// Opens the file that was named, or the first one that exists in the usual places. The working
/// directory is not among them: a job of root that runs in a directory of another user would let that
/// user choose the servers, and so break every lock of the job.
pub(crate) fn open(named: Option<&Path>) -> Result<Option<(PathBuf, OpenFile)>, Failure> {
    let variable = || std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty());
    let named = named
        .map(Path::to_owned)
        .or_else(|| variable().map(PathBuf::from));
    if let Some(path) = named {
        let path = std::path::absolute(&path).unwrap_or(path);
        let file = OpenFile::open(&path).map_err(|error| unreadable(&path, &error))?;
        refuse_writable_by_all(&path, &file)?;
        return Ok(Some((path, file)));
    }
    let (config, home) = (
        std::env::var_os("XDG_CONFIG_HOME"),
        std::env::var_os("HOME"),
    );
    let places = of_user(config, home).into_iter();
    for path in places.chain(SYSTEM.iter().map(PathBuf::from)) {
        match OpenFile::open_regular(&path) {
            Ok(file) => {
                refuse_writable_by_all(&path, &file)?;
                refuse_owner(&path, file.owner, nix::unistd::geteuid().as_raw())?;
                return Ok(Some((path, file)));
            }
            Err(error) if is_elsewhere(&path, &error) => {}
            Err(error) => return Err(unreadable(&path, &error)),
        }
    }
    Ok(None)
}

/// All places, for the output of `leasehold config`.
pub(crate) fn places() -> Vec<PathBuf> {
    let (config, home) = (
        std::env::var_os("XDG_CONFIG_HOME"),
        std::env::var_os("HOME"),
    );
    let system = SYSTEM.iter().map(PathBuf::from);
    of_user(config, home).into_iter().chain(system).collect()
}

/// The file of the user. As the XDG specification says, a relative path is ignored.
fn of_user(config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let config = config.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = config.or_else(|| Some(home?.join(".config")))?;
    Some(directory.join("leasehold/leasehold.toml"))
}

/// Whether there is no file, or it is in a directory of another user, which this user cannot enter
/// (`HOME` of root, for example). A file that exists and cannot be read is an error: without it, the
/// locks would be on other nodes.
fn is_elsewhere(path: &Path, error: &std::io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotADirectory => true,
        // A symbolic link to a file that does not exist is a file that cannot be read.
        ErrorKind::NotFound | ErrorKind::PermissionDenied => {
            std::fs::symlink_metadata(path).is_err()
        }
        _ => false,
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let is_link = error.kind() == ErrorKind::NotFound && std::fs::symlink_metadata(path).is_ok();
    let link = match is_link {
        true => " (it is a symbolic link to a file that does not exist)",
        false => "",
    };
    let path = path.display();
    Failure::usage(format!(
        "cannot read the configuration file {path}: {error}{link}"
    ))
}

fn refuse_writable_by_all(path: &Path, file: &OpenFile) -> Result<(), Failure> {
    match file.is_regular && file.mode & 0o002 != 0 {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "all users can change the configuration file {0} (mode {1:04o}), and so the nodes that store \
             the locks; run `chmod o-w {0}`",
            path.display(),
            file.mode
        ))),
    }
}

/// Refuses a file that was not named and belongs to neither this user nor root. `sudo` may leave
/// `HOME` as it is.
fn refuse_owner(path: &Path, owner: u32, user: u32) -> Result<(), Failure> {
    match owner == 0 || owner == user {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "the configuration file {0} belongs to another user (uid {owner}), who could change the \
             nodes that store the locks\nnext: if you trust that user, name the file with --config {0}; \
             otherwise set HOME or XDG_CONFIG_HOME to a directory of your own",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_user() {
        let path = |config: Option<&str>, home: Option<&str>| {
            let path = of_user(config.map(Into::into), home.map(Into::into));
            path.map(|path| path.display().to_string())
        };
        let in_home = Some("/home/u/.config/leasehold/leasehold.toml".to_owned());
        assert_eq!(path(None, Some("/home/u")), in_home);
        assert_eq!(path(Some("relative"), Some("/home/u")), in_home);
        let in_config = Some("/c/leasehold/leasehold.toml".to_owned());
        assert_eq!(path(Some("/c"), Some("/home/u")), in_config);
        assert_eq!(path(None, None), None);
        assert_eq!(path(None, Some("")), None);
    }

    #[test]
    fn files_of_other_users_are_refused() {
        let path = Path::new("/home/u/leasehold.toml");
        assert!(refuse_owner(path, 0, 1000).is_ok());
        assert!(refuse_owner(path, 1000, 1000).is_ok());
        assert!(refuse_owner(path, 1001, 1000).is_err());
        // Root does not trust other users, either.
        assert!(refuse_owner(path, 1000, 0).is_err());
    }
}

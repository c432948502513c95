//! The sockets beside the store, through which processes notify each other's waiters.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The directory of the sockets of a store.
pub(super) struct Sockets {
    path: PathBuf,
    /// The permissions of the store.
    mode: u32,
    /// A short path to the directory, because the path of a socket is limited to about 100 bytes.
    #[cfg(target_os = "linux")]
    dir: std::os::fd::OwnedFd,
}

/// The process that listens at a socket.
pub(super) enum Peer {
    /// It can be reached through this socket.
    Open(UnixDatagram),
    /// The process is dead.
    Dead,
    /// It may be alive, but belongs to another user who denies access.
    Unknown,
}

impl Sockets {
    pub(super) fn open(store: &Path) -> std::io::Result<Self> {
        let mut path = store.as_os_str().to_owned();
        path.push(".wake");
        let path = PathBuf::from(path);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let sockets = Self {
            #[cfg(target_os = "linux")]
            dir: {
                use rustix::fs::{Mode, OFlags, open};
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                open(&path, flags, Mode::empty())?
            },
            mode: std::fs::metadata(store)?.mode(),
            path,
        };
        sockets.share(&sockets.path)?;
        Ok(sockets)
    }

    /// Whether other processes still use this directory.
    pub(super) fn is_current(&self) -> bool {
        #[cfg(target_os = "linux")]
        {
            let (here, there) = (rustix::fs::fstat(&self.dir), rustix::fs::stat(&self.path));
            let same = here.and_then(|here| Ok((here, there?)));
            same.is_ok_and(|(here, there)| {
                (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
            })
        }
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// Grants access to the users that may write the store: its group, or everybody.
    fn share(&self, path: &Path) -> std::io::Result<()> {
        let group = if self.mode & 0o020 == 0 { 0 } else { 0o070 };
        let others = if self.mode & 0o002 == 0 { 0 } else { 0o007 };
        // The setgid bit, which makes new files inherit the group, stays.
        let special = std::fs::metadata(path)?.mode() & 0o7000;
        let mode = std::fs::Permissions::from_mode(special | 0o700 | group | others);
        match std::fs::set_permissions(path, mode) {
            // It belongs to another user, who has set the permissions.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        }
    }

    /// Returns the path of a socket. The names of sockets come from a file that other processes
    /// write, so a name that leads elsewhere is rejected.
    fn address(&self, name: &str) -> std::io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if !name.ends_with(".sock") || !name.chars().all(plain) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let dir = self.dir.as_raw_fd();
            Ok(PathBuf::from(format!("/proc/self/fd/{dir}/{name}")))
        }
        #[cfg(not(target_os = "linux"))]
        Ok(self.path.join(name))
    }

    /// Creates a socket of this process.
    pub(super) fn bind(&self, name: &str) -> std::io::Result<UnixDatagram> {
        let address = self.address(name)?;
        let socket = UnixDatagram::bind(&address)?;
        self.share(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Whether there is a socket of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.is_current() && self.address(name).is_ok_and(|address| address.exists())
    }

    /// Connects to the process that listens at a socket. If it is dead, removes the socket.
    pub(super) fn connect(&self, name: &str) -> Peer {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let connected = self.address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect(address)?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => Peer::Open(socket),
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => {
                self.remove(name);
                Peer::Dead
            }
            Err(_) => Peer::Unknown,
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if let Ok(address) = self.address(name) {
            let _ = std::fs::remove_file(address);
        }
    }
}

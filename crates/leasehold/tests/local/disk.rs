//! Full and read-only disks: small file systems that only the puppet process sees, and that are
//! removed with it.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use leasehold_testkit::TempDir;
use leasehold_testkit::setup::blocking::until;

use super::puppet::Puppet;
use super::skip;

/// A puppet process with a small disk.
struct Disk {
    puppet: Puppet,
    dir: TempDir,
}

const MOUNT: &str = r#"mount -t tmpfs -o size=512k tmpfs "$0" && exec "$@""#;

impl Disk {
    /// `None`, with a message, if mounting is not permitted here.
    fn new(what: &str) -> Option<Self> {
        let dir = TempDir::new();
        let place = dir.path().to_str().expect("a path of text");
        let wrapper = ["unshare", "--mount", "sh", "-c", MOUNT, place];
        let tried = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .arg("true")
            .output();
        let why = match tried {
            Ok(output) if output.status.success() => {
                let puppet = Puppet::through(&wrapper);
                return Some(Self { puppet, dir });
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        skip(what, &format!("cannot mount: {}", why.trim()));
        None
    }

    fn url(&self) -> String {
        format!("local:{}/locks.db", self.dir.path().display())
    }

    /// A file on the disk, by a path that this process can use.
    fn file(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().strip_prefix("/").expect("an absolute path");
        let root = PathBuf::from(format!("/proc/{}/root", self.puppet.pid()));
        root.join(dir).join(name)
    }

    /// Fills the disk to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.file("fill")).expect("a file");
        for size in [4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.file("fill")).expect("removed");
    }

    /// This fails while a process has a file open for writing.
    fn try_remount(&self, how: &str) -> bool {
        let pid = self.puppet.pid().to_string();
        let output = Command::new("nsenter")
            .args(["--target", &pid, "--mount", "mount", "-o"])
            .arg(format!("remount,{how}"))
            .arg(self.dir.path())
            .output();
        output.expect("nsenter runs").status.success()
    }

    fn remount(&self, how: &str) {
        until("remounted", || self.try_remount(how));
    }

    /// Writes until the disk refuses: the existing files have a little room left.
    fn refusal(&mut self) -> String {
        for number in 0..10_000 {
            let said = self.puppet.request(&format!("try {number} 3600000"));
            if let Some(error) = said.strip_prefix("error ") {
                return error.to_owned();
            }
        }
        panic!("the disk did not fill up");
    }
}

#[test]
fn a_full_disk_is_an_error_and_works_again_when_there_is_room() {
    let Some(mut disk) = Disk::new("a full disk") else {
        return;
    };
    disk.puppet.open(&disk.url());
    let held = disk.puppet.lock("a");
    disk.fill();
    let error = disk.refusal();
    assert!(error.contains("disk is full"), "{error}");
    assert!(error.contains("free some space"), "{error}");
    let said = disk.puppet.request("extend a");
    assert!(said.contains("disk is full"), "{said}");
    // It answers at once, and does not wait for room.
    disk.puppet.release("a");
    disk.make_room();
    // The release is retried in the background.
    assert!(disk.puppet.lock("a").token > held.token);
}

#[test]
fn a_store_cannot_be_created_on_a_full_disk_until_there_is_room() {
    let Some(mut disk) = Disk::new("a new store on a full disk") else {
        return;
    };
    // The first answer shows that the disk is mounted.
    assert_eq!(disk.puppet.request("close"), "closed");
    disk.fill();
    let url = disk.url();
    assert_eq!(disk.puppet.request(&format!("build {url}")), "built");
    let said = disk.puppet.request("try a 3600000");
    assert!(said.starts_with("error "), "{said}");
    assert!(said.contains("full"), "{said}");
    disk.make_room();
    disk.puppet.lock("a");
}

#[test]
fn a_read_only_disk_is_an_error() {
    let Some(mut disk) = Disk::new("a read-only disk") else {
        return;
    };
    let url = disk.url();
    disk.puppet.open(&url);
    let held = disk.puppet.lock("a");
    disk.puppet.release("a");
    assert_eq!(disk.puppet.request("close"), "closed");
    disk.remount("ro");
    assert_eq!(disk.puppet.request(&format!("build {url}")), "built");
    let said = disk.puppet.request("try a 3600000");
    assert!(said.starts_with("error "), "{said}");
    for word in ["the store cannot be", "check"] {
        assert!(said.contains(word), "{said}");
    }
    disk.remount("rw");
    assert!(disk.puppet.lock("a").token > held.token);
}

#[test]
fn a_missing_store_on_a_read_only_disk_is_an_error() {
    let Some(mut disk) = Disk::new("a new store on a read-only disk") else {
        return;
    };
    // The first answer shows that the disk is mounted.
    assert_eq!(disk.puppet.request("close"), "closed");
    disk.remount("ro");
    let url = disk.url();
    let said = disk.puppet.request(&format!("open {url}"));
    assert!(said.starts_with("error "), "{said}");
    assert!(said.contains("cannot create the store"), "{said}");
    assert!(said.contains("Read-only"), "{said}");
    assert_eq!(disk.puppet.request(&format!("build {url}")), "built");
    disk.remount("rw");
    disk.puppet.lock("a");
}

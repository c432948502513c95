//! Reads what [`doctor`](crate::doctor) wants to know of a store. Creates no file. A store that exists is
//! opened as by any client: that may begin an epoch, and creates the tables of an empty file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{TransactionBehavior, params};

use super::failure::Failure;
use super::process::Realm;
use super::rows::to_sql;
use super::store::{CONSTANTS, Store};
use crate::base::clock::Clock;
use crate::base::name::Name;
use crate::doctor::NodeFacts;
use crate::doctor::facts::{FileSystem, Processes, StoreFacts};
use crate::node::{NodeError, NodeSettings};

/// Reads everything. Blocks the thread.
pub(crate) fn examine(path: &Path, settings: &NodeSettings) -> StoreFacts {
    let store = open(path, settings);
    // A file that does not exist yet will be on the file system of its directory.
    let place = existing(path);
    let mode = |path: &Path| std::fs::metadata(path).map(|meta| meta.mode());
    let directory = path.parent().unwrap_or(path);
    StoreFacts {
        path: path.to_owned(),
        // What a new file will have.
        modes: mode(path)
            .or(Ok(0o600))
            .and_then(|file| {
                let directory = match directory.exists() {
                    true => mode(directory),
                    false => Ok(0o700),
                };
                directory.map(|directory| (file, directory))
            })
            .ok(),
        file_system: file_system(place),
        space: rustix::fs::statvfs(place)
            .map(|disk| {
                let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
                (bytes(disk.f_bavail), bytes(disk.f_blocks))
            })
            .map_err(|error| format!("the free space cannot be read: {error}")),
        processes: match &store {
            Ok(Some(store)) => processes(store).map_err(|failure| failure.into_error().to_string()),
            Ok(None) => Ok(Processes {
                visible: Realm::here().can_watch(),
                elsewhere: 0,
            }),
            Err(_) => Err("the store cannot be opened".into()),
        },
        opened: store.map(drop),
    }
}

/// The state of a store at a glance. Blocks the thread.
pub(crate) fn glance(path: &Path, settings: &NodeSettings) -> Result<NodeFacts, NodeError> {
    let clock = &settings.clock;
    let mut facts = NodeFacts {
        role: Some("store".to_owned()),
        version: Some(format!("sqlite {}", rusqlite::version())),
        votes_in: Some(Duration::ZERO),
        clock_offset_us: Some(0),
        ..NodeFacts::default()
    };
    if let Some(mut store) = open(path, settings)? {
        let began_us = store.floor().saturating_sub(CONSTANTS.skew_us());
        let age_us = clock.unix_us().saturating_sub(began_us);
        facts.epoch_age = Some(Duration::from_micros(age_us));
        facts.latency = Some(transactions(&mut store, clock).map_err(Failure::into_error)?);
    }
    Ok(facts)
}

/// Times some transactions. Returns them sorted. Blocks the thread.
pub(crate) fn round_trips(
    path: &Path,
    settings: &NodeSettings,
    count: usize,
) -> Result<Vec<Duration>, NodeError> {
    let mut taken = Vec::with_capacity(count);
    if let Some(mut store) = open(path, settings)? {
        for _ in 0..count {
            taken.push(transaction(&mut store, &settings.clock).map_err(Failure::into_error)?);
        }
    }
    taken.sort_unstable();
    Ok(taken)
}

/// Removes all that a store knows of names that nobody will use again. Blocks the thread.
pub(crate) fn forget(
    path: &Path,
    settings: &NodeSettings,
    names: &[Name],
) -> Result<(), NodeError> {
    let Some(store) = open(path, settings)? else {
        return Ok(());
    };
    let delete = || -> Result<(), Failure> {
        store.connection.busy_timeout(settings.connect_timeout)?;
        let sql = "DELETE FROM names WHERE name = ? AND owner IS NULL AND line = 0";
        let mut statement = store.connection.prepare(sql)?;
        for name in names {
            statement.execute([name.as_bytes()])?;
        }
        Ok(())
    };
    delete().map_err(Failure::into_error)
}

/// The file, or the nearest directory above it that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

/// Opens a store, and checks that it can be written. `None` if it does not exist yet, and can be created.
fn open(path: &Path, settings: &NodeSettings) -> Result<Option<Store>, NodeError> {
    if !path.exists() {
        let directory = existing(path);
        let writable = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
        return writable.map(|()| None).map_err(|error| {
            let why = format!("cannot create the store {}: {error}", path.display());
            NodeError::Unusable { why }
        });
    }
    let checked = || -> Result<Store, Failure> {
        let mut store = Store::open(path, &settings.clock, settings.connect_timeout)?;
        store.connection.busy_timeout(settings.connect_timeout)?;
        transaction(&mut store, &settings.clock)?;
        Ok(store)
    };
    checked().map(Some).map_err(Failure::into_error)
}

/// The shortest of some transactions.
fn transactions(store: &mut Store, clock: &Clock) -> Result<Duration, Failure> {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        best = best.min(transaction(store, clock)?);
    }
    Ok(best)
}

/// Takes the lock that every vote takes, and changes nothing.
fn transaction(store: &mut Store, clock: &Clock) -> Result<Duration, Failure> {
    let start = clock.now();
    store
        .connection
        .transaction_with_behavior(TransactionBehavior::Immediate)?
        .rollback()?;
    Ok(clock.now().saturating_duration_since(start))
}

fn processes(store: &Store) -> Result<Processes, Failure> {
    let sql = "SELECT holders FROM names WHERE owner IS NOT NULL AND holders IS NOT NULL
                   AND expires_unix_us > ?1
               UNION ALL
               SELECT holders FROM readers WHERE holders IS NOT NULL AND expires_unix_us > ?1";
    let mut statement = store.connection.prepare(sql)?;
    let now = to_sql(store.clock.unix_us());
    let holders = statement.query_map(params![now], |row| row.get::<_, String>(0))?;
    let mut elsewhere = 0;
    for holders in holders {
        elsewhere += usize::from(!Realm::here().has(&holders?));
    }
    Ok(Processes {
        visible: Realm::here().can_watch(),
        elsewhere,
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn file_system(path: &Path) -> Result<FileSystem, String> {
    let kind = rustix::fs::statfs(path).map_err(|error| error.to_string())?;
    #[allow(clippy::unnecessary_cast)] // the width of the field differs by platform
    let magic = kind.f_type as u32;
    Ok(named(magic))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn file_system(_: &Path) -> Result<FileSystem, String> {
    Err("this system does not say".into())
}

/// The file systems that matter, by the numbers of the kernel.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn named(magic: u32) -> FileSystem {
    match magic {
        0x6969 => FileSystem::Network("nfs"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => FileSystem::Network("smb"),
        0x0102_1997 => FileSystem::Network("9p"),
        0x00c3_6400 => FileSystem::Network("ceph"),
        0x5346_414f => FileSystem::Network("afs"),
        0x6b41_4653 => FileSystem::Network("afs"),
        0x0bd0_0bd0 => FileSystem::Network("lustre"),
        0x4750_4653 => FileSystem::Network("gpfs"),
        0x0116_1970 => FileSystem::Network("gfs2"),
        0x7461_636f => FileSystem::Network("ocfs2"),
        0x1983_0326 => FileSystem::Network("beegfs"),
        0x7375_7245 => FileSystem::Network("coda"),
        0x0102_1994 | 0x8584_58f6 => FileSystem::Memory,
        // ext2 to ext4, xfs, btrfs, overlayfs, f2fs, zfs, bcachefs, reiserfs, jfs, nilfs2, ecryptfs, ubifs,
        // exfat, vfat, ntfs3, apfs.
        0xef53 | 0x5846_5342 | 0x9123_683e | 0x794c_7630 | 0xf2f5_2010 | 0x2fc1_2fc1
        | 0xca45_1a4e | 0x5265_4973 | 0x3153_464a | 0x3434 | 0xf15f | 0x2405_1905 | 0x2011_bab0
        | 0x4d44 | 0x7366_746e | 0x4253_584e => FileSystem::Local,
        other => FileSystem::Other(other),
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_recognised() {
        assert_eq!(named(0x6969), FileSystem::Network("nfs"));
        assert_eq!(named(0x0102_1994), FileSystem::Memory);
        // ext4 and overlayfs.
        assert_eq!(named(0xef53), FileSystem::Local);
        assert_eq!(named(0x794c_7630), FileSystem::Local);
        // FUSE: it may be sshfs.
        assert_eq!(named(0x6573_5546), FileSystem::Other(0x6573_5546));
    }
}

//! The cores of the client and the servers.
//!
//! Without pinning, client and server share a core in one round and not in the next, and the
//! figures of a single task differ by a factor of two. So both placements are measured
//! separately.

use std::process::{Command, Stdio};

/// Where the client and the servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// All on one core.
    SameCore,
    /// The client on one core, and the servers on others, each on a separate one if there are
    /// enough.
    OwnCores,
    /// Wherever the scheduler puts them.
    Anywhere,
}

impl Placement {
    /// Why this placement is impossible on this machine, if it is.
    pub(crate) fn obstacle(self) -> Option<&'static str> {
        match (self, cores().len()) {
            (Self::Anywhere, _) => None,
            (_, 0) => Some("the cores of this machine are not known (no Linux?)"),
            (Self::OwnCores, 1) => Some("there is only one core"),
            _ => None,
        }
    }

    /// Pins the calling thread, and with it all threads that it starts from now on.
    pub(crate) fn pin_client(self) -> Result<(), String> {
        match (self, cores().first()) {
            (Self::Anywhere, _) | (_, None) => Ok(()),
            (_, Some(&core)) => taskset(core, thread_id()?),
        }
    }

    /// Pins the server that is the `index`-th of its set.
    pub(crate) fn pin_server(self, index: usize, pid: u32) -> Result<(), String> {
        let cores = cores();
        let core = match (self, cores.as_slice()) {
            (Self::Anywhere, _) | (_, []) => return Ok(()),
            (Self::SameCore, [first, ..]) | (Self::OwnCores, [first]) => *first,
            (Self::OwnCores, [_, others @ ..]) => others[index % others.len()],
        };
        taskset(core, pid)
    }
}

/// The cores that this process may use, or none if that is unknown.
fn cores() -> Vec<u32> {
    // Of the process, not of the calling thread, which may be pinned already.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| parse_list(list.trim())).unwrap_or_default()
}

/// The number of cores that this process may use, as far as is known.
pub(crate) fn core_count() -> usize {
    cores().len()
}

/// `0-2,5` is 0, 1, 2 and 5.
fn parse_list(list: &str) -> Vec<u32> {
    list.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(from.parse().ok()?..=to.parse().ok()?)
        })
        .flatten()
        .collect()
}

fn thread_id() -> Result<u32, String> {
    let link = std::fs::read_link("/proc/thread-self").map_err(|error| error.to_string())?;
    let id = link.file_name().and_then(|id| id.to_str()?.parse().ok());
    id.ok_or_else(|| format!("no thread id in {}", link.display()))
}

fn taskset(core: u32, id: u32) -> Result<(), String> {
    let status = Command::new("taskset")
        .args(["-cp", &core.to_string(), &id.to_string()])
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("taskset: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("taskset could not pin {id} to core {core}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_have_ranges() {
        assert_eq!(parse_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_list("3"), [3]);
        assert_eq!(parse_list(""), Vec::<u32>::new());
    }
}

//! The controlling terminal and its foreground process group.
//!
//! The command runs in its own process group, so that the whole group can be signalled. Only the
//! foreground group may read from the terminal and receives Ctrl-C and Ctrl-Z. The group of the
//! command is therefore moved to the foreground while it runs.

use std::fs::File;
use std::io::IsTerminal;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal of this process.
pub(super) struct Terminal {
    device: Option<File>,
    /// Whether this process has moved the command to the foreground.
    lent: bool,
}

impl Terminal {
    pub(super) fn open() -> Self {
        let mut options = File::options();
        Self {
            device: options.read(true).write(true).open("/dev/tty").ok(),
            lent: false,
        }
    }

    /// Whether the command is likely to use the terminal. In a pipeline it is not, and other
    /// processes of our group, such as a pager, need the terminal. If the command uses it anyway,
    /// it gets the terminal then.
    pub(super) fn is_interactive() -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Moves the group of the command to the foreground if this process is there. Returns whether
    /// the group is in the foreground.
    pub(super) fn lend_to(&mut self, group: Pid) -> bool {
        let Some(device) = &self.device else {
            return false;
        };
        match tcgetpgrp(device) {
            Ok(now) if now == group => true,
            Ok(now) if now == getpgrp() => {
                self.lent = set_foreground(device, group);
                self.lent
            }
            _ => false,
        }
    }

    /// Moves this process back to the foreground if it has moved the command there.
    pub(super) fn take_back(&mut self) {
        if let (Some(device), true) = (&self.device, self.lent) {
            set_foreground(device, getpgrp());
            self.lent = false;
        }
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Sets the foreground group. Blocks SIGTTOU, which would stop this process if it is in the
/// background.
fn set_foreground(device: &File, group: Pid) -> bool {
    let mut block = SigSet::empty();
    block.add(Signal::SIGTTOU);
    let blocked = block.thread_block();
    let set = tcsetpgrp(device, group);
    if blocked.is_ok() {
        // The signal was not blocked before.
        let _ = block.thread_unblock();
    }
    set.is_ok()
}

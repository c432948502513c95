//! The terminal, and whose turn it is there.
//!
//! The command is in a process group of its own, so that all of it can be signalled. Only the
//! group in the foreground may read from the terminal and hears Ctrl-C and Ctrl-Z, so the
//! command's group is put there, and taken away again.

use std::fs::File;
use std::io::IsTerminal;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that this process was started from.
pub(super) struct Terminal {
    device: Option<File>,
    /// Whether the command is in the foreground because of us.
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

    /// Whether the command is likely to talk to the person there. In a pipeline it is not,
    /// and others in our group (a pager) need the terminal; should the command ask for it
    /// all the same, it is lent then.
    pub(super) fn is_wanted() -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Puts the command's group into the foreground, if we are there. Whether it is there.
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

    /// Puts us back into the foreground, if the command is there because of us.
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

/// From the background this would stop us (`SIGTTOU`) if that were not blocked.
fn set_foreground(device: &File, group: Pid) -> bool {
    let mut block = SigSet::empty();
    block.add(Signal::SIGTTOU);
    let blocked = block.thread_block();
    let set = tcsetpgrp(device, group);
    if blocked.is_ok() {
        // It was not blocked before: nothing here blocks anything for longer.
        let _ = block.thread_unblock();
    }
    set.is_ok()
}

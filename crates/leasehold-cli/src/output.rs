//! Writes lines to stderr and to the file descriptor of `--events-fd`.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The maximum number of queued lines. Further lines are dropped.
const MAX_LINES: usize = 1000;
/// How long to wait at exit until the queued lines are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Set before `main` if stdout is closed.
static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Looks at stdout before the runtime of Rust does, which opens `/dev/null` in its place so that no
/// other file gets its number. A program that discards the output opens the same file, so it cannot be
/// told later.
#[cfg(any(target_os = "linux", target_os = "macos"))]
#[allow(unsafe_code)]
mod before_main {
    use super::{AtomicBool, BorrowedFd, FcntlArg, fcntl};
    use nix::errno::Errno;
    use std::sync::atomic::Ordering;

    // SAFETY: the section is a list of pointers to functions of this type, which are called before
    // `main`. The function makes a system call and sets a flag. It needs nothing of the runtime.
    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        let closed: &AtomicBool = &super::STDOUT_IS_CLOSED;
        // SAFETY: the descriptor is only asked for its flags, which fails if it is not open.
        let stdout = unsafe { BorrowedFd::borrow_raw(1) };
        let flags = fcntl(stdout, FcntlArg::F_GETFD);
        closed.store(flags == Err(Errno::EBADF), Ordering::Relaxed);
    }
}

/// Whether the reader of stdout has closed the pipe.
pub(crate) fn stdout_has_no_reader() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && fds[0]
            .revents()
            .is_some_and(|events| events.intersects(gone))
}

/// Whether stdout was closed when this process started.
pub(crate) fn stdout_is_closed() -> bool {
    STDOUT_IS_CLOSED.load(Ordering::Relaxed)
}

/// Whether stdout was closed when this process started, or discards everything: then it is
/// `/dev/null`, open for reading and writing. A shell opens it only for writing (`> /dev/null`), which
/// the user has asked for.
pub(crate) fn stdout_was_closed() -> bool {
    let stdout = std::io::stdout();
    let read_write = fcntl(&stdout, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR);
    let is_null = || {
        let stdout = File::from(stdout.as_fd().try_clone_to_owned()?).metadata()?;
        Ok::<_, std::io::Error>(stdout.rdev() == std::fs::metadata("/dev/null")?.rdev())
    };
    read_write && is_null().unwrap_or(false)
}

static STDERR: LineWriter = LineWriter::new();
static EVENTS: LineWriter = LineWriter::new();

/// A destination for lines.
///
/// It may be a pipe whose reader has stopped reading. Neither the renewal of the lease nor the
/// supervision of the command may block on that reader, so a separate thread writes the lines while
/// a lease is held.
struct LineWriter {
    /// If not set, lines go to stderr.
    file: OnceLock<EventsFd>,
    in_background: AtomicBool,
    /// To the thread. It is started with the first line, because most runs print none.
    queue: OnceLock<SyncSender<Message>>,
}

enum Message {
    Line(String),
    /// The sender is dropped when all earlier lines have been written.
    End(SyncSender<()>),
}

impl LineWriter {
    const fn new() -> Self {
        Self {
            file: OnceLock::new(),
            in_background: AtomicBool::new(false),
            queue: OnceLock::new(),
        }
    }

    fn write(&'static self, line: String) {
        match self.in_background.load(Ordering::Acquire) {
            false => self.write_now(&line),
            true => {
                let _ = self.queue().try_send(Message::Line(line));
            }
        }
    }

    fn write_now(&self, line: &str) {
        // If this fails there is nowhere left to report the error.
        let _ = match self.file.get() {
            Some(events) => (&*events.0).write_all(format!("{line}\n").as_bytes()),
            None => writeln!(anstream::stderr().lock(), "{line}"),
        };
    }

    fn write_in_background(&self) {
        self.in_background.store(true, Ordering::Release);
    }

    fn queue(&'static self) -> &'static SyncSender<Message> {
        self.queue.get_or_init(|| {
            let (sender, receiver) = sync_channel(MAX_LINES);
            // If the thread cannot be started, lines are dropped.
            let _ = std::thread::Builder::new().spawn(move || {
                for message in receiver {
                    match message {
                        Message::Line(line) => self.write_now(&line),
                        Message::End(done) => drop(done),
                    }
                }
            });
            sender
        })
    }

    fn finish(&self) {
        let (done, wait) = sync_channel(0);
        if let Some(queue) = self.queue.get()
            && queue.try_send(Message::End(done)).is_ok()
        {
            // Returns when `done` is dropped.
            let _ = wait.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes a line to stderr.
pub(crate) fn write_stderr(line: String) {
    STDERR.write(line);
}

/// Writes a line to the descriptor of `--events-fd`, if there is one.
pub(crate) fn write_event(line: &str) {
    if EVENTS.file.get().is_some() {
        EVENTS.write(line.to_owned());
    }
}

/// From now on, lines are written by separate threads and no caller blocks.
pub(crate) fn write_in_background() {
    STDERR.write_in_background();
    if EVENTS.file.get().is_some() {
        EVENTS.write_in_background();
    }
}

/// Waits until the queued lines are written, at most [`FLUSH_TIMEOUT`] for each destination.
pub(crate) fn finish_writing() {
    STDERR.finish();
    EVENTS.finish();
}

/// A descriptor that the parent process opened for events.
#[derive(Clone)]
pub(crate) struct EventsFd(Arc<File>);

impl EventsFd {
    /// Duplicates the descriptor with this number. Must be called before this process opens any
    /// file: otherwise the number could refer to a descriptor of this process.
    pub(crate) fn open(number: &str) -> Result<Self, String> {
        let number: i32 = number.parse().map_err(|_| "not a number".to_owned())?;
        if number < 1 {
            return Err("the descriptor must be 1 or more".to_owned());
        }
        let not_open = |error: std::io::Error| {
            format!(
                "cannot write to descriptor {number}: {error}; open it for writing first, for \
                 example with `9>events.log` in a shell"
            )
        };
        duplicate(number)
            .map(|owned| Self(Arc::new(File::from(owned))))
            .map_err(not_open)
    }

    /// Sends all events to this descriptor.
    pub(crate) fn install(&self) {
        let _ = EVENTS.file.set(self.clone());
    }
}

/// Duplicates an inherited descriptor. The command inherits neither the duplicate nor, unless it is
/// stdout or stderr, the original. A reader of the events therefore sees the end of the file when
/// this process exits.
#[allow(unsafe_code)]
fn duplicate(number: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed only within this function, and nothing closes it here.
    // If it is not open, the first `fcntl` fails and the descriptor is not used.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = OFlag::from_bits_truncate(fcntl(inherited, FcntlArg::F_GETFL)?);
    if flags & OFlag::O_ACCMODE == OFlag::O_RDONLY {
        return Err(std::io::Error::other("it is open for reading only"));
    }
    let owned = inherited.try_clone_to_owned()?;
    if number > 2 {
        fcntl(inherited, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    Ok(owned)
}

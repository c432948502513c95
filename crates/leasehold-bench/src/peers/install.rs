//! Builds the peers' programs in `out/peers`. Nothing is installed elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child;

/// Longer than a slow network and a slow compiler take.
const LIMIT: Duration = Duration::from_secs(300);

/// The platform of a peer. The sources of its program are in the directory of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toolchain {
    Rust,
    Node,
    Python,
    Go,
    Jvm,
}

impl Toolchain {
    pub(super) const ALL: [Self; 5] = [Self::Rust, Self::Node, Self::Python, Self::Go, Self::Jvm];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Node => "node",
            Self::Python => "python",
            Self::Go => "go",
            Self::Jvm => "jvm",
        }
    }

    /// The number of the database that its clients use on the common servers. Two clients of
    /// different languages use the same key names, and fail on each other's keys.
    pub(super) fn database(self) -> u8 {
        match self {
            Self::Rust => 1,
            Self::Node => 2,
            Self::Python => 3,
            Self::Go => 4,
            Self::Jvm => 5,
        }
    }

    /// The directory of its program and packages.
    fn home(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("out/peers")
            .join(self.name())
    }

    fn installer(self) -> Command {
        let (program, args): (_, &[&str]) = match self {
            Self::Rust => ("cargo", &["build", "--release", "--locked", "--quiet"]),
            Self::Node => (
                "npm",
                &["ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            ),
            Self::Python => (
                "python3",
                &[
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--upgrade",
                    "--target=packages",
                    "--requirement=requirements.txt",
                ],
            ),
            Self::Go => ("go", &["build", "-o", "harness", "."]),
            Self::Jvm => (
                "mvn",
                &["-q", "-B", "compile", "dependency:copy-dependencies"],
            ),
        };
        let mut command = Command::new(program);
        command.args(args).current_dir(self.home());
        if let Self::Rust = self {
            command.env("CARGO_TARGET_DIR", self.home().join("target"));
        }
        command
    }

    /// The installed program, without arguments.
    pub(super) fn program(self) -> Command {
        let home = self.home();
        match self {
            Self::Rust => Command::new(home.join("target/release/harness")),
            Self::Go => Command::new(home.join("harness")),
            Self::Node => {
                let mut command = Command::new("node");
                command.arg(home.join("harness.mjs"));
                command
            }
            Self::Python => {
                let mut command = Command::new("python3");
                command.arg(home.join("harness.py"));
                command.env("PYTHONPATH", home.join("packages"));
                command
            }
            Self::Jvm => {
                let mut command = Command::new("java");
                // Its second compiler would still be running at the end of a turn.
                command.args(["-XX:TieredStopAtLevel=1", "-cp", "target/classes:lib/*"]);
                command.arg("Harness").current_dir(home);
                command
            }
        }
    }
}

/// Installs the program, unless the same sources are installed already.
///
/// # Errors
///
/// The reason in one line.
pub(super) fn install(toolchain: Toolchain) -> Result<(), String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(toolchain.name());
    let home = toolchain.home();
    let stamp = home.join("installed");
    let wanted = copy(&sources, &home).map_err(|error| format!("its sources: {error}"))?;
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!("installing peers on {}", toolchain.name());
    let log = home.join("install.log");
    let file = fs::File::create(&log).map_err(|error| error.to_string())?;
    let mut command = toolchain.installer();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let ended = child::run(command.stderr(file), LIMIT);
    if let Err(why) = ended {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty());
        return Err(format!("{why} {}", last.unwrap_or_default()));
    }
    fs::write(&stamp, wanted).map_err(|error| error.to_string())
}

/// Copies a directory tree. Returns the contents of all files, concatenated.
fn copy(from: &Path, to: &Path) -> std::io::Result<Vec<u8>> {
    fs::create_dir_all(to)?;
    let mut entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut contents = Vec::new();
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            contents.extend(copy(&source, &target)?);
            continue;
        }
        let content = fs::read(&source)?;
        // An unchanged file keeps its modification time, so that it is not built again.
        if !fs::read(&target).is_ok_and(|there| there == content) {
            fs::write(&target, &content)?;
        }
        contents.extend(content);
    }
    Ok(contents)
}

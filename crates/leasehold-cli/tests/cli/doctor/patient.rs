//! Deployments with a fault.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_testkit::{RedisServer, TempDir};

use crate::{Place, Ran, Running, output, wrapped};

/// A deployment with a fault, and how to examine it.
pub(super) struct Patient {
    pub(super) place: Place,
    pub(super) args: Vec<String>,
    /// A program that runs the tool.
    pub(super) under: Vec<String>,
    /// Dropped in this order, after the last examination.
    work: Option<Work>,
    _held: Vec<Box<dyn std::any::Any>>,
    servers: Vec<RedisServer>,
}

impl Patient {
    pub(super) fn new(servers: Vec<RedisServer>) -> Self {
        let place = match servers.is_empty() {
            true => Place::local(),
            false => Place::redis(&servers),
        };
        Self {
            place,
            args: Vec::new(),
            under: Vec::new(),
            work: None,
            _held: Vec::new(),
            servers,
        }
    }

    pub(super) fn local() -> Self {
        Self::new(Vec::new())
    }

    /// Uses these nodes.
    pub(super) fn nodes(mut self, nodes: impl Into<String>) -> Self {
        self.place.nodes = Some(nodes.into());
        self
    }

    pub(super) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Keeps something alive.
    pub(super) fn holding(mut self, held: impl std::any::Any) -> Self {
        self._held.push(Box::new(held));
        self
    }

    /// Does something with the first server again and again.
    pub(super) fn while_it(mut self, work: impl Fn(&Remote) + Send + 'static) -> Self {
        let remote = Remote(self.servers[0].port());
        self.work = Some(Work::start(move || work(&remote)));
        self
    }

    pub(super) fn run(&self, more: &[&str]) -> Ran {
        let mut args = vec!["doctor", "-o", "json"];
        args.extend(self.args.iter().map(String::as_str));
        args.extend(more);
        let command = self.place.command(&args);
        let mut command = match self.under.split_first() {
            None => command,
            Some((program, first)) => {
                let first: Vec<_> = first.iter().map(String::as_str).collect();
                wrapped(program, &first, &command)
            }
        };
        Running::start(&mut command).end()
    }

    pub(super) fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    pub(super) fn examine(&self) -> Ran {
        self.run(&[])
    }
}

/// A server that a thread can use.
pub(super) struct Remote(u16);

impl Remote {
    /// Sends a line, and waits for some of the reply.
    pub(super) fn send(&self, line: &str) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.0)) else {
            return;
        };
        let _ = stream.write_all(format!("{line}\r\n").as_bytes());
        let _ = stream.read(&mut [0; 64]);
    }
}

/// A thread that works until it is dropped.
struct Work {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Work {
    fn start(work: impl Fn() + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                work();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server on a machine with faults that files in the directory turn on: see `faults.c`.
pub(super) fn on_a_faulty_machine() -> (RedisServer, TempDir) {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("faults.c"), include_str!("faults.c")).expect("written");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-o"]);
    compile.args([path("faults.so"), path("faults.c")]);
    let compiled = output(&mut compile);
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "cc: {errors}");
    let preload = format!("LD_PRELOAD={}", path("faults.so").display());
    let faults = format!("FAULTS={}", dir.path().display());
    (RedisServer::start_under(&["env", &preload, &faults]), dir)
}

/// A proxy that makes a server seem older: the first digit of its version becomes 5.
pub(super) fn as_if_it_were_old(server: &RedisServer) -> String {
    with_version(server, b'5')
}

/// A proxy that replaces the first digit of a server's version.
pub(super) fn with_version(server: &RedisServer, digit: u8) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let port = server.port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            let (from_client, to_server) = (client.try_clone(), server.try_clone());
            if let (Ok(mut from), Ok(mut to)) = (from_client, to_server) {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
            std::thread::spawn(move || replace_version(server, client, digit));
        }
    });
    url
}

fn replace_version(mut from: TcpStream, mut to: TcpStream, digit: u8) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // The field is near the beginning of a reply, so it is not cut.
        for field in [&b"redis_version:"[..], b"valkey_version:"] {
            let found = buffer[..count]
                .windows(field.len())
                .position(|at| at == field);
            if let Some(at) = found {
                match field.starts_with(b"redis") {
                    true => buffer[at + field.len()] = digit,
                    false => buffer[at] = b'x',
                }
            }
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// A certificate authority and a certificate for 127.0.0.1 that is valid for some days.
pub(super) fn certificates(days: &str) -> TempDir {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("names"), "subjectAltName=IP:127.0.0.1").expect("written");
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        let ran = output(command.args(line.split(' ')).current_dir(dir.path()));
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "openssl {line}: {errors}");
    };
    let key = "-newkey rsa:2048 -nodes -keyout";
    openssl(&format!(
        "req -x509 -days 900 -subj /CN=ca -out ca.pem {key} ca.key"
    ));
    openssl(&format!(
        "req -subj /CN=server -out server.csr {key} server.key"
    ));
    openssl(&format!(
        "x509 -req -days {days} -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names \
         -out server.pem"
    ));
    dir
}

/// A patient whose certificate is valid for some days.
pub(super) fn with_certificate(days: &str) -> Patient {
    let dir = certificates(days);
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let text = |name: &str| path(name).display().to_string();
    let port = leasehold_testkit::free_port().to_string();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &text("server.pem"),
        "--tls-key-file",
        &text("server.key"),
        "--tls-ca-cert-file",
        &text("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let args = ["--tls-ca".to_owned(), text("ca.pem")];
    Patient::new(vec![server])
        .nodes(format!("rediss://127.0.0.1:{port}"))
        .args(&args.each_ref().map(String::as_str))
        .holding(dir)
}

//! A connection to a server that has no task of its own. The task that waits for replies also writes
//! requests and reads replies, so an answer costs one wake-up, and not two.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{Cmd, Pipeline, PushKind, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bells::Bells;
use super::reply::connection_error;
use super::resp;
use super::stream::Bytes;
use crate::node::NodeError;

/// How many bytes are read at a time, at first.
const READ: usize = 4096;
/// A value that is larger makes no sense: the largest is a stored result, in the answers to a batch.
const MAX_VALUE: usize = 256 << 20;

/// A connection to a server.
pub(super) struct Connection {
    wire: Arc<Mutex<Wire>>,
}

/// Bytes that are to be written and that were read.
struct Wire {
    stream: Box<dyn Bytes>,
    output: Vec<u8>,
    /// How many bytes of `output` have been written.
    written: usize,
    /// Whether all that was written has left the stream, which may buffer it.
    flushed: bool,
    /// What was read is in `read`; the rest is room.
    input: Vec<u8>,
    read: std::ops::Range<usize>,
    /// The requests that have not been answered, or whose replies have not been taken.
    asked: VecDeque<Asked>,
    number: u64,
    /// Why the connection cannot be used any more. Replies that came before still count.
    broken: Option<NodeError>,
    bells: Weak<Bells>,
}

/// Requests that were sent together.
struct Asked {
    number: u64,
    /// How many replies are still to come.
    missing: usize,
    /// The server confirms it by a message, instead of a reply.
    subscribes: bool,
    replies: Vec<Value>,
}

/// The replies to requests that were sent together. Polling it also writes requests, reads the
/// replies to others, and notifies waiters.
pub(super) struct Replies {
    wire: Arc<Mutex<Wire>>,
    number: u64,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Bytes>, bells: Weak<Bells>) -> Self {
        Self {
            wire: Arc::new(Mutex::new(Wire {
                stream,
                output: Vec::new(),
                written: 0,
                flushed: true,
                input: vec![0; READ],
                read: 0..0,
                asked: VecDeque::new(),
                number: 0,
                broken: None,
                bells,
            })),
        }
    }

    /// Sends what `write` adds: it returns the number of requests. They leave when the replies, or
    /// those to others, are polled.
    pub(super) fn send(&self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> Replies {
        let wire = &mut *locked(&self.wire);
        let missing = write(&mut wire.output);
        wire.number += 1;
        wire.asked.push_back(Asked {
            number: wire.number,
            missing,
            subscribes: false,
            replies: Vec::with_capacity(missing),
        });
        Replies {
            wire: Arc::clone(&self.wire),
            number: wire.number,
        }
    }

    /// Sends requests, and waits for the replies. Errors that the server returns are among them.
    pub(super) async fn exchange(&self, pipeline: &Pipeline) -> Result<Vec<Value>, NodeError> {
        let sending = self.send(|output| {
            pipeline
                .cmd_iter()
                .for_each(|cmd| cmd.write_packed_command(output));
            pipeline.len()
        });
        sending.await
    }

    /// The same, within a time limit.
    pub(super) async fn exchange_within(
        &self,
        pipeline: &Pipeline,
        timeout: Duration,
    ) -> Result<Vec<Value>, NodeError> {
        let exchange = tokio::time::timeout(timeout, self.exchange(pipeline));
        let timed_out = NodeError::TimedOut { after: timeout };
        exchange.await.unwrap_or(Err(timed_out))
    }

    /// Subscribes to a channel. Returns the error of a server that refuses.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<Option<Value>, NodeError> {
        let mut subscribe = Cmd::new();
        subscribe.arg("SUBSCRIBE").arg(channel);
        let sending = self.send(|output| {
            subscribe.write_packed_command(output);
            1
        });
        if let Some(asked) = locked(&self.wire).asked.back_mut() {
            asked.subscribes = true;
        }
        let mut replies = sending.await?;
        Ok(replies
            .pop()
            .filter(|reply| matches!(reply, Value::ServerError(_))))
    }

    /// Writes and reads what can be, and notifies waiters. For a task that waits for no reply.
    pub(super) fn poll(&self, cx: &mut Context<'_>) {
        locked(&self.wire).poll(cx, None);
    }
}

impl Future for Replies {
    type Output = Result<Vec<Value>, NodeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wire = &mut *locked(&self.wire);
        // Replies that are there already are taken first, and reading ends with the last of them:
        // whoever waits for something else polls again.
        if !wire.is_answered(self.number) {
            wire.poll(cx, Some(self.number));
        }
        if let Some(replies) = wire.take_replies(self.number) {
            return Poll::Ready(Ok(replies));
        }
        match &wire.broken {
            Some(why) => Poll::Ready(Err(why.clone())),
            None => Poll::Pending,
        }
    }
}

fn locked(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// Writes and reads what can be, until the requests of this number are answered.
    fn poll(&mut self, cx: &mut Context<'_>, until: Option<u64>) {
        if self.broken.is_some() {
            return;
        }
        if let Err(error) = self.write(cx).and_then(|()| self.read(cx, until)) {
            // The connection was in use: whether a request took effect is not known.
            self.broken = Some(match connection_error(&error.into()) {
                NodeError::Unreachable { why } | NodeError::Tls { why } => {
                    NodeError::Disconnected { why }
                }
                other => other,
            });
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.written < self.output.len() {
            let rest = &self.output[self.written..];
            match Pin::new(&mut self.stream).poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => self.written += written,
                Poll::Pending => return Ok(()),
            }
            self.flushed = false;
        }
        self.output.clear();
        self.written = 0;
        if !self.flushed {
            self.flushed = Pin::new(&mut self.stream).poll_flush(cx)?.is_ready();
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>, until: Option<u64>) -> io::Result<()> {
        while self.broken.is_none() && !until.is_some_and(|number| self.is_answered(number)) {
            self.make_room();
            let mut buffer = ReadBuf::new(&mut self.input[self.read.end..]);
            if Pin::new(&mut self.stream)
                .poll_read(cx, &mut buffer)?
                .is_pending()
            {
                break;
            }
            let count = buffer.filled().len();
            if count == 0 {
                let why = "the server closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            self.read.end += count;
            self.take_values();
        }
        Ok(())
    }

    fn position(&self, number: u64) -> Option<usize> {
        let mut asked = self.asked.iter();
        asked.position(|asked| asked.number == number && asked.missing == 0)
    }

    /// Whether all replies to the requests of this number have been read.
    fn is_answered(&self, number: u64) -> bool {
        self.position(number).is_some()
    }

    fn take_replies(&mut self, number: u64) -> Option<Vec<Value>> {
        let asked = self.asked.remove(self.position(number)?)?;
        Some(asked.replies)
    }

    /// Makes room for more bytes.
    fn make_room(&mut self) {
        if self.read.is_empty() {
            self.read = 0..0;
            if self.input.len() > 64 * READ {
                self.input = vec![0; READ];
            }
        } else if self.read.end == self.input.len() {
            self.input.copy_within(self.read.clone(), 0);
            self.read = 0..self.read.len();
            if self.read.len() > self.input.len() / 2 {
                self.input.resize(2 * self.input.len(), 0);
            }
        }
    }

    /// Takes all values that are complete.
    fn take_values(&mut self) {
        while !self.read.is_empty() {
            match resp::read(&self.input[self.read.clone()]) {
                Ok(None) if self.read.len() <= MAX_VALUE => break,
                Ok(Some((Ok(value), length))) => {
                    self.read.start += length;
                    self.take(value);
                }
                _ => {
                    let why = "not what a Redis server says".into();
                    self.broken = Some(NodeError::Protocol { why });
                    return;
                }
            }
        }
    }

    /// Takes a reply, or a message. Rule: a reply that was not asked for makes the connection useless,
    /// because it would answer the next request.
    fn take(&mut self, value: Value) {
        let asked = self.asked.iter_mut().find(|asked| asked.missing > 0);
        match (value, asked) {
            (Value::Push { kind, data }, asked) => match asked {
                Some(asked) if asked.subscribes && kind == PushKind::Subscribe => asked.missing = 0,
                _ => {
                    if let Some(bells) = self.bells.upgrade() {
                        bells.pushed(&kind, &data);
                    }
                }
            },
            (value, Some(asked)) => {
                asked.replies.push(value);
                asked.missing -= 1;
            }
            (_, None) => {
                let why = "a reply that was not asked for".into();
                self.broken = Some(NodeError::Protocol { why });
            }
        }
    }
}

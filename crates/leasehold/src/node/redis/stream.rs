//! Opens a connection to a server: TCP, TLS or a Unix socket, and the first commands on it (protocol,
//! password, database), which the `redis` crate sends.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long to read what a server sent before it closed the connection. It is there already.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The longest error that is kept.
const MAX_HEARD: usize = 512;

/// Bytes to and from a server.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Opens a connection on which requests can be sent.
pub(super) async fn open(
    info: &ConnectionInfo,
    tls: &super::tls::TlsClient,
) -> Result<Box<dyn Bytes>, RedisError> {
    let bytes = connect(info.addr(), tls).await?;
    let lender = Loan(Arc::new(Mutex::new(Lent {
        stream: Some(bytes),
        heard: Vec::new(),
    })));
    let settings = info.redis_settings();
    let opened = MultiplexedConnection::new(settings, lender.clone()).await;
    let (connection, driver) = match opened {
        Ok(opened) => opened,
        Err(error) if error.is_io_error() => {
            return Err(lender.last_words().await.unwrap_or(error));
        }
        Err(error) => return Err(error),
    };
    // All replies to the first commands have been read, so nothing is lost with these.
    drop((connection, driver));
    lender
        .take()
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
}

async fn connect(
    addr: &ConnectionAddr,
    tls: &super::tls::TlsClient,
) -> Result<Box<dyn Bytes>, RedisError> {
    match addr {
        ConnectionAddr::Tcp(host, port) => Ok(Box::new(connect_tcp(host, *port).await?)),
        ConnectionAddr::TcpTls { host, port, .. } => {
            let stream = connect_tcp(host, *port).await?;
            Ok(tls.connect(host, stream).await?)
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        addr => {
            let why = format!("{addr} is not supported on this system");
            Err(io::Error::new(io::ErrorKind::Unsupported, why).into())
        }
    }
}

/// Connects to the first address that accepts. All are tried at once: one that is silent must not
/// delay the others.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    addresses.dedup();
    let stream = match addresses[..] {
        [address] => TcpStream::connect(address).await?,
        _ => {
            let mut attempts = JoinSet::new();
            for address in addresses {
                attempts.spawn(TcpStream::connect(address));
            }
            let why = format!("no address found for {host}");
            let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, why));
            while let Some(attempt) = attempts.join_next().await {
                outcome = attempt.map_err(io::Error::other).and_then(|stream| stream);
                if outcome.is_ok() {
                    break;
                }
            }
            outcome?
        }
    };
    // Requests are small, and are answered before the next is sent.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A stream that is lent to the `redis` crate, and taken back.
#[derive(Clone)]
struct Loan(Arc<Mutex<Lent>>);

struct Lent {
    stream: Option<Box<dyn Bytes>>,
    /// What the server sent first: the crate does not report an error that came before its request.
    heard: Vec<u8>,
}

impl Loan {
    fn take(&self) -> Option<Box<dyn Bytes>> {
        self.lent().stream.take()
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that the server sent before it closed the connection, for example because it has too many.
    async fn last_words(&self) -> Option<RedisError> {
        let mut heard = std::mem::take(&mut self.lent().heard);
        if heard.is_empty() {
            let mut stream = self.take()?;
            let mut sent = [0; MAX_HEARD];
            let mut buffer = ReadBuf::new(&mut sent);
            let reading =
                std::future::poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buffer));
            let read = tokio::time::timeout(LAST_WORDS, reading).await;
            read.ok()?.ok()?;
            heard = buffer.filled().to_vec();
        }
        match redis::parse_redis_value(&heard).ok()? {
            redis::Value::ServerError(error) => Some(error.into()),
            _ => None,
        }
    }

    fn with<T>(
        &self,
        poll: impl FnOnce(Pin<&mut dyn Bytes>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut self.lent().stream {
            Some(stream) => poll(Pin::new(&mut **stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Loan {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.with(|stream| stream.poll_read(cx, buffer));
        let heard = &mut self.lent().heard;
        let rest = MAX_HEARD.saturating_sub(heard.len());
        heard.extend(buffer.filled()[before..].iter().take(rest));
        read
    }
}

impl AsyncWrite for Loan {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}

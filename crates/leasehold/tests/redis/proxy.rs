//! TCP servers and proxies of the tests.

use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Handles each connection to a free port in a task of its own. Returns the URL.
pub async fn listen<F>(handle: impl Fn(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    url
}

/// Forwards connections to a server with a delay of `way` in each direction.
pub async fn distant(port: u16, way: Duration) -> String {
    listen(move |near| async move {
        let far = TcpStream::connect(("127.0.0.1", port)).await;
        let (from_near, to_near) = near.into_split();
        let (from_far, to_far) = far.expect("the server").into_split();
        tokio::spawn(carry(from_near, to_far, way));
        carry(from_far, to_near, way).await;
    })
    .await
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Duration,
) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((at, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(at).await;
            let bytes: Vec<u8> = bytes;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let at = tokio::time::Instant::now() + way;
        if sender.send((at, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}

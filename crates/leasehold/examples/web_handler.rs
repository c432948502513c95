//! A web handler that does expensive work under a lock: one request at a time per report, on however
//! many servers. Requests that wait for too long get `503`, with the holder.
//!
//! ```sh
//! cargo run --example web_handler                       # then: curl localhost:3000/reports/7
//! cargo run --example web_handler -- redis://localhost  # the same lock on every machine
//! ```
//!
//! With `--try` as the first argument it sends itself two requests at once, and exits.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let tries = args.first().is_some_and(|arg| arg == "--try");
    let urls = args.split_off(usize::from(tries));
    let client = match urls.is_empty() {
        true => Client::in_memory(),
        false => Client::builder().nodes(urls).connect().await?,
    };
    let app = axum::Router::new()
        .route("/reports/{id}", get(report))
        .with_state(client.clone());
    let address = if tries {
        "127.0.0.1:0"
    } else {
        "127.0.0.1:3000"
    };
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}/reports/ID");
    let server = async move { axum::serve(listener, app).await };
    match tries {
        false => server.await?,
        true => {
            tokio::spawn(server);
            let (one, two) = tokio::join!(fetch(address), fetch(address));
            println!("{}\n{}", one?, two?);
        }
    }
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// The lease is released when the work is done. If the client hangs up, axum drops the handler's
/// future, and with it the lease.
async fn report(State(client): State<Client>, Path(id): Path<u64>) -> (StatusCode, String) {
    let lock = client.mutex(format!("reports/{id}"));
    let lease = match lock.lock_timeout(Duration::from_secs(2)).await {
        Ok(lease) => lease,
        Err(Error::TimedOut { refusal, .. }) => {
            let holder = refusal.holder().map(ToString::to_string);
            let text = format!("busy: {}\n", holder.unwrap_or_default());
            return (StatusCode::SERVICE_UNAVAILABLE, text);
        }
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let work = tokio::time::sleep(Duration::from_millis(300));
    tokio::select! {
        biased;
        () = lease.lost() => (StatusCode::INTERNAL_SERVER_ERROR, "the lease was lost\n".into()),
        () = work => {
            let text = format!("report {id}, made with token {}\n", lease.token());
            lease.release().await;
            (StatusCode::OK, text)
        }
    }
}

/// A small HTTP client.
async fn fetch(address: std::net::SocketAddr) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = "GET /reports/7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    Ok(format!(
        "{}: {}",
        head.lines().next().unwrap_or_default(),
        body.trim()
    ))
}

//! A client far from the server, among near ones: its share of the lock.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Leasehold};
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "15/far";
const PLACEMENT: Placement = Placement::OwnCores;
/// The round trip of the far client.
const ROUND_TRIP: Duration = Duration::from_millis(40);
const NEAR: usize = 3;
/// How long each client holds the lock.
const HOLD: Duration = Duration::from_millis(1);

pub(crate) const SHARE: &str = "far client, of its possible share";

/// Runs the scenario on one server.
pub(super) fn run(plan: &Plan, server: &Servers) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    server.place(PLACEMENT)?;
    let work = "one client 40 ms away, three near, 1 ms each";
    let mut sheet = Sheet::new(ID, work, "far clients");
    sheet.add(1, Kind::Leasehold);
    sheet.take_turns(plan.contest_rounds, |_, _, round| {
        on_pinned_thread(PLACEMENT, || {
            let runtime = one_thread_runtime()?;
            let figures = runtime.block_on(turn(&server.urls(), round, plan.contest * 2));
            runtime.shutdown_background();
            figures
        })
    });
    Ok(sheet)
}

async fn turn(urls: &[String], round: usize, length: Duration) -> Result<Figures, String> {
    let name = format!("15/far/{round:04}");
    let url = urls.first().ok_or("no server")?;
    let address = url.trim_start_matches("redis://").to_owned();
    let far = Leasehold::connect(&[distant(address).await?]).await?;
    let mut clients = vec![far];
    for _ in 0..NEAR {
        clients.push(Leasehold::connect(urls).await?);
    }
    let (mut contenders, start) = (JoinSet::new(), Instant::now());
    for (index, client) in clients.into_iter().enumerate() {
        let mutex = client.client().mutex(&name);
        contenders.spawn(async move {
            let (mut count, mut longest) = (0_u32, Duration::ZERO);
            while start.elapsed() < length {
                let asked = Instant::now();
                let lease = mutex.lock().await.map_err(|error| error.to_string())?;
                longest = longest.max(asked.elapsed());
                count += 1;
                tokio::time::sleep(HOLD).await;
                lease.release().await;
            }
            Ok::<_, String>((index, count, longest))
        });
    }
    let done = contenders
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let all: u32 = done.iter().map(|(_, count, _)| count).sum();
    let far = done.iter().find(|(index, ..)| *index == 0);
    let (_, far, longest) = far.ok_or("no far client")?;
    // A fair share is a quarter of all leases. But it cannot have more turns than fit into the time: the
    // request and the notification travel for a round trip together, and so do the release and its answer,
    // of which the first half overlaps with nothing.
    let fair = f64::from(all) / (NEAR + 1) as f64;
    let possible = length.as_secs_f64() / (ROUND_TRIP + ROUND_TRIP / 2 + HOLD).as_secs_f64();
    Ok(vec![
        (SHARE, f64::from(*far) / fair.min(possible)),
        (
            "far client, leases/s",
            f64::from(*far) / length.as_secs_f64(),
        ),
        ("all, leases/s", f64::from(all) / length.as_secs_f64()),
        ("far client, longest wait, ms", longest.as_secs_f64() * 1e3),
    ])
}

/// Starts a proxy that delays everything in both directions. Returns its URL.
async fn distant(server: String) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(text)?;
    let url = format!("redis://{}", listener.local_addr().map_err(text)?);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&server).await else {
                continue;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(delay(from_client, to_server));
            tokio::spawn(delay(from_server, to_client));
        }
    });
    Ok(url)
}

/// Forwards everything, in order, half a round trip later.
async fn delay(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin + Send + 'static,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let due = tokio::time::Instant::now() + ROUND_TRIP / 2;
        if sender.send((due, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

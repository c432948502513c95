use leasehold::Client;
use std::time::{Duration, Instant};
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = Client::builder().nodes(urls).assume_fresh().connect().await.unwrap();
    let m = client.mutex("x");
    let l = m.lock().await.unwrap();
    println!("{l:?}");
    println!("{:?}", m.try_lock().await.unwrap().is_none());
    println!("{}", m.lock_timeout(Duration::from_millis(100)).await.unwrap_err());
    println!("{:?}", l.release().await);
    let t = Instant::now();
    let n = 20000;
    for i in 0..n { let l = client.mutex(format!("k{}", i % 100)).lock().await.unwrap(); assert_eq!(l.release().await, leasehold::Released::Released); }
    println!("{:.0} pairs/s", n as f64 / t.elapsed().as_secs_f64());
    let t = Instant::now();
    let tasks: Vec<_> = (0..100).map(|i| { let c = client.clone(); tokio::spawn(async move { for j in 0..1000 { let l = c.mutex(format!("t{i}-{}", j % 10)).lock().await.unwrap(); l.release().await; } }) }).collect();
    for t in tasks { t.await.unwrap(); }
    println!("100 tasks: {:.0} pairs/s", 100_000. / t.elapsed().as_secs_f64());
}

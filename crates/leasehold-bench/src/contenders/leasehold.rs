//! leasehold with its defaults (fenced, renewed in the background), and without fencing.

use ::leasehold::{Client, Lease, Options, Released};

use super::Lock;
use super::observed;
use crate::TTL;

/// Thousands of clients connect at once, to a server on the same processors. Connecting is not
/// measured, so a client that finds the server too busy tries again.
const TRIES: usize = 10;

#[derive(Clone)]
pub(crate) struct Leasehold {
    client: Client,
}

impl Leasehold {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn connect(urls: &[String]) -> Result<Self, String> {
        Self::connect_with(urls, Options::default()).await
    }

    pub(crate) async fn without_fencing(urls: &[String]) -> Result<Self, String> {
        Self::connect_with(urls, Options::default().without_fencing()).await
    }

    async fn connect_with(urls: &[String], options: Options) -> Result<Self, String> {
        let mut tries = 0;
        loop {
            tries += 1;
            let client = observed::builder()?
                .nodes(urls)
                .options(options.clone().ttl(TTL))
                // The servers are new, so they have no memory to lose.
                .assume_fresh()
                .connect()
                .await;
            match client {
                Ok(client) => return Ok(Self { client }),
                Err(error) if tries >= TRIES => return Err(error.to_string()),
                Err(_) => {}
            }
        }
    }
}

impl Lock for Leasehold {
    type Held = Lease;

    fn token(lease: &Self::Held) -> Option<u64> {
        Some(lease.token())
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        let lease = self.client.mutex(name).lock().await;
        lease.map_err(|error| error.to_string())
    }

    async fn release(&self, _: &str, lease: Self::Held) -> Result<(), String> {
        match lease.release().await {
            Released::WasLost => Err("the lease was lost".into()),
            _ => Ok(()),
        }
    }
}

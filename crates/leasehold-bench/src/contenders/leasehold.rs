//! leasehold with its defaults: fenced, renewed in the background. And without fencing.

use ::leasehold::{Client, Lease, Options, Released};

use super::Lock;
use crate::TTL;

#[derive(Clone)]
pub(crate) struct Leasehold {
    client: Client,
}

impl Leasehold {
    pub(crate) async fn connect(urls: &[String]) -> Result<Self, String> {
        Self::connect_with(urls, Options::default()).await
    }

    pub(crate) async fn without_fencing(urls: &[String]) -> Result<Self, String> {
        Self::connect_with(urls, Options::default().without_fencing()).await
    }

    async fn connect_with(urls: &[String], options: Options) -> Result<Self, String> {
        let client = Client::builder()
            .nodes(urls)
            .options(options.ttl(TTL))
            // The servers are new: there is nothing that they could have forgotten.
            .assume_fresh()
            .connect()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self { client })
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
            Released::Released => Ok(()),
            Released::WasLost => Err("the lease was lost".into()),
        }
    }
}

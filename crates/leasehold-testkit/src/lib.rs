//! For testing leasehold, and nodes written for it.

mod server;

pub use server::RedisServer;

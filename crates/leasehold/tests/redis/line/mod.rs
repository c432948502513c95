//! Waiting in line on real servers: no turn is missed, whatever fails.

mod faults;
mod notifications;
mod turns;

use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::pause;

/// Waits until tickets are in order of arrival. A new server grants only its lowest possible
/// token for a while, so that waiters have equal tickets.
async fn until_in_order() {
    pause(200).await;
}

/// The number of connections that have a subscription.
fn subscriptions(server: &RedisServer) -> usize {
    let list = server.command(&[b"CLIENT", b"LIST", b"TYPE", b"pubsub"]);
    list.matches(" addr=").count()
}

/// The number of commands that clients have sent so far, without those of this function.
fn commands(server: &RedisServer) -> u64 {
    let commands = ["evalsha", "eval", "ping", "subscribe"];
    commands.map(|command| server.calls(command)).iter().sum()
}

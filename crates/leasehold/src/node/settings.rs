//! What nodes by URL are told by whoever makes a client.

use std::time::Duration;

use super::rules::Constants;
use crate::clock::Clock;

/// What a node needs to know beside its URL.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
#[derive(Clone)]
pub(crate) struct NodeSettings {
    pub(crate) constants: Constants,
    pub(crate) assume_fresh: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) tls: Tls,
}

/// What `rediss://` nodes are shown and believed.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

//! What observing a client costs. The variable `LEASEHOLD_BENCH_OBSERVE` says how it is observed.

use std::sync::Once;

use leasehold::observe::{Event, MetricsObserver};
use leasehold::{Builder, Client};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::util::SubscriberInitExt;

const VARIABLE: &str = "LEASEHOLD_BENCH_OBSERVE";

/// A builder of a client that is observed as the variable says: `observer` (one that does nothing),
/// `metrics` (with the recorder of Prometheus) or `spans` (with a subscriber that keeps them until they
/// end). Without the variable, there is neither an observer nor a subscriber.
pub(super) fn builder() -> Result<Builder, String> {
    static INSTALLED: Once = Once::new();
    let builder = Client::builder();
    match std::env::var(VARIABLE).as_deref() {
        Err(_) => Ok(builder),
        Ok("observer") => Ok(builder.observer(|event: &Event| {
            std::hint::black_box(event);
        })),
        Ok("metrics") => {
            INSTALLED.call_once(|| {
                // If another recorder were installed, the figures would be those of that one.
                let installed = PrometheusBuilder::new().install_recorder();
                installed.expect("no other recorder is installed");
            });
            Ok(builder.observer(MetricsObserver::new()))
        }
        Ok("spans") => {
            INSTALLED.call_once(|| tracing_subscriber::registry().init());
            Ok(builder)
        }
        Ok(other) => Err(format!(
            "{VARIABLE} is {other:?}; it can be observer, metrics or spans"
        )),
    }
}

//! Spans for OpenTelemetry: the wait for a lock and the time that it is held, as children of the span
//! of the request. This prints the spans that were exported. A program uses the exporter of its
//! collector instead, for example that of the crate `opentelemetry-otlp`.
//!
//! ```sh
//! cargo run -p leasehold --example opentelemetry
//! ```

use std::error::Error;
use std::time::Duration;

use leasehold::Client;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("example"));
    tracing_subscriber::registry().with(layer).init();

    let client = Client::in_memory();
    let request = tracing::info_span!("request");
    handle(&client).instrument(request).await?;
    provider.force_flush()?;

    let spans = exporter.get_finished_spans()?;
    for span in &spans {
        let took = span.end_time.duration_since(span.start_time)?;
        let mut fields = Vec::new();
        for field in &span.attributes {
            if ["name", "token", "outcome"].contains(&field.key.as_str()) {
                fields.push(format!("{}={}", field.key, field.value));
            }
        }
        println!("{:18} {:8.3?} {}", span.name, took, fields.join(" "));
    }
    let find = |name: &str| spans.iter().find(|span| span.name == name);
    let request = find("request").ok_or("no span of the request")?;
    for name in ["leasehold.acquire", "leasehold.hold"] {
        let span = find(name).ok_or_else(|| format!("no span {name}"))?;
        assert_eq!(span.parent_span_id, request.span_context.span_id());
    }
    Ok(())
}

async fn handle(client: &Client) -> Result<(), leasehold::Error> {
    let lease = client.mutex("orders/42").lock().await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    lease.release().await;
    Ok(())
}

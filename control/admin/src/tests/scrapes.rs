//! `GET /metrics` over scripted connections.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::super::connection::serve;
use super::super::metrics::router;
use super::*;

async fn get(control: &Arc<Control<GatewayTables>>, target: &str) -> String {
    let (mut client, server) = duplex(1 << 20);
    tokio::spawn(serve(server, router(control.clone())));
    let request = format!("{target} HTTP/1.1\r\nhost: x\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text
}

#[test]
fn metrics_are_served_and_the_data_plane_is_asked_once_a_second() {
    let (_node, control, commands) = silent_control();
    let asked = Arc::<AtomicU64>::default();
    let count = asked.clone();
    std::thread::spawn(move || {
        for command in commands {
            if let AdminCommand::Metrics(reply) = command {
                let flows = count.fetch_add(1, Ordering::Relaxed);
                let mut status = snapshot();
                status.sessions[0].flows = flows;
                reply.send(MetricsSnapshot { status, ..MetricsSnapshot::default() });
            }
        }
    });
    on_runtime(async {
        let first = get(&control, "GET /metrics").await;
        assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
        assert!(first.contains("content-type: application/openmetrics-text; version=1.0.0"));
        assert!(first.contains("\npolyrail_flows 0\n") && first.ends_with("# EOF\n"), "{first}");
        let [one, two] = [get(&control, "GET /metrics").await, get(&control, "GET /metrics").await];
        assert!(one == first && two == first);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let later = get(&control, "GET /metrics").await;
        assert!(later.contains("\npolyrail_flows 1\n"), "{later}");
    });
}

#[test]
fn other_requests_of_the_metrics_listener_are_refused() {
    let (_node, control) = answered_control();
    on_runtime(async {
        for (target, answer) in [
            ("GET /", "HTTP/1.1 404 "),
            ("GET /v1/status", "HTTP/1.1 404 "),
            ("POST /metrics", "HTTP/1.1 405 "),
        ] {
            let text = get(&control, target).await;
            assert!(text.starts_with(answer), "{target}: {text}");
        }
    });
}

#[test]
fn scrape_of_an_unresponsive_data_plane_fails_in_time() {
    let (_node, control, _commands) = silent_control();
    on_leaping_clock(async {
        let begun = tokio::time::Instant::now();
        let text = get(&control, "GET /metrics").await;
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

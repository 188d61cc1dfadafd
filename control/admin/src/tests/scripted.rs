//! HTTP over scripted connections: split requests, and clients that stall.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;
use tokio_test::io::Builder;

use super::super::connection::{CLIENT_TIMEOUT, serve};
use super::super::plane::ANSWER_WAIT;
use super::super::routes::{BODY_MAX, router};
use super::super::{AdminEvent, Timestamp};
use super::*;

const PUT: &str = "PUT /v1/paths/b HTTP/1.1\r\nhost: polyrail\r\ncontent-length: 15\r\n\r\n\
                   {\"mode\":\"quic\"}";

/// The exact answer to a request for an unknown path.
fn unknown_path() -> String {
    let body = r#"{"error":{"code":"unknown_path","message":"there is no path \"b\""}}"#;
    let length = body.len() + 1;
    format!(
        "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}\n"
    )
}

#[test]
fn request_may_be_split_anywhere() {
    let (_node, control) = answered_control();
    for cut in 1..PUT.len() {
        let (one, two) = PUT.as_bytes().split_at(cut);
        let mut script = Builder::new();
        script.read(one).read(two).write(unknown_path().as_bytes());
        // The script panics if other bytes are written or if its end is not reached.
        on_runtime(serve(script.build(), router(control.clone())));
    }
}

#[test]
fn incomplete_request_has_no_effect() {
    let (_node, control, commands) = silent_control();
    for cut in 0..PUT.len() {
        on_runtime(async {
            let (mut client, server) = duplex(64 * 1024);
            let served = tokio::spawn(serve(server, router(control.clone())));
            client.write_all(&PUT.as_bytes()[..cut]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 400 "), "{cut}: {text}");
            served.await.unwrap();
        });
        assert!(commands.try_recv().is_err(), "{cut} bytes had an effect");
    }
}

/// The complete answer to a request, and its duration.
pub(super) async fn exchange(
    control: &Arc<Control<GatewayTables>>,
    request: &str,
) -> (String, Duration) {
    let (mut client, _served) = connect(control, 64 * 1024);
    let start = Instant::now();
    // A request may be refused before all of it was sent.
    let _ = client.write_all(request.as_bytes()).await;
    let mut text = String::new();
    let _ = client.read_to_string(&mut text).await;
    (text, start.elapsed())
}

fn connect(
    control: &Arc<Control<GatewayTables>>,
    buffer: usize,
) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, server) = duplex(buffer);
    (client, tokio::spawn(serve(server, router(control.clone()))))
}

#[test]
fn client_that_sends_too_slowly_is_disconnected() {
    let (_node, control, _commands) = silent_control();
    on_leaping_clock(async {
        for part in ["", "GET /v1/st", "GET /v1/status HTTP/1.1\r\nhost: x\r\n"] {
            let (text, took) = exchange(&control, part).await;
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{part:?}: {text}");
            assert!((CLIENT_TIMEOUT..CLIENT_TIMEOUT * 2).contains(&took), "{part:?}: {took:?}");
        }
        let half = &PUT[..PUT.len() - 3];
        let (text, took) = exchange(&control, half).await;
        assert!(text.contains("the body did not arrive in time"), "{text}");
        assert!((CLIENT_TIMEOUT..CLIENT_TIMEOUT * 2).contains(&took), "{took:?}");
    });
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let (_node, control, _commands) = silent_control();
    for n in 0..900 {
        let message = format!("{n} {}", "x".repeat(500));
        control.stream.push(Timestamp::now(), AdminEvent::Alarm { message, path: None });
    }
    on_leaping_clock(async {
        let (mut client, served) = connect(&control, 1024);
        let start = Instant::now();
        client.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        served.await.unwrap();
        assert!(
            (CLIENT_TIMEOUT..CLIENT_TIMEOUT * 2).contains(&start.elapsed()),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn slow_reader_of_events_gets_a_notice() {
    let (_node, control, _commands) = silent_control();
    on_leaping_clock(async {
        let (mut client, served) = connect(&control, 4 * 1024);
        let alarm = |n: usize| {
            let message = format!("{n} {}", "x".repeat(200));
            control.stream.push(Timestamp::now(), AdminEvent::Alarm { message, path: None });
        };
        alarm(0);
        client.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // More events than the reader reads and the stream buffers.
        for n in 0..4000 {
            alarm(n);
            tokio::task::yield_now().await;
        }
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        served.await.unwrap();
        assert!(text.contains("\"event\":\"cut_off\""), "{} bytes without notice", text.len());
        assert!(text.ends_with("0\r\n\r\n"), "the answer ends as HTTP requires");
    });
}

#[test]
fn unresponsive_data_plane_times_out() {
    let (_node, control, commands) = silent_control();
    let status = "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    on_leaping_clock(async {
        let (text, took) = exchange(&control, status).await;
        assert!(text.starts_with("HTTP/1.1 504 ") && text.contains("\"timeout\""), "{text}");
        assert!(took >= ANSWER_WAIT && took < ANSWER_WAIT * 2, "{took:?}");
        // The command knows that its client waits no longer.
        let Ok(AdminCommand::Status(reply)) = commands.try_recv() else { panic!("no command") };
        assert!(!reply.is_wanted(std::time::Instant::now()));
        // A full channel is reported at once.
        let mut waiting = Vec::new();
        for _ in 0..super::super::COMMANDS_MAX {
            let (mut client, served) = connect(&control, 4096);
            client.write_all(status.as_bytes()).await.unwrap();
            waiting.push((client, served));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (text, took) = exchange(&control, status).await;
        assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("\"busy\""), "{text}");
        assert!(took < ANSWER_WAIT, "{took:?}");
        // A data plane that stops is reported, too.
        drop(commands);
        let (mut client, _) = waiting.remove(0);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 500 "), "{text}");
    });
}

#[test]
fn invalid_requests_get_their_error_codes() {
    let (_node, control) = answered_control();
    let put = |body: &str| {
        let length = body.len();
        format!("PUT /v1/paths/a HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let scheduler = |body: &str| put(body).replacen("/v1/paths/a", "/v1/scheduler", 1);
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n");
    let large = format!("{{\"mode\":\"{}\"}}", "x".repeat(BODY_MAX));
    let rows = [
        (put("{}"), 400, "nothing to change"),
        (put("{\"restart\": false}"), 400, "nothing to change"),
        (put(""), 400, "EOF while parsing"),
        (put("[false]"), 400, "expected a JSON object"),
        (put("{\"enabled\": \"no\"}"), 400, "expected a boolean"),
        (put("{\"modes\": \"tls\"}"), 400, "unknown field `modes`"),
        (put("{\"mode\": \"udp\"}"), 400, "unknown variant `udp`"),
        (scheduler("{\"scheduler\": \"best\"}"), 400, "no chain is named"),
        (scheduler("{\"scheduler\": [\"min_rtt\", \"x\"]}"), 400, "no schedulerlet is named"),
        (scheduler("{\"scheduler\": 1}"), 400, "expected the name of a chain"),
        (scheduler("{\"chain\": \"redundant\"}"), 400, "unknown field `chain`"),
        (scheduler("[]"), 400, "expected a JSON object"),
        (scheduler("{\"scheduler\": \"min_rtt\"}"), 200, "{\"scheduler\":[\"min_rtt\"]}"),
        (put("{\"enabled\": false}"), 409, "it is the last carrier"),
        (put(&large), 413, "the body is over"),
        (get("/v1/paths/b"), 404, "there is no path"),
        (get("/v1/paths/%ff"), 400, "Invalid UTF-8"),
        (get("/v1/flow"), 404, "\"not_found\""),
        (get("/v1/flows?limit=0"), 400, "limit is 1 to 1000"),
        (get("/v1/flows?limit=1001"), 400, "limit is 1 to 1000"),
        (get("/v1/flows?after=1-sctp-2"), 400, "expected the id of a flow"),
        (get("/v1/flows?user=ab"), 400, "16 hexadecimal digits"),
        (get("/v1/flows?kind=icmp"), 400, "unknown variant `icmp`"),
        (get("/v1/flows?path=a"), 400, "unknown field `path`"),
        (get("/v1/flows?limit=1"), 200, "\"next\":\"1-tcp-42\""),
        (get("/v1/users?limit=-1"), 400, "\"bad_request\""),
        (get("/v1/users?after=1"), 400, "expected the value of next"),
        (get("/v1/users?min_flows=many"), 400, "\"bad_request\""),
        (get("/v1/users?limit=1"), 200, "\"next\":\"2-1-00000000000000ab\""),
        (get("/"), 404, "\"not_found\""),
        (get("/v1/reload"), 405, "\"method_not_allowed\""),
        (get("/v1/events?folow=true"), 400, "unknown field `folow`"),
        (get("/v1/events?since=x"), 400, "\"bad_request\""),
        ("DELETE /v1/paths/a HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 405, "does not support"),
        (
            "POST /v1/reload HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".into(),
            400,
            "no body",
        ),
        ("nonsense\r\n\r\n".to_owned(), 400, ""),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)), 431, ""),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(70_000)), 431, ""),
    ];
    for (request, status, words) in rows {
        let shown = &request[..request.len().min(80)];
        let (text, _) = on_runtime(exchange(&control, &request));
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {text}");
        assert!(text.contains(words), "{shown:?}: {text}");
    }
}

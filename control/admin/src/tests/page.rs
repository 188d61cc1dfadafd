//! The status page: its two addresses, and the requests that it refuses.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::super::connection::serve;
use super::super::page::router;
use super::super::server::listen;
use super::super::{AdminEvent, Timestamp};
use super::*;

/// The complete answers to some requests of one router, one after the other.
fn answers(control: &Arc<Control<GatewayTables>>, requests: &[String]) -> Vec<String> {
    on_runtime(async {
        let (router, mut answers) = (router(control.clone()), Vec::new());
        for request in requests {
            let (mut client, server) = duplex(256 * 1024);
            let served = tokio::spawn(serve(server, router.clone()));
            client.write_all(request.as_bytes()).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            served.await.unwrap();
            answers.push(text);
        }
        answers
    })
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn page_is_one_file_without_external_parts() {
    let (_node, control) = answered_control();
    let answer = &answers(&control, &[get("/")])[0];
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    for line in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none';",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(head.contains(line), "no {line} in {head}");
    }
    assert!(page.ends_with("</html>\n"), "it is complete");
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for external in ["http:", "https:", "//cdn", "src=", "url(", "@import", "<link", "innerHTML"] {
        assert!(!page.contains(external), "{external}");
    }
}

#[test]
fn only_requests_for_this_host_are_answered() {
    let (_node, control) = answered_control();
    let rows = [
        ("host: localhost\r\n", 200),
        ("host: LOCALHOST:8080\r\n", 200),
        ("host: 127.0.0.1:9000\r\n", 200),
        ("host: 127.9.9.9\r\n", 200),
        ("host: [::1]:8080\r\n", 200),
        ("", 403),
        ("host: \r\n", 403),
        ("host: evil.example\r\n", 403),
        ("host: evil.example:8080\r\n", 403),
        ("host: 127.0.0.1.evil.example\r\n", 403),
        ("host: localhost.evil.example\r\n", 403),
        ("host: 192.0.2.1:8080\r\n", 403),
        ("host: [2001:db8::1]\r\n", 403),
        ("host: a b\r\n", 403),
        ("host: localhost\r\nhost: evil.example\r\n", 403),
    ];
    for target in ["/", "/state", "/nothing"] {
        let request = |(host, _): &(&str, u16)| format!("GET {target} HTTP/1.1\r\n{host}\r\n");
        let requests: Vec<String> = rows.iter().map(request).collect();
        for ((host, status), answer) in rows.iter().zip(answers(&control, &requests)) {
            let known = target != "/nothing" || *status != 200;
            let status = if known { *status } else { 404 };
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host:?}: {answer}");
            let leaks = status != 200 && answer.contains("Polyrail gateway");
            assert!(!leaks, "{host:?}: {answer}");
        }
    }
}

#[test]
fn nothing_can_be_changed_through_the_page() {
    let (_node, control, commands) = silent_control();
    let mut requests = Vec::new();
    for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
        for target in ["/v1/paths/a", "/v1/scheduler", "/v1/reload", "/v1/status", "/v1/events"] {
            let head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
            requests.push(format!("{head}content-length: 15\r\n\r\n{{\"mode\":\"quic\"}}"));
        }
    }
    for answer in answers(&control, &requests) {
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    let posts = ["/", "/state"].map(|target| get(target).replacen("GET", "POST", 1));
    for answer in answers(&control, &posts) {
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }
    assert!(commands.try_recv().is_err(), "no command reaches the data plane");
}

#[test]
fn state_names_no_passengers_address_and_no_file() {
    let (node, control) = answered_control();
    let mut linked = Arc::into_inner(control).unwrap();
    let trips = serde_json::json!({ "trips": [{ "metres": 7.0 }], "store": { "path": "/secret" } });
    linked.linkdb = Some(Arc::new(move || Some(trips.clone())));
    let control = Arc::new(linked);
    let (key, from) = ("tls.key".to_owned(), Some("/secret".to_owned()));
    let changes = vec![crate::reload::ChangeLine { key, from, to: None }];
    control.stream.push(Timestamp::now(), AdminEvent::Reloaded { changes });
    let answer = &answers(&control, &[get("/state")])[0];
    let state: Value = serde_json::from_str(body(answer)).unwrap();
    assert_eq!(state["daemon"]["role"], "gateway");
    assert_eq!(state["sessions"][0]["peer"], "c");
    assert_eq!(
        (&state["paths"][0]["name"], &state["paths"][0]["state"]),
        (&"a".into(), &"up".into())
    );
    assert_eq!(state["users"][0]["sent_bytes"], 700);
    assert_eq!(state["trips"][0]["metres"], 7.0);
    assert_eq!(state["events"][0]["event"], "reloaded");
    let file = node.path("").display().to_string();
    for secret in ["198.18.0.2", "/secret", &file, "gateway.toml"] {
        assert!(!answer.contains(secret), "{secret} is in {answer}");
    }
}

#[test]
fn one_answer_serves_browsers_for_a_moment_and_failures_are_not_kept() {
    let (_node, control) = answered_control();
    let many: Vec<String> = (0..20).map(|_| get("/state")).collect();
    let begin = std::time::Instant::now();
    let answers_of = answers(&control, &many);
    if begin.elapsed() < Duration::from_millis(700) {
        assert!(answers_of.iter().all(|answer| *answer == answers_of[0]), "{answers_of:?}");
    }
    let (_node, control, commands) = silent_control();
    drop(commands);
    for answer in answers(&control, &many[..2]) {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
}

#[test]
fn address_in_use_is_reported_with_its_key() {
    let first = listen("127.0.0.1:0".parse().unwrap(), "page.listen").unwrap();
    let error = listen(first.local_addr().unwrap(), "page.listen").unwrap_err().to_string();
    assert!(error.contains("(page.listen): Address already in use"), "{error}");
}

//! The control thread over a real socket, as a daemon runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use mio::{Events, Poll, Token, Waker};

use super::super::server::{CONNECTIONS_MAX, collect};
use super::super::{AdminEvent, AdminHandle, EVENTS_WAITING_MAX, EventRecord, Reloaded, Status};
use super::*;

/// A data plane on its own thread: it answers commands and publishes the events it receives.
struct Daemon {
    node: Node,
    publish: std::sync::mpsc::Sender<Option<AdminEvent>>,
    waker: Arc<Waker>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Self {
        let node = Node::new();
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let handle = crate::start(node.options(waker.clone())).unwrap();
        let (publish, orders) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut events = Events::with_capacity(4);
            loop {
                poll.poll(&mut events, None).unwrap();
                while let Some(command) = handle.try_recv() {
                    answer(command);
                }
                for event in orders.try_iter() {
                    match event {
                        Some(event) => handle.publish(event),
                        None => return,
                    }
                }
            }
        });
        Self { node, publish, waker, thread: Some(thread) }
    }

    fn publish(&self, event: AdminEvent) {
        self.publish.send(Some(event)).unwrap();
        self.waker.wake().unwrap();
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.node.path("admin.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Status and body of the answer.
    fn ask(&self, request: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        (status, body.to_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.publish.send(None);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

#[test]
fn status_and_paths_are_reported() {
    let daemon = Daemon::start();
    let (code, text) = daemon.ask("GET /v1/status", "");
    assert_eq!(code, 200, "{text}");
    let status: Status = serde_json::from_str(&text).unwrap();
    assert_eq!((status.api.as_str(), status.pid), ("v1", std::process::id()));
    assert_eq!(status.role, polyrail_identity::NodeRole::Gateway);
    assert_eq!(status.config.file, daemon.node.file());
    assert_eq!(status.snapshot, snapshot());
    assert!(status.uptime_s >= 0.0 && status.process.cpu_s > 0.0, "{text}");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["sessions"][0]["memory_max_bytes"], 16 << 20);

    let (_, text) = daemon.ask("GET /v1/paths", "");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["paths"][0]["mode"], "quic", "{text}");
    assert_eq!(value["paths"][0]["state"], "up");
    let (_, text) = daemon.ask("GET /v1/paths/a", "");
    assert_eq!(serde_json::from_str::<PathState>(&text).unwrap().name, "a");
    let (code, text) = daemon.ask("PUT /v1/paths/a", r#"{"mode": "tls"}"#);
    let changed: PathState = serde_json::from_str(&text).unwrap();
    assert_eq!((code, changed.configured_mode), (200, Mode::Tls));
}

#[test]
fn events_are_followed_and_end_with_the_daemon() {
    let daemon = Daemon::start();
    let mut reader = BufReader::new(daemon.connect());
    reader.get_mut().write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut line = String::new();
    let mut next = |reader: &mut BufReader<UnixStream>| loop {
        line.clear();
        if reader.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        // Other lines are the HTTP head and chunk sizes.
        if let Ok(record) = serde_json::from_str::<EventRecord>(&line) {
            return Some(record);
        }
    };
    let started = next(&mut reader).unwrap();
    assert_eq!((started.seq, started.event), (1, AdminEvent::Started));
    let quic = AdminEvent::QuicRetried { path: "a".to_owned() };
    daemon.publish(quic.clone());
    assert_eq!(next(&mut reader).unwrap().event, quic);
    let alarm = AdminEvent::Alarm { message: "m".to_owned(), path: None };
    daemon.publish(alarm.clone());
    assert_eq!(next(&mut reader).unwrap().event, alarm);

    let (_, text) = daemon.ask("GET /v1/events?follow=false&since=1", "");
    assert_eq!(text.lines().filter(|line| line.starts_with('{')).count(), 2, "{text}");
    let socket = daemon.node.path("admin.sock");
    assert!(socket.exists());
    drop(daemon);
    assert!(!socket.exists(), "the daemon removes its socket");
    assert_eq!(next(&mut reader), None);
}

#[test]
fn many_concurrent_clients_are_served() {
    let daemon = Arc::new(Daemon::start());
    // Idle clients leave room for others.
    let follow = b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut idle: Vec<_> = (0..CONNECTIONS_MAX / 2).map(|_| daemon.connect()).collect();
    for stream in &mut idle {
        stream.write_all(follow).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    let (code, text) = daemon.ask("GET /v1/events", "");
    assert_eq!(code, 503, "{text}");
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let daemon = daemon.clone();
            thread::spawn(move || daemon.ask("GET /v1/status", "").0)
        })
        .collect();
    // The data plane's channel may be full for a moment, which is an error code.
    let codes: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert!(codes.iter().all(|code| [200, 503].contains(code)), "{codes:?}");
    assert!(codes.contains(&200));
    // A reader that disconnects makes room for another.
    drop(idle);
    let mut code = 503;
    for _ in 0..100 {
        code = daemon.ask("GET /v1/events?follow=false", "").0;
        if code == 200 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(code, 200);
}

#[test]
fn dropped_events_are_counted() {
    let (_node, control, _commands) = silent_control();
    let (handle, channels) = AdminHandle::<GatewayTables>::pair();
    for n in 0..EVENTS_WAITING_MAX + 5 {
        handle.publish(AdminEvent::Alarm { message: n.to_string(), path: None });
    }
    let text = on_runtime(async {
        let collecting = tokio::spawn(collect(control.clone(), channels.events, channels.lost));
        let mut reader = control.stream.read(0, true);
        let text = reader.next().await.unwrap();
        collecting.abort();
        text
    });
    let second = std::str::from_utf8(&text).unwrap().lines().nth(1).unwrap();
    let record: EventRecord = serde_json::from_str(second).unwrap();
    assert_eq!((record.seq, record.event), (2, AdminEvent::EventsLost { count: 5 }));
}

#[test]
fn requested_reload_works_without_a_socket() {
    let node = Node::new();
    let text = TEXT.replace("[admin]\nsocket = \"admin.sock\"\n", "");
    node.write(&text);
    let mut poll = Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
    let handle: AdminHandle<GatewayTables> = crate::start(node.options(waker)).unwrap();
    assert!(!node.path("admin.sock").exists());
    for mode in [Mode::Quic, Mode::Tls] {
        node.write(&text.replace("mode = \"auto\"", &format!("mode = \"{mode}\"")));
        handle.request_reload();
        handle.request_reload();
        let command = loop {
            poll.poll(&mut Events::with_capacity(4), Some(Duration::from_secs(20))).unwrap();
            if let Some(command) = handle.try_recv() {
                break command;
            }
        };
        let AdminCommand::Reload { config, reply, .. } = command else { panic!("{command:?}") };
        assert_eq!(config.common.mode, mode);
        reply.send(Ok(Vec::new()));
    }
}

#[test]
fn reload_over_the_socket_reports_changes_and_refusals() {
    let daemon = Daemon::start();
    let (code, text) = daemon.ask("POST /v1/reload", "");
    assert_eq!((code, text.as_str()), (200, "{\"changes\":[],\"warnings\":[]}\n"));
    daemon.node.change("mode = \"auto\"", "mode = \"tls\"");
    let (code, text) = daemon.ask("POST /v1/reload", "");
    let done: Reloaded = serde_json::from_str(&text).unwrap();
    assert_eq!((code, done.changes[0].to_string().as_str()), (200, "mode: auto -> tls"));
    assert_eq!(done.warnings, ["a warning"]);
    daemon.node.change("name = \"c\"", "name = \"d\"");
    let (code, text) = daemon.ask("POST /v1/reload", "");
    assert_eq!(code, 409, "{text}");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["error"]["code"], "restart_needed");
    assert_eq!(value["error"]["keys"][0], "cloud.name");
    let (_, text) = daemon.ask("GET /v1/status", "");
    let status: Status = serde_json::from_str(&text).unwrap();
    assert_eq!((status.config.reloads, status.config.reloads_refused), (2, 1));
}

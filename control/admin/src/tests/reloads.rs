//! Reloads from the file to the data plane: accepted and refused configurations.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::super::{AdminEvent, ErrorCode, EventRecord, Reloaded, Reply};
use super::*;
use polyrail_config::log::LogHandle;
use polyrail_config::{LogConfig, LogLevel};

/// The control thread's state, and the data plane's end of its channel.
struct Bench {
    node: Node,
    control: Arc<Control<GatewayTables>>,
    commands: Receiver<AdminCommand<GatewayTables>>,
}

impl Bench {
    fn new() -> Self {
        let (node, control, commands) = silent_control();
        Self { node, control, commands }
    }

    fn with_log(log: LogHandle) -> Self {
        let node = Node::new();
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let (sender, commands) = sync_channel(super::super::COMMANDS_MAX);
        let mut options = node.options(waker);
        options.start.log = Some(log);
        Self { node, control: Arc::new(options.into_control(sender)), commands }
    }

    /// Reloads with a data plane that gives this answer. Returns the outcome; the first value is
    /// `Some` if the data plane received a configuration, and true if it has other certificates.
    fn reload(
        &self,
        answer: Result<(), AdminError>,
    ) -> (Option<bool>, Result<Reloaded, AdminError>) {
        on_runtime(async {
            let mut received = None;
            let control = self.control.clone();
            let mut reload = tokio::spawn(async move { control.reload("a test").await });
            let outcome = loop {
                tokio::select! {
                    outcome = &mut reload => break outcome.unwrap(),
                    () = tokio::time::sleep(Duration::from_millis(1)) => {}
                }
                let command = self.commands.try_recv();
                if let Ok(AdminCommand::Reload { config, identity, reply }) = command {
                    assert_eq!(
                        *config,
                        GatewayConfig::load(self.node.file(), &Overrides::default()).unwrap()
                    );
                    received = Some(identity.is_some());
                    reply.send(answer.clone().map(|()| Vec::new()));
                }
            };
            (received, outcome)
        })
    }

    /// A reload that must be refused before the data plane receives it.
    fn refused(&self) -> AdminError {
        let before = self.control.running().config.clone();
        let (received, outcome) = self.reload(Ok(()));
        assert_eq!(received, None, "the data plane received it");
        assert_eq!(self.control.running().config, before, "nothing changes");
        outcome.unwrap_err()
    }

    fn last_event(&self) -> AdminEvent {
        let text = on_runtime(async {
            let mut reader = self.control.stream.read(0, false);
            let mut text = Vec::new();
            while let Some(lines) = reader.next().await {
                text.extend_from_slice(&lines);
            }
            String::from_utf8(text).unwrap()
        });
        let last = text.lines().last().unwrap();
        serde_json::from_str::<EventRecord>(last).unwrap().event
    }
}

#[test]
fn valid_file_is_applied_once() {
    let bench = Bench::new();
    bench.node.change("mode = \"auto\"", "mode = \"quic\"");
    let (received, outcome) = bench.reload(Ok(()));
    assert_eq!(received, Some(false));
    assert_eq!(outcome.unwrap().changes[0].to_string(), "mode: auto -> quic");
    let AdminEvent::Reloaded { changes } = bench.last_event() else { panic!() };
    assert_eq!(changes.len(), 1);
    let (received, outcome) = bench.reload(Ok(()));
    assert_eq!((received, outcome.unwrap().changes.len()), (None, 0));
    assert_eq!(bench.control.running().reloads, 2);
}

#[test]
fn refusal_by_the_data_plane_changes_nothing() {
    let bench = Bench::new();
    bench.node.change("mode = \"auto\"", "mode = \"quic\"");
    let (received, outcome) = bench.reload(Err(AdminError::refused("no sockets left")));
    assert!(received.is_some());
    assert_eq!(outcome.unwrap_err().to_string(), "no sockets left");
    assert_eq!(bench.control.running().config.common.mode, Mode::Auto);
    let AdminEvent::ReloadRefused { error } = bench.last_event() else { panic!() };
    assert_eq!(error.code, ErrorCode::Refused);
    // The next reload sends all changes again.
    assert_eq!(bench.reload(Ok(())).0, Some(false));
    assert_eq!(bench.control.running().config.common.mode, Mode::Quic);
}

#[test]
fn invalid_file_is_refused_with_its_place() {
    let bench = Bench::new();
    bench.node.change("name = \"a\"", "name = \"a\"\nrole = \"main\"");
    let error = bench.refused();
    let body = &error.0;
    assert_eq!(
        (error.code(), body.file.as_ref()),
        (ErrorCode::InvalidConfig, Some(&bench.node.file()))
    );
    assert_eq!((body.line, body.column), (Some(12), Some(8)));
    assert_eq!(body.key.as_deref(), Some("carrier[1].role"));
    assert!(body.problems[0].reason.starts_with("unknown variant `main`"), "{body:?}");
    assert!(error.to_string().contains("unknown variant `main`"), "{error}");
    bench.node.write("[[carrier]");
    assert_eq!(bench.refused().0.line, Some(1));
    fs::remove_file(bench.node.file()).unwrap();
    assert!(bench.refused().to_string().contains("No such file"));
    assert_eq!(bench.control.running().refused, 3);
}

#[test]
fn certificates_are_checked_and_compared() {
    let bench = Bench::new();
    let node = &bench.node;
    // The key of another certificate.
    fs::copy(node.path("c.key"), node.path("g.key")).unwrap();
    let error = bench.refused();
    assert_eq!((error.code(), error.0.key.as_deref()), (ErrorCode::InvalidConfig, Some("tls.key")));
    assert!(error.to_string().contains("belongs to another certificate"), "{error}");

    let authority = Authority::open(&node.path("")).unwrap();
    let name = polyrail_model::Identity::new("g").unwrap();
    let role = NodeRole::Gateway;
    let request = IssueRequest { name, role, days: 100, out: node.path(""), force: true };
    authority.issue(&request).unwrap();
    let (received, outcome) = bench.reload(Ok(()));
    assert_eq!(received, Some(true));
    let lines = outcome.unwrap().changes;
    let keys: Vec<_> = lines.iter().map(|line| line.key.as_str()).collect();
    assert_eq!(keys, ["tls.certificate", "tls.key"]);
    assert_eq!(bench.reload(Ok(())).0, None, "unchanged files");

    fs::set_permissions(node.path("g.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(bench.refused().to_string().contains("run chmod 600"));
    fs::set_permissions(node.path("g.key"), fs::Permissions::from_mode(0o600)).unwrap();
    // A list that revokes this node is accepted, because it may revoke others, too.
    authority.revoke_file(&node.path("g.crt")).unwrap();
    let (received, outcome) = bench.reload(Ok(()));
    assert_eq!(received, Some(true));
    assert!(outcome.unwrap().warnings[0].contains("revoked since"));
    fs::remove_file(node.path("g.crt")).unwrap();
    assert_eq!(bench.refused().0.key.as_deref(), Some("tls.certificate"));
}

#[test]
fn log_level_changes_when_the_data_plane_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let output = Arc::new(fs::File::create(&path).unwrap());
    let (dispatch, handle) = polyrail_config::log::dispatch(&LogConfig::default(), output);
    // As in a daemon, this is the log of the process: `tracing` caches the level of each call site.
    tracing::dispatcher::with_default(&dispatch, || {
        let bench = Bench::with_log(handle);
        bench.node.change("level = \"info\"", "level = \"debug\"\nfile = \"x.log\"");
        let logs = |text: &str| {
            tracing::debug!("{text}");
            fs::read_to_string(&path).unwrap().contains(text)
        };
        assert!(bench.reload(Err(AdminError::refused("not now"))).1.is_err());
        assert!(!logs("too early"));
        let (_, outcome) = bench.reload(Ok(()));
        let Reloaded { changes, warnings } = outcome.unwrap();
        assert_eq!(changes[0].to_string(), "log.level: info -> debug");
        let warning = "gateway.toml:19:1: log.file: this key is ignored";
        assert!(changes.len() == 1 && warnings[0].contains(warning), "{warnings:?}");
        assert!(logs("in debug"));
        assert_eq!(bench.control.running().config.common.log.level, LogLevel::Debug);
    });
}

/// The command of a reload that another task began.
async fn next_command(bench: &Bench) -> (Mode, Reply<Result<Vec<String>, AdminError>>) {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if let Ok(AdminCommand::Reload { config, reply, .. }) = bench.commands.try_recv() {
            return (config.common.mode, reply);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no command arrived");
}

fn begin(bench: &Bench) -> tokio::task::JoinHandle<Result<Reloaded, AdminError>> {
    let control = bench.control.clone();
    tokio::spawn(async move { control.reload("a test").await })
}

#[test]
fn late_answer_is_applied_before_the_next_reload() {
    let bench = Bench::new();
    bench.node.change("mode = \"auto\"", "mode = \"tls\"");
    on_leaping_clock(async {
        let late = begin(&bench);
        let (_, reply) = next_command(&bench).await;
        assert_eq!(late.await.unwrap().unwrap_err().code(), ErrorCode::Timeout);
        // The operator restores the old file before the outcome of the first reload is known.
        bench.node.write(TEXT);
        let early = begin(&bench).await.unwrap();
        assert_eq!(early.unwrap_err().code(), ErrorCode::Busy);
        assert!(bench.commands.try_recv().is_err(), "the refused reload sent a command");
        reply.send(Ok(Vec::new()));
        let back = begin(&bench);
        let (mode, reply) = next_command(&bench).await;
        assert_eq!((mode, bench.control.running().config.common.mode), (Mode::Auto, Mode::Tls));
        reply.send(Ok(Vec::new()));
        assert_eq!(back.await.unwrap().unwrap().changes[0].to_string(), "mode: tls -> auto");
    });
    let running = bench.control.running();
    assert_eq!((running.config.common.mode, running.reloads, running.refused), (Mode::Auto, 2, 1));
}

#[test]
fn reload_without_an_answer_is_sent_again() {
    let bench = Bench::new();
    bench.node.change("mode = \"auto\"", "mode = \"tls\"");
    on_leaping_clock(async {
        let late = begin(&bench);
        let (_, reply) = next_command(&bench).await;
        assert_eq!(late.await.unwrap().unwrap_err().code(), ErrorCode::Timeout);
        drop(reply);
        let again = begin(&bench);
        let (mode, reply) = next_command(&bench).await;
        assert_eq!(mode, Mode::Tls);
        // The reload continues if its client disconnects.
        again.abort();
        assert!(reply.is_wanted(Instant::now()));
        reply.send(Ok(Vec::new()));
        while bench.control.running().reloads == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(bench.control.running().config.common.mode, Mode::Tls);
}

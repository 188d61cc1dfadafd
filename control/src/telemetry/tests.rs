//! Plans in, sources that run out.

use std::path::Path;
use std::time::Duration;

use super::*;

/// A gateway's configuration with what is to be replayed, and with one carrier more.
fn plan(replay: &Path, more: &str) -> TelemetryPlan {
    let text = format!(
        "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n[cloud]\nname = \"c\"\n\
         addresses = [\"192.0.2.1:1\"]\n[[carrier]]\nname = \"a\"\ninterface = \"wwan0\"\n\
         modem = \"353270040012345\"\n{more}[socks5]\nlisten = [\"127.0.0.1:1\"]\n\
         [telemetry]\ngpsd = \"127.0.0.1:1\"\nreplay = \"{}\"\n",
        replay.display()
    );
    TelemetryPlan::of(&GatewayConfig::parse(&text, Path::new("/none/gateway.toml")).unwrap())
}

#[test]
fn a_plan_is_what_the_configuration_says() {
    let plan = plan(Path::new("/r"), "");
    let carrier = CarrierModem {
        name: "a".parse().unwrap(),
        interface: Some("wwan0".parse().unwrap()),
        modem: Some("353270040012345".parse().unwrap()),
    };
    let expected = TelemetryPlan {
        gpsd: Some("127.0.0.1:1".parse().unwrap()),
        modem_manager: None,
        replay: Some(PathBuf::from("/r")),
        carriers: vec![carrier],
    };
    assert_eq!(plan, expected);
}

#[tokio::test(start_paused = true)]
async fn sources_follow_the_plan() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = "{\"carriers\":[{\"carrier\":\"a\",\"cell\":1},{\"carrier\":\"b\",\"cell\":2}]}\n";
    let file = folder.path().join("trip");
    std::fs::write(&file, line).unwrap();
    let (out, receiver) = observations(10);
    let (board, plans) = (Board::default(), watch::Sender::new(plan(&file, "")));
    let running = tokio::spawn(run(plans.subscribe(), out, board.clone()));
    let step = || tokio::time::sleep(Duration::from_millis(100));
    let cells = || std::iter::from_fn(|| receiver.try_recv()).count();
    let kinds = || board.states().iter().map(|state| state.source).collect::<Vec<_>>();
    until(|| board.states().iter().any(|state| state.state == SourcePhase::Ended)).await;
    assert_eq!((cells(), kinds()), (1, vec![SourceKind::Gpsd, SourceKind::Replay]));

    // A carrier more is no reason to begin anew.
    plans.send_replace(plan(&file, "[[carrier]]\nname = \"b\"\ninterface = \"wwan1\"\n"));
    step().await;
    assert_eq!(cells(), 0);
    let file = other.path().join("trip");
    std::fs::write(&file, line).unwrap();
    plans.send_modify(|plan| {
        plan.replay = Some(file);
        plan.gpsd = None;
    });
    until(|| board.states().iter().all(|state| state.state == SourcePhase::Ended)).await;
    assert_eq!((cells(), kinds()), (2, vec![SourceKind::Replay]));
    plans.send_replace(TelemetryPlan::default());
    step().await;
    assert_eq!(kinds(), []);
    drop(plans);
    running.await.unwrap();
}

async fn until(wish: impl Fn() -> bool) {
    for _ in 0..1000 {
        if wish() {
            return;
        }
        // File systems know no held clock.
        std::thread::sleep(Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it did not come to that");
}

//! Settings in, running sources out.

use std::path::Path;
use std::sync::mpsc::channel;

use super::*;

fn settings(replay: &Path, carriers: &[&str]) -> TelemetrySettings {
    let carrier = |name: &&str| CarrierModem {
        name: name.to_string(),
        interface: Some("wwan0".to_owned()),
        modem: None,
    };
    TelemetrySettings {
        gpsd: Some("127.0.0.1:1".parse().unwrap()),
        modem_manager: None,
        replay: Some(replay.to_owned()),
        carriers: carriers.iter().map(carrier).collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn sources_follow_the_settings() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = "{\"carriers\":[{\"carrier\":\"a\",\"cell\":1},{\"carrier\":\"b\",\"cell\":2}]}\n";
    let file = folder.path().join("trip");
    std::fs::write(&file, line).unwrap();
    let (sender, observed) = channel();
    let observe = move |observation| sender.send(observation).unwrap();
    let states = SourceStates::default();
    let settings_sender = watch::Sender::new(settings(&file, &["a"]));
    let running = tokio::spawn(run(settings_sender.subscribe(), Arc::new(observe), states.clone()));
    let step = || tokio::time::sleep(Duration::from_millis(100));
    let cells = || observed.try_iter().count();
    let kinds = || states.snapshot().iter().map(|state| state.source).collect::<Vec<_>>();
    until(|| states.snapshot().iter().any(|state| state.state == SourcePhase::Ended)).await;
    assert_eq!((cells(), kinds()), (1, vec![SourceKind::Gpsd, SourceKind::Replay]));

    // Another carrier does not restart the replay.
    settings_sender.send_replace(settings(&file, &["a", "b"]));
    step().await;
    assert_eq!(cells(), 0);
    let file = other.path().join("trip");
    std::fs::write(&file, line).unwrap();
    settings_sender.send_modify(|settings| {
        settings.replay = Some(file);
        settings.gpsd = None;
    });
    until(|| states.snapshot().iter().all(|state| state.state == SourcePhase::Ended)).await;
    assert_eq!((cells(), kinds()), (2, vec![SourceKind::Replay]));
    settings_sender.send_replace(TelemetrySettings::default());
    step().await;
    assert_eq!(kinds(), []);
    drop(settings_sender);
    running.await.unwrap();
}

async fn until(condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        // The paused clock does not hold the file system.
        std::thread::sleep(Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the condition never held");
}

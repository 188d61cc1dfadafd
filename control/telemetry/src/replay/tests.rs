//! Lines in, observations out: from scripts cut anywhere, files, pipes and sockets.

use nix::sys::stat::Mode;
use std::sync::mpsc::Receiver;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio_test::io::Builder;

use polyrail_model::Observation;

use super::super::source::recorded;
use super::super::state::{SourceKind, SourceState};
use super::*;

fn source() -> (Source, Receiver<Observation>) {
    recorded(SourceKind::Replay)
}

fn carriers() -> watch::Receiver<Vec<String>> {
    watch::Sender::new(vec!["a".to_owned(), "b".to_owned()]).subscribe()
}

/// A second of a trip with a cell of carrier `a`.
fn second(time_s: f64) -> String {
    let place = format!(r#""metres":{},"metres_per_second":80"#, 80.0 * time_s);
    let carriers = r#""carriers":[{"carrier":"a","cell":7}]"#;
    format!(r#"{{"time_s":{time_s},{place},{carriers}}}"#)
}

/// The metres and the number of cells that were observed.
fn metres(receiver: &Receiver<Observation>) -> (Vec<f64>, usize) {
    let (mut metres, mut cells) = (Vec::new(), 0);
    while let Ok(one) = receiver.try_recv() {
        match one {
            Observation::Odometer(odometer) => metres.push(odometer.metres),
            Observation::Serving(_) => cells += 1,
            other => panic!("{other:?}"),
        }
    }
    (metres, cells)
}

async fn until(source: &Source, wish: impl Fn(&SourceState) -> bool) {
    for _ in 0..500 {
        if wish(&source.monitor.state()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held: {:?}", source.monitor.state());
}

#[test]
fn result_does_not_depend_on_chunk_boundaries() {
    let lines = [
        r#"{"format":"polyrail-telemetry","version":1}"#,
        "",
        &second(0.0),
        "nonsense",
        r#"{"carriers":[{"carrier":"unknown","cell":1}]}"#,
        r#"{"metres":5,"metres_per_second":1,"extra":1}"#,
        r#"{"metres":9,"metres_per_second":-1}"#,
    ];
    let script = lines.join("\n");
    for cut in 0..=script.len() {
        let mut builder = Builder::new();
        let (left, right) = script.as_bytes().split_at(cut);
        for part in [left, right].into_iter().filter(|part| !part.is_empty()) {
            builder.read(part);
        }
        let (source, receiver) = source();
        let played = async {
            play(builder.build(), Pace::live(), &carriers(), &source, &mut Backoff::default()).await
        };
        assert_eq!(tokio_test::block_on(played), Ok(()));
        assert_eq!(metres(&receiver), (vec![0.0, 9.0], 1), "cut at {cut}");
        let state = source.monitor.state();
        assert_eq!((state.lines, state.errors, state.observations), (6, 2, 3), "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn file_is_played_once_in_real_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trip.ndjson");
    let text: String = (0..5).map(|n| second(f64::from(n)) + "\n").collect();
    std::fs::write(&file, text + "broken").unwrap();
    let (source, receiver) = source();
    let begun = Instant::now();
    let remove = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        std::fs::remove_file(&file).unwrap();
    };
    tokio::join!(run(file.clone(), carriers(), source.clone()), remove);
    assert_eq!(begun.elapsed().as_secs(), 4);
    assert_eq!(metres(&receiver), (vec![0.0, 80.0, 160.0, 240.0, 320.0], 5));
    let state = source.monitor.state();
    assert_eq!((state.state, state.errors), (SourcePhase::Ended, 1));
    assert_eq!(state.message.unwrap(), "the file was played to its end");
}

/// Its clock is set ahead by a minute while it writes a line per second.
#[tokio::test(start_paused = true)]
async fn clock_step_of_the_producer_does_not_delay_lines() {
    let mut builder = Builder::new();
    for time_s in [10.0, 11.0, 72.0, 73.0] {
        builder.read((second(time_s) + "\n").as_bytes()).wait(Duration::from_secs(1));
    }
    let (source, receiver) = source();
    let begun = Instant::now();
    let stream = builder.build();
    play(stream, Pace::live(), &carriers(), &source, &mut Backoff::default()).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 4);
    let mut at = Vec::new();
    while let Ok(one) = receiver.try_recv() {
        if let Observation::Odometer(odometer) = one {
            at.push((odometer.at - begun.into_std()).as_secs());
        }
    }
    assert_eq!(at, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn unsupported_version_is_not_played() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let head = r#"{"format":"polyrail-telemetry","version":2}"#;
    std::fs::write(file.path(), format!("{head}\n{}\n", second(0.0))).unwrap();
    let (source, receiver) = source();
    run(file.path().to_owned(), carriers(), source.clone()).await;
    let state = source.monitor.state();
    assert_eq!((state.state, metres(&receiver)), (SourcePhase::Ended, (vec![], 0)));
    let reason = "line 1: its format is polyrail-telemetry 2; supported is polyrail-telemetry 1";
    assert_eq!(state.message.unwrap(), reason);
}

#[tokio::test]
async fn socket_is_reconnected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("telemetry.sock");
    let (source, receiver) = source();
    let running = tokio::spawn(run(path.clone(), carriers(), source.clone()));
    until(&source, |state| state.state == SourcePhase::Waiting).await;
    assert!(source.monitor.state().message.unwrap().contains("No such file"));
    let listener = UnixListener::bind(&path).unwrap();
    for round in 1..=2 {
        let (mut stream, _) = listener.accept().await.unwrap();
        let line = format!("{{\"metres\":{round},\"metres_per_second\":0}}\n");
        stream.write_all(line.as_bytes()).await.unwrap();
    }
    until(&source, |state| state.observations == 2).await;
    assert_eq!(metres(&receiver), (vec![1.0, 2.0], 0));
    running.abort();
}

#[tokio::test]
async fn pipe_outlives_its_writers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    let (source, receiver) = source();
    let running = tokio::spawn(run(path.clone(), carriers(), source.clone()));
    until(&source, |state| state.state == SourcePhase::Connected).await;
    for round in 1..=2 {
        let line = format!("{{\"metres\":{round},\"metres_per_second\":0}}\n");
        let path = path.clone();
        tokio::task::spawn_blocking(move || std::fs::write(path, line)).await.unwrap().unwrap();
        until(&source, |state| state.observations == round).await;
    }
    assert_eq!(metres(&receiver), (vec![1.0, 2.0], 0));
    assert_eq!(source.monitor.state().state, SourcePhase::Connected);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn folder_is_not_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (source, _receiver) = source();
    let running = tokio::spawn(run(folder.path().to_owned(), carriers(), source.clone()));
    until(&source, |state| state.state == SourcePhase::Waiting).await;
    assert!(source.monitor.state().message.unwrap().contains("neither a file"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn warnings_about_invalid_lines_are_rate_limited() {
    let mut invalid_lines = InvalidLines::default();
    let said = (1..=100).filter(|line| invalid_lines.log(*line, "bad")).count();
    assert_eq!((said, invalid_lines.suppressed), (1, 99));
    tokio::time::sleep(WARNING_EVERY).await;
    assert!(invalid_lines.log(101, "bad"));
    assert_eq!(invalid_lines.suppressed, 0);
}

//! The display of recorded answers: two polls of a gateway with LinkDB, and two of a cloud without.

use std::sync::LazyLock;

use polyrail_admin::{DrainState, PathPhase, SessionPhase};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::answers::Answers;
use super::state::State;
use super::tab::{Sort, Tab};
use super::*;

const GATEWAY: &str = include_str!("recorded/gateway.json");
const CLOUD: &str = include_str!("recorded/cloud.json");

/// The recorded polls, a second apart.
fn polls(recorded: &str) -> Vec<Answers> {
    let polls: Vec<Value> = serde_json::from_str(recorded).unwrap();
    // The same for all calls: tests compare the polls of two.
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let begin = *BEGIN;
    let answers = |(second, poll): (u64, Value)| {
        let at = begin + Duration::from_secs(second);
        let list = |name: &str| poll[name][name].clone();
        Answers {
            at,
            status: serde_json::from_value(poll["status"].clone()).unwrap(),
            paths: serde_json::from_value(list("paths")).unwrap(),
            users: serde_json::from_value(list("users")).unwrap(),
            flows: serde_json::from_value(list("flows")).unwrap(),
            linkdb: serde_json::from_value(poll["linkdb"].clone()).unwrap(),
            events: serde_json::from_value(poll["events"].clone()).unwrap(),
        }
    };
    (0..).zip(polls).map(answers).collect()
}

fn after(recorded: &str, tab: Tab) -> State {
    let mut state = State::new(tab);
    polls(recorded).into_iter().for_each(|answers| state.take(answers));
    state
}

/// The recorded cloud with three gateways, one of which has lost its paths, and a drain.
fn fleet() -> State {
    let mut state = State::new(Tab::Users);
    for mut answers in polls(CLOUD) {
        let (paths, session) = (answers.paths.clone(), answers.status.snapshot.sessions[0].clone());
        for (at, name) in ["train-12", "train-31"].into_iter().enumerate() {
            let mut session = session.clone();
            session.peer = Some(name.to_owned());
            for mut path in paths.iter().rev().cycle().take(4).cloned() {
                path.name = format!("{name}:{}-{}", path.carrier, answers.paths.len());
                if name == "train-31" {
                    session.state = SessionPhase::Lingering;
                    (path.state, path.mode, path.link) = (PathPhase::Down, None, None);
                }
                answers.paths.push(path);
            }
            answers.status.snapshot.sessions.push(session);
            answers.users[at].gateway = Some(name.to_owned());
        }
        answers.status.snapshot.drain = Some(DrainState { flows: 126, ends_in_s: 272.0 });
        state.take(answers);
    }
    state
}

fn drawn(state: &State, columns: u16, rows: u16) -> String {
    frame(state, columns, rows).unwrap().join("\n") + "\n"
}

fn press(state: &mut State, code: KeyCode) -> bool {
    state.on_key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Asserts that each frame is as recorded.
#[track_caller]
fn assert_frames(rows: &[(&str, Tab, (u16, u16), &str)]) {
    let mut differing = String::new();
    for &(recorded, tab, (columns, height), expected) in rows {
        let frame = drawn(&after(recorded, tab), columns, height);
        assert!(frame.lines().all(|line| line.chars().count() <= columns.into()), "{frame}");
        if frame != expected {
            differing += &format!("{tab:?} is now:\n{frame}");
        }
    }
    assert!(differing.is_empty(), "{differing}");
}

#[test]
fn gateway_with_linkdb_fits_80_columns_and_24_rows() {
    let size = (80, 24);
    assert_frames(&[
        (GATEWAY, Tab::Users, size, include_str!("recorded/gateway-users.txt")),
        (GATEWAY, Tab::Flows, size, include_str!("recorded/gateway-flows.txt")),
        (GATEWAY, Tab::Events, size, include_str!("recorded/gateway-events.txt")),
    ]);
}

#[test]
fn cloud_without_linkdb_has_no_forecasts_and_a_wide_display_has_curves() {
    assert!(!drawn(&after(CLOUD, Tab::Users), 80, 24).contains("FAILS IN"));
    let expected = include_str!("recorded/cloud-users.txt");
    assert_frames(&[(CLOUD, Tab::Users, (140, 24), expected)]);
}

#[test]
fn cloud_with_many_carriers_shows_a_drain_and_the_troubled_ones_first() {
    let frame = drawn(&fleet(), 80, 24);
    assert_eq!(frame, include_str!("recorded/fleet-users.txt"), "{frame}");
}

#[test]
fn share_of_all_packets_fits_its_column() {
    let mut state = State::new(Tab::Users);
    let [first, mut second] = <[Answers; 2]>::try_from(polls(GATEWAY)).unwrap();
    let before = first.paths[0].link.as_ref().unwrap();
    let now = second.paths[0].link.as_mut().unwrap();
    now.lost_packets = before.lost_packets + now.sent_packets - before.sent_packets;
    [first, second].into_iter().for_each(|answers| state.take(answers));
    assert!(drawn(&state, 80, 24).contains(" 100 % "));
}

#[test]
fn first_poll_has_no_rates_and_a_restarted_daemon_begins_again() {
    let mut state = State::new(Tab::Users);
    let mut polls = polls(GATEWAY).into_iter();
    state.take(polls.next().unwrap());
    assert_eq!((state.total_rates(), state.cpu), (None, None));
    state.take(polls.next().unwrap());
    let rates = state.total_rates().unwrap();
    assert!(rates.0 > rates.1 && state.cpu.is_some(), "{rates:?}");
    let [_, mut restarted] = <[Answers; 2]>::try_from(super::tests::polls(GATEWAY)).unwrap();
    restarted.status.pid += 1;
    restarted.at += Duration::from_secs(1);
    state.take(restarted);
    assert_eq!((state.total_rates(), state.cpu), (None, None));
}

#[test]
fn counter_that_starts_again_counts_from_zero() {
    let mut state = after(GATEWAY, Tab::Users);
    let [_, mut next] = <[Answers; 2]>::try_from(polls(GATEWAY)).unwrap();
    next.at += Duration::from_secs(1);
    for user in &mut next.users {
        (user.sent_bytes, user.received_bytes) = (Some(0), Some(125));
    }
    state.take(next);
    let rates: Vec<f64> = state.rows().iter().map(|row| row.rate()).collect();
    assert!(rates.iter().all(|rate| (990.0..=1_010.0).contains(rate)), "{rates:?}");
}

#[test]
fn keys_change_list_and_order_and_scroll_within_the_list() {
    let mut state = after(GATEWAY, Tab::Users);
    let order = |state: &State| {
        let rows = state.rows();
        let weights: Vec<f64> = match state.sort() {
            Some(Sort::Rate) => rows.iter().map(|row| row.rate()).collect(),
            Some(Sort::Bytes) => rows.iter().map(|row| row.bytes as f64).collect(),
            Some(Sort::Flows) => rows.iter().map(|row| row.flows as f64).collect(),
            Some(Sort::Age) => rows.iter().map(|row| row.age_s).collect(),
            None => Vec::new(),
        };
        assert!(weights.is_sorted_by(|one, next| one >= next), "{weights:?}");
        state.sort()
    };
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(order(&state));
        press(&mut state, KeyCode::Char('s'));
    }
    assert_eq!(seen, [Sort::Rate, Sort::Bytes, Sort::Flows, Sort::Rate]);
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.tab(), Tab::Flows);
    press(&mut state, KeyCode::BackTab);
    press(&mut state, KeyCode::Left);
    assert_eq!((state.tab(), state.sort()), (Tab::Events, None));
    (0..1_000).for_each(|_| _ = press(&mut state, KeyCode::PageDown));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let mut scroll = usize::MAX;
    terminal.draw(|frame| scroll = draw::draw(frame, &state)).unwrap();
    assert!(scroll < 1_024, "no further than the list: {scroll}");
    state.scroll = scroll;
    press(&mut state, KeyCode::Home);
    assert_eq!(state.scroll, 0);
    assert!(!press(&mut state, KeyCode::Char('q')) && !press(&mut state, KeyCode::Esc));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!state.on_key(interrupt) && press(&mut state, KeyCode::Char('c')));
}

#[test]
fn failed_poll_is_shown_and_the_display_stays() {
    let mut state = after(GATEWAY, Tab::Users);
    state.fail(&anyhow::anyhow!("no daemon answers"));
    let shown = drawn(&state, 80, 24);
    assert!(shown.ends_with("no daemon answers\n") && shown.contains("CARRIER"), "{shown}");
}

#[test]
fn any_size_is_drawn() {
    let mut state = after(GATEWAY, Tab::Users);
    for tab in Tab::ALL {
        for size in [(1, 1), (20, 3), (20, 20), (79, 10), (80, 24), (300, 100)] {
            drawn(&state, size.0, size.1);
        }
        press(&mut state, KeyCode::Tab);
        assert_ne!(state.tab(), tab);
    }
}

#[test]
fn sizes_and_intervals_are_checked() {
    assert!("80x24".parse::<Size>().is_ok());
    for bad in ["80", "x", "19x24", "80x1001", "80x24x1"] {
        assert!(bad.parse::<Size>().is_err(), "{bad}");
    }
    assert_eq!(interval("0.5"), Ok(0.5));
    for bad in ["0", "61", "NaN", "one"] {
        assert!(interval(bad).is_err(), "{bad}");
    }
}

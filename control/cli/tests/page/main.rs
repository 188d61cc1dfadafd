//! The status page in a headless Chromium, against control threads with scripted data planes: a
//! gateway on a train, and a cloud with several. Pictures are in `target/results/page`.

#![allow(clippy::unwrap_used)] // tests

mod browser;
mod daemon;
mod fleet;
#[path = "../scripted/mod.rs"]
mod scripted;
mod train;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use browser::{Browser, Page};
use polyrail_config::{CloudTables, GatewayTables};
use serde_json::json;

/// A folder for pictures, below the target folder.
fn pictures() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.parent().unwrap().join("results/page");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A port that is free now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asserts that a page shows all of these texts.
#[track_caller]
fn assert_shows(browser: &mut Browser, page: &Page, parts: &[&str]) {
    let text = browser.value(page, "document.body.innerText");
    let text = text.as_str().unwrap();
    let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
    assert!(missing.is_empty(), "no {missing:?} in {text}");
}

/// Opens a page in both sizes and schemes, looks at each with `look`, and draws them. Returns the
/// last one.
fn open_all(
    browser: &mut Browser,
    port: u16,
    kind: &str,
    look: impl Fn(&mut Browser, &Page),
) -> Page {
    let sizes = [("phone", (390, 844)), ("desktop", (1280, 900))];
    let kinds = sizes.into_iter().flat_map(|size| [(size, "light"), (size, "dark")]);
    let address = format!("http://127.0.0.1:{port}/");
    let pages: Vec<_> = kinds
        .map(|((name, size), scheme)| (name, size, scheme, browser.open(&address, size, scheme)))
        .collect();
    let mut drawn = Vec::new();
    for (name, (width, _), scheme, page) in &pages {
        browser.wait(page, "Number(document.documentElement?.dataset.polls || 0) >= 6");
        assert_eq!(browser.value(page, "document.documentElement?.dataset.error || ''"), "");
        look(browser, page);
        let shown = browser.value(page, "document.documentElement.scrollWidth");
        assert_eq!(shown, *width, "{name}: nothing is wider than the screen");
        let file = format!("{kind}-{name}-{scheme}.png");
        drawn.push(browser.draw(page, &pictures().join(file)));
    }
    assert!(drawn[0] != drawn[1] && drawn[2] != drawn[3], "dark is as light");
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    pages[3].3.clone()
}

/// The numbers of curves, of cells and of trains and forecasts on the line.
fn figures(browser: &mut Browser, page: &Page) -> [usize; 3] {
    ["svg.spark", "#trips rect", "#trips polygon"].map(|kind| {
        let number = browser.value(page, &format!("document.querySelectorAll('{kind}').length"));
        number.as_u64().unwrap() as usize
    })
}

#[test]
fn page_shows_a_train_live_on_phones_and_desktops_in_light_and_dark() {
    let port = free_port();
    let train = daemon::start::<GatewayTables>(port, train::busy());
    let mut browser = Browser::start();
    let page = open_all(&mut browser, port, "gateway", |browser, page| {
        let parts = [
            "Polyrail gateway",
            "Session with cloud: up for 3 h 5 min, 42 open flows",
            "Total: download ",
            "Mbit/s",
            "round trip 48 ms",
            "Predicted to fail in ",
            ", probability 41 %",
            "Stalled",
            "No interface",
            "no connection · backup",
            "38.6 GB of 50.0 GB used",
            "TLS instead of QUIC: UDP is blocked",
            "The train is at km ",
            "km/h towards higher kilometres.",
            "other users",
            "5g has used 38.6 GB of its cap of 50.0 GB.",
            "lte-b stalled: no acknowledgement for 0.4 s",
            "<b>lte-b</b> is no element",
            "Live, ",
        ];
        assert_shows(browser, page, &parts);
        let [curves, cells, marks] = figures(browser, page);
        assert_eq!((curves, marks), (3, 2), "a curve per connected carrier, train, forecast");
        assert!(cells >= 2, "cells");
        let old = browser.value(page, "clock('2020-01-02T12:00:00Z')");
        assert!(old.as_str().unwrap().starts_with("2 Jan "), "an event of another day: {old}");
    });
    drop(train);
    browser.wait(&page, "!document.getElementById('trouble').hidden");
    let parts = ["The daemon does not answer", "The page shows the state of ", "Not updating"];
    assert_shows(&mut browser, &page, &parts);
    let shade = browser.value(&page, "getComputedStyle(document.querySelector('main')).opacity");
    assert_eq!(shade, "0.65", "old figures look like live ones");
    browser.draw(&page, &pictures().join("gateway-lost.png"));
}

#[test]
fn page_without_linkdb_users_and_session_says_so() {
    let port = free_port();
    let _train = daemon::start::<GatewayTables>(port, train::idle());
    let mut browser = Browser::start();
    let page = browser.open(&format!("http://127.0.0.1:{port}/"), (390, 844), "light");
    browser.wait(&page, "Number(document.documentElement?.dataset.polls || 0) >= 2");
    let parts = ["No session: the gateway has not reached its cloud.", "Nobody uses Polyrail now."];
    assert_shows(&mut browser, &page, &parts);
    assert_eq!(browser.value(&page, "document.getElementById('line').hidden"), true);
    browser.draw(&page, &pictures().join("gateway-idle.png"));
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
}

#[test]
fn page_of_a_cloud_shows_its_gateways_on_phones_and_desktops_in_light_and_dark() {
    let port = free_port();
    let _cloud = daemon::start::<CloudTables>(port, fleet::draining());
    let mut browser = Browser::start();
    open_all(&mut browser, port, "cloud", |browser, page| {
        let parts = [
            "Polyrail cloud",
            "Draining: 54 open flows left. The daemon ends with the last one, at the latest in 4 \
             min 32 s.",
            "3 gateways, 54 open flows",
            "Total: download ",
            "train-7 is at km ",
            "km/h towards higher kilometres.",
            "train-12 is at km ",
            "km/h towards lower kilometres.",
            "train-7 9e3779b97f4a7c15",
            "train-12 3c6ef372fe94f82a",
            "32 %",
            "4 other users",
            "An operator drains this cloud: 61 open flows left.",
            "train-31:lte-a is down: connection timed out.",
            "The session with train-40 ended: it had no path for 2 min.",
            "Live, ",
        ];
        assert_shows(browser, page, &parts);
        // Each gateway, its carriers, and their colours, which are those on the line.
        let groups = browser.value(page, GROUPS);
        let expected = json!([
            ["train-31: no path, session began 1 min 35 s ago, 3 open flows", "lte-a Down"],
            ["train-7: up for 3 h 5 min, 42 open flows", "5g Up", "lte-a Up", "lte-b Stalled"],
            ["train-12: up for 7 min 0 s, 9 open flows", "lte-a Up", "lte-b Up"],
        ]);
        assert_eq!(groups, expected);
        let fates = browser.value(page, FATES);
        assert_eq!(fates, json!(["train-7 lte-a", "train-12 lte-b"]));
        let [curves, _, marks] = figures(browser, page);
        assert_eq!((curves, marks), (5, 4), "a curve per connected carrier, trains, forecasts");
        let colours = browser.value(page, COLOURS);
        assert_eq!(colours, json!(["var(--c1)", "var(--c0)"]));
        assert_eq!(browser.value(page, FLEET), json!([30, "g29", "and 10 other gateways"]));
        browser.wait(page, "document.querySelectorAll('.group').length === 3");
    });
}

/// Shows forty gateways until the next poll.
const FLEET: &str = "showCarriers({ paths: [], sessions: Array.from({ length: 40 }, (_, at) =>
      ({ peer: 'g' + at, state: 'up', age_s: 1, flows: 0 })) }),
    [document.querySelectorAll('.group').length,
      [...document.querySelectorAll('.group .state')].at(-1).innerText,
      byId('carriers').lastChild.innerText]";

/// The headings of gateways on a cloud, each with its carriers and their states.
const GROUPS: &str = "[...document.querySelectorAll('.group')].map((group) => [group.innerText,
    ...[...group.nextSibling.children].map((card) =>
        card.querySelector('h3').innerText + ' ' + card.querySelector('.state').innerText)])";

/// The carriers with a forecast in their cards.
const FATES: &str = "[...document.querySelectorAll('.card')]
    .filter((card) => card.innerText.includes('Predicted to fail'))
    .map((card) => card.parentNode.previousSibling.innerText.split(':')[0] + ' ' +
        card.querySelector('h3').innerText)";

/// The colour of a carrier's cells on the line, per train.
const COLOURS: &str = "[...document.querySelectorAll('.trip')]
    .map((trip) => trip.querySelector('rect').getAttribute('fill'))";

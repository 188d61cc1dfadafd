//! The status page in a headless Chromium, against a control thread whose data plane is a scripted
//! train. Pictures are in `target/results/page`.

#![allow(clippy::unwrap_used)] // tests

mod browser;
mod train;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use browser::Browser;
use train::Train;

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

#[test]
fn page_shows_a_train_live_on_phones_and_desktops_in_light_and_dark() {
    let port = free_port();
    let train = Train::start(port, true);
    let address = format!("http://127.0.0.1:{port}/");
    let mut browser = Browser::start();
    let sizes = [("phone", (390, 844)), ("desktop", (1280, 900))];
    let kinds = sizes.into_iter().flat_map(|size| [(size, "light"), (size, "dark")]);
    let pages: Vec<_> = kinds
        .map(|((name, size), scheme)| (name, size, scheme, browser.open(&address, size, scheme)))
        .collect();
    let mut drawn = Vec::new();
    for (name, (width, _), scheme, page) in &pages {
        browser.wait(page, "Number(document.documentElement.dataset.polls || 0) >= 6");
        assert_eq!(browser.value(page, "document.documentElement.dataset.error || ''"), "");
        let text = browser.value(page, "document.body.innerText");
        let text = text.as_str().unwrap();
        for part in [
            "Polyrail gateway",
            "Session with cloud is up for 3 h 5 min, 42 open flows.",
            "Mbit/s",
            "round trip 48 ms",
            "Predicted to fail in ",
            ", probability 41 %",
            "Stalled",
            "No interface",
            "TLS instead of QUIC: UDP is blocked",
            "The train is at km ",
            "km/h towards higher kilometres.",
            "other users",
            "lte-b stalled: no acknowledgement for 0.4 s",
            "<b>lte-b</b> is no element",
            "Live, ",
        ] {
            assert!(text.contains(part), "{name} {scheme}: no {part:?} in {text}");
        }
        let figures = browser.value(
            page,
            "[document.documentElement.scrollWidth, document.querySelectorAll('svg.spark').length,
              document.querySelectorAll('#trips rect').length,
              document.querySelectorAll('#trips polygon').length]",
        );
        let number = |at: usize| figures[at].as_u64().unwrap();
        assert_eq!(number(0), u64::from(*width), "{name}: nothing is wider than the screen");
        assert_eq!(number(1), 4, "a curve per carrier");
        assert!(number(2) >= 2 && number(3) == 2, "cells, the train and a forecast: {figures}");
        drawn.push(browser.draw(page, &pictures().join(format!("{name}-{scheme}.png"))));
    }
    assert!(drawn[0] != drawn[1] && drawn[2] != drawn[3], "dark is as light");
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);

    drop(train);
    let (.., page) = &pages[3];
    browser.wait(page, "!document.getElementById('trouble').hidden");
    let text = browser.value(page, "document.body.innerText");
    let text = text.as_str().unwrap();
    for part in ["The daemon does not answer", "The page shows the state of ", "Not updating"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    browser.draw(page, &pictures().join("desktop-dark-lost.png"));
}

#[test]
fn page_without_linkdb_users_and_session_says_so() {
    let port = free_port();
    let _train = Train::start(port, false);
    let mut browser = Browser::start();
    let page = browser.open(&format!("http://127.0.0.1:{port}/"), (390, 844), "light");
    browser.wait(&page, "Number(document.documentElement.dataset.polls || 0) >= 2");
    let text = browser.value(&page, "document.body.innerText");
    let text = text.as_str().unwrap();
    for part in
        ["No session: the gateway has not reached its cloud.", "Nobody uses the session now."]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("The line"), "{text}");
    browser.draw(&page, &pictures().join("phone-empty.png"));
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
}

//! `polyrail linkdb` on databases: import, statistics, export, evaluation, plot.

#[path = "../page/browser.rs"]
mod browser;
mod page;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use polyrail_predictor::store::{Limits, Store};
use serde_json::{Value, json};

/// A folder with a database of generated trips, and the file from which it was made.
struct Made(tempfile::TempDir);

impl Made {
    fn new() -> Self {
        let made = Self::empty();
        fs::write(made.dir().join("trips.ndjson"), trips(TRIPS))
            .expect("a test's folder is usable");
        let output = made.fine(&["import", "trips.ndjson"]);
        let all = TRIPS * CELLS * 2;
        assert!(
            output.starts_with(&format!("{all} handovers are new and 0 entries were known")),
            "{output}"
        );
        made
    }

    fn empty() -> Self {
        Self(tempfile::tempdir().expect("a test's folder is usable"))
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir().join(name)).expect("a test's folder is usable")
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).expect("it is text")
    }

    /// Runs `polyrail linkdb` on the database `db`, or on the named database: exit code,
    /// standard output, standard error.
    fn run(&self, arguments: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
        command.arg("linkdb").args(arguments).current_dir(self.dir());
        if !arguments.contains(&"--db") {
            command.args(["--db", "db"]);
        }
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("polyrail runs");
        // A command that does not read its input may have ended.
        let _ = child.stdin.take().expect("it has a standard input").write_all(input);
        let output = child.wait_with_output().expect("polyrail runs");
        let text = |bytes| String::from_utf8(bytes).expect("its output is text");
        (output.status.code().expect("it was not killed"), text(output.stdout), text(output.stderr))
    }

    fn fine(&self, arguments: &[&str]) -> String {
        let (code, out, complaint) = self.run(arguments, b"");
        assert_eq!(code, 0, "{arguments:?}: {complaint}");
        out
    }

    fn fails(&self, arguments: &[&str], reasons: &[&str]) {
        let (code, out, complaint) = self.run(arguments, b"");
        assert_eq!((code, out.as_str()), (1, ""), "{arguments:?}: {complaint}");
        for reason in reasons {
            assert!(complaint.contains(reason), "{arguments:?}: {complaint:?} lacks {reason:?}");
        }
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.dir().join(name)).expect("a test's folder is usable").permissions().mode()
            & 0o777
    }
}

/// Trips up one track, with two carriers; of the first each third cell fails on most trips.
fn trips(count: u64) -> String {
    let mut lines = vec![json!({ "linkdb": { "version": 1 } }).to_string()];
    for trip in 0..count {
        for number in 0..CELLS * 2 {
            let (cell, carrier) = (number / 2, CARRIERS[number as usize % 2]);
            let failed = carrier == CARRIERS[0] && cell % 3 == 1 && trip % 4 != 3;
            let jitter = (trip * 37 + number * 11) % 40;
            lines.push(handover(trip, number, carrier, cell * 1_000 + 900 + jitter, failed));
        }
    }
    lines.join("\n") + "\n"
}

fn handover(trip: u64, sequence: u64, carrier: &str, metres: u64, failed: bool) -> String {
    let cell = metres / 1_000 + if carrier == CARRIERS[0] { 0x1000 } else { 0x2000 };
    let line = json!({ "handover": {
        "trip": format!("{:x}", trip + 0xa0),
        "sequence": sequence,
        "at_ms": 1_790_000_000_000_u64 + trip * 86_400_000 + sequence * 6_000,
        "carrier": carrier,
        "route": "7",
        "direction": "up",
        "position_m": metres as f64,
        "speed_m_s": 83.25,
        "from": format!("{cell:x}"),
        "to": format!("{:x}", cell + 1),
        "rsrp_dbm": -95.5,
        "outcome": if failed { "type3" } else { "success" },
        "dark_ms": if failed { 2_300 } else { 40 },
    }});
    line.to_string()
}

#[test]
fn import_is_counted_and_private() {
    let made = Made::new();
    let output = made.fine(&["stats"]);
    let failures = CELLS / 3 * (TRIPS * 3 / 4);
    for part in [
        format!("{} handovers, {failures} of them failed, on {TRIPS} trips\n", TRIPS * CELLS * 2),
        format!("{} cells, {} with failures on two trips or more\n", CELLS * 2, CELLS / 3),
        format!("route 7: {} cells\n", CELLS * 2),
    ] {
        assert!(output.contains(&part), "{output:?} lacks {part:?}");
    }
    let value: Value = serde_json::from_str(&made.fine(&["stats", "--json"])).unwrap();
    assert_eq!(value["trips"], TRIPS);
    assert_eq!(value["routes"], json!([{ "route": "7", "cells": CELLS * 2 }]));
    // Positions are private.
    assert_eq!(made.mode("db"), 0o600);
    // A second import knows all records, also from standard input.
    let (code, output, complaint) = made.run(&["import"], &made.bytes("trips.ndjson"));
    assert_eq!(code, 0, "{complaint}");
    assert!(
        output.starts_with(&format!("0 handovers are new and {} entries were", TRIPS * CELLS * 2))
    );
    let output = made.fine(&["compact"]);
    assert!(output.contains(" bytes before, "), "{output}");
    assert_eq!(made.mode("db"), 0o600);
}

/// With the limit of the daemon's configuration the oldest trips are evicted; else none.
#[test]
fn import_and_compact_apply_the_limit() {
    let made = Made::empty();
    fs::write(made.dir().join("trips.ndjson"), trips(60)).unwrap();
    let holds = |db: &str| -> u64 {
        let value: Value =
            serde_json::from_str(&made.fine(&["stats", "--db", db, "--json"])).unwrap();
        value["handovers"].as_u64().unwrap()
    };
    made.fine(&["import", "--db", "all", "trips.ndjson"]);
    made.fine(&["compact", "--db", "all"]);
    assert_eq!(holds("all"), 60 * CELLS * 2);
    // Trips have 24 handovers each: 41 of them are 984.
    made.fine(&["import", "--db", "less", "--events-max", "1000", "trips.ndjson"]);
    assert_eq!(holds("less"), 984);
    let output = made.fine(&["compact", "--db", "all", "--events-max", "1000"]);
    assert!(output.ends_with("456 entries evicted\n"), "{output}");
    assert_eq!(holds("all"), 984);
    for bad in ["0", "999", "100000001", "-1", "x"] {
        for command in ["import", "compact"] {
            let (code, _, complaint) = made.run(&[command, &format!("--events-max={bad}")], b"");
            assert_eq!(code, 2, "{bad}: {complaint}");
        }
    }
}

#[test]
fn exports_are_imported() {
    let made = Made::new();
    made.fine(&["export", "--coarsen", "0", "all.csv"]);
    made.fine(&["export", "--coarsen", "0", "all.ndjson"]);
    assert_eq!((made.mode("all.csv"), made.mode("all.ndjson")), (0o600, 0o600));
    assert!(made.text("all.csv").starts_with("trip,sequence,at_ms,carrier,route,"));
    for name in ["all.csv", "all.ndjson"] {
        let other = format!("{name}.db");
        made.fine(&["import", "--db", &other, name]);
        // Both formats contain all handovers, and cells follow from them.
        // An export of entries names the random incarnation of its file.
        {
            let (again, copy) = ("all.csv", "copy-all.csv");
            made.fine(&["export", "--db", &other, "--coarsen", "0", copy]);
            assert_eq!(made.text(copy), made.text(again), "{again} from {name}");
        }
    }
    // To standard output, and from a file without an extension.
    let csv = made.fine(&["export", "--coarsen", "0", "--format", "csv"]);
    assert_eq!(csv, made.text("all.csv"));
    fs::write(made.dir().join("rows"), csv).unwrap();
    made.fine(&["import", "--db", "rows.db", "--format", "csv", "rows"]);

    // By default positions are rounded to 100 m.
    let coarse = made.fine(&["export"]);
    let mut handovers = 0;
    for line in coarse.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if let Some(position) = value["entry"]["handover"]["position_m"].as_f64() {
            assert_eq!(position % 100.0, 0.0, "{line}");
            handovers += 1;
        }
    }
    assert_eq!(handovers, TRIPS * CELLS * 2);
    let wide = made.fine(&["export", "--coarsen", "5000", "--format", "csv"]);
    assert!(wide.lines().nth(1).unwrap().contains(",up,0.0,83.25,"), "{wide}");
}

#[test]
fn invalid_line_is_named_and_nothing_is_imported() {
    let made = Made::new();
    let before = made.fine(&["export", "--coarsen", "0"]);
    let good = handover(77, 0, CARRIERS[0], 500, true);
    let head = json!({ "linkdb": { "version": 1 } }).to_string();
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{good} lacks {from}");
        good.replace(from, to)
    };
    for (bad, reason) in [
        ("{".to_owned(), "EOF"),
        (changed("\"up\"", "\"left\""), "unknown variant"),
        (
            changed("\"speed_m_s\":83.25", "\"speed_m_s\":-1.0"),
            "-1 is no speed in metres per second",
        ),
        (head.clone(), "repeated \"linkdb\""),
    ] {
        fs::write(made.dir().join("bad.ndjson"), format!("{head}\n{good}\n{bad}\n{good}\n"))
            .unwrap();
        let all = ["bad.ndjson: nothing was imported", "line 3, ", reason];
        made.fails(&["import", "bad.ndjson"], &all);
        assert_eq!(made.fine(&["export", "--coarsen", "0"]), before, "{bad}");
        // A missing file is not created.
        made.fails(&["import", "--db", "new", "bad.ndjson"], &all);
        assert!(!made.dir().join("new").exists());
    }
    made.fine(&["export", "--coarsen", "0", "all.csv"]);
    let csv = made.text("all.csv");
    for (from, to, reasons) in [
        (",up,", ",over,", ["line 2, column \"direction\"", "unknown variant `over`"]),
        ("trip,", "tripp,", ["line 1, column \"trip\"", "is missing"]),
        (",up,", ",up,,", ["line 2, row", "15 fields instead of 14"]),
    ] {
        fs::write(made.dir().join("bad.csv"), csv.replacen(from, to, 1)).unwrap();
        made.fails(
            &["import", "bad.csv"],
            &["bad.csv: nothing was imported", reasons[0], reasons[1]],
        );
    }
    for (bytes, reason) in [
        (&b""[..], "line 1, an export begins with"),
        (b"{\"linkdb\":{\"version\":3}}\n", "the version is 3, this program reads 1 and 2"),
        (b"redb\x1a\x0a\xa9\x0d\x0a", "line 1"),
        (b"\xff\xfe\n", "line 1"),
    ] {
        let (code, _, complaint) = made.run(&["import"], bytes);
        assert_eq!(code, 1, "{complaint}");
        assert!(complaint.contains("standard input: nothing was imported"), "{complaint}");
        assert!(complaint.contains(reason), "{complaint:?} lacks {reason:?}");
    }
    made.fails(&["import", "none.ndjson"], &["none.ndjson", "No such file"]);
    made.fails(&["import", "."], &[".: nothing was imported: the export cannot be read or"]);
    made.fails(&["export", "/dev/full"], &["/dev/full: the export cannot be read or written: No"]);
    assert_eq!(made.fine(&["export", "--coarsen", "0"]), before);
}

#[test]
fn unusable_database_is_reported_with_a_remedy() {
    let made = Made::empty();
    let all = [&["stats"][..], &["export"], &["evaluate"], &["plot"], &["compact"]];
    for arguments in all {
        made.fails(arguments, &["there is no database at db: name it with --db"]);
        assert!(!made.dir().join("db").exists());
    }
    fs::write(made.dir().join("trips.ndjson"), trips(TRIPS)).unwrap();
    made.fails(&["import", "--db", "none/db", "trips.ndjson"], &["none/db", "folder exists"]);

    made.fine(&["import", "trips.ndjson"]);
    let held = Store::open(made.dir().join("db"), Limits::default()).unwrap();
    for arguments in all.into_iter().chain([&["import", "trips.ndjson"][..]]) {
        made.fails(
            arguments,
            &["ask the daemon with `polyrail linkdb status`", "is open in another process"],
        );
    }
    drop(held);
    made.fine(&["stats"]);

    let bytes = made.bytes("db");
    fs::write(made.dir().join("db"), &bytes[..bytes.len() / 2]).unwrap();
    for arguments in all {
        made.fails(arguments, &["db: the file is damaged", "import an export"]);
    }
    assert!(made.bytes("db") == bytes[..bytes.len() / 2], "it is left as it is");
    fs::write(made.dir().join("db"), "letters").unwrap();
    made.fails(
        &["import", "trips.ndjson"],
        &["db: the file is not a LinkDB and was left unchanged"],
    );
    assert_eq!(made.text("db"), "letters");
    made.fails(&["stats", "--db", "."], &[".: the path is no ordinary file"]);
}

/// An operator who forgets `--db` may name the database as the output.
#[test]
fn export_never_overwrites_a_database() {
    let made = Made::new();
    made.fine(&["import", "--db", "other", "trips.ndjson"]);
    // Opening a file changes it; its contents must stay.
    let holds = || ["db", "other"].map(|db| made.fine(&["export", "--coarsen", "0", "--db", db]));
    let before = holds();
    for command in ["export", "plot"] {
        for file in ["db", "other"] {
            made.fails(&[command, file], &["is a database: name another file"]);
        }
        // Another file is overwritten.
        fs::write(made.dir().join("out"), "x".repeat(1 << 20)).unwrap();
        made.fine(&[command, "out"]);
        assert!(!made.text("out").contains("xxx"));
        made.fails(&[command, "none/out"], &["none/out", "No such file"]);
        made.fails(&[command, "/dev/full"], &["No space left on device"]);
    }
    assert_eq!(holds(), before);
}

#[test]
fn forecasts_are_evaluated() {
    let made = Made::new();
    let output = made.fine(&["evaluate"]);
    assert!(output.starts_with(&format!("{TRIPS} trips, each left out once\n")), "{output}");
    for word in ["correct", "late", "early", "successes"] {
        assert!(output.contains(word), "{output:?} lacks {word:?}");
    }
    let failures = CELLS / 3 * (TRIPS * 3 / 4);
    for arguments in
        [&["evaluate"][..], &["evaluate", "--rule", "mean"], &["evaluate", "--rule", "naive"]]
    {
        let all = [arguments, &["--json"]].concat();
        let value: Value = serde_json::from_str(&made.fine(&all)).unwrap();
        assert_eq!(value["trips"], TRIPS, "{all:?}");
        let judged = &value["told"]["failures"];
        let counted: u64 = judged.as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(counted, failures, "{all:?}: {judged}");
    }
    let output = made.fine(&["evaluate", "--trips", "3"]);
    assert!(output.starts_with("3 trips, each left out once\n"), "{output}");
    assert_eq!(made.run(&["evaluate", "--rule", "median"], b"").0, 2);
    assert_eq!(made.run(&["evaluate", "--trips", "-1"], b"").0, 2);
    // An empty evaluation is not an error.
    let none = json!({ "linkdb": { "version": 1 } }).to_string();
    fs::write(made.dir().join("none.ndjson"), none).unwrap();
    made.fine(&["import", "--db", "empty", "none.ndjson"]);
    let output = made.fine(&["evaluate", "--db", "empty"]);
    assert!(output.starts_with("0 trips"), "{output}");
    let value: Value =
        serde_json::from_str(&made.fine(&["evaluate", "--db", "empty", "--json"])).unwrap();
    assert_eq!(value["trips"], 0);
    made.fails(&["plot", "--db", "empty"], &["the database knows no cells on the way up"]);
}

#[test]
fn track_is_plotted() {
    let made = Made::new();
    let picture = made.fine(&["plot"]);
    for part in ["route 7, up: 2 carriers", "north", "&lt;south&gt; &amp; co"] {
        assert!(picture.contains(part), "no {part}");
    }
    let failures = (CELLS / 3 * (TRIPS * 3 / 4)) as usize;
    let marks = ["#FF0000", "#0000FF"].map(|colour| picture.matches(colour).count());
    assert_eq!(marks, [failures, (CELLS / 3) as usize], "failures in red, forecasts in blue");
    // A long track is drawn in strips.
    let head = json!({ "linkdb": { "version": 1 } }).to_string();
    let far = handover(77, 0, CARRIERS[0], 100_000, true);
    fs::write(made.dir().join("far.ndjson"), format!("{head}\n{far}\n")).unwrap();
    made.fine(&["import", "--db", "far", "trips.ndjson"]);
    made.fine(&["import", "--db", "far", "far.ndjson"]);
    let height = |text: &str| -> u32 {
        let rest = text.split("height=\"").nth(1).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    assert!(height(&made.fine(&["plot", "--db", "far"])) > 3 * height(&picture));
    made.fine(&["plot", "--route", "7", "line.svg"]);
    assert_eq!(made.text("line.svg"), picture);
    assert_eq!(made.mode("line.svg"), 0o600);
    made.fails(&["plot", "--down"], &["no cells on the way down"]);
    made.fails(&["plot", "--route", "7", "--down"], &["no handovers are known on this route"]);
    made.fails(&["plot", "--route", "8"], &["no handovers are known on this route"]);
    for bad in ["x", "-7", "", "10000000000000000"] {
        let (code, _, complaint) = made.run(&["plot", &format!("--route={bad}")], b"");
        assert_eq!(code, 2, "{bad}: {complaint}");
        if !bad.is_empty() {
            assert!(
                complaint.contains("is not a number of 1 to 16 hexadecimal digits"),
                "{complaint}"
            );
        }
    }
    assert_eq!(made.run(&["export", "--coarsen", "-1"], b"").0, 2);
    assert_eq!(made.run(&["export", "--coarsen", "65536"], b"").0, 2);
}

const TRIPS: u64 = 8;
const CELLS: u64 = 12;
/// The second has a name that must be escaped in a picture, and quoted in a table.
const CARRIERS: [&str; 2] = ["north", "<south> & co, \"2\""];

//! `polyrail linkdb plot --html`, opened in a headless Chromium. Its pictures are in
//! `target/results/linkdb-plot`.

use std::fs;
use std::path::{Path, PathBuf};

use polyrail_model::RouteId;
use polyrail_predictor::views::{creator_hash, new_route};
use serde_json::{Value, json};

use super::browser::Browser;
use super::{CARRIERS, CELLS, Made, TRIPS, handover, trips};

/// A folder for pictures, below the target folder.
fn pictures() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.parent().expect("it is in the target folder").join("results/linkdb-plot");
    fs::create_dir_all(&folder).expect("the target folder is usable");
    folder
}

/// The route 7 of a writer, as the creator of its track.
fn route(writer: &str) -> RouteId {
    new_route(creator_hash(writer), 7)
}

/// A place along the line in ten-millionths of a degree, and its bearing: a quarter of a circle
/// from north to west.
fn place(metres: f64) -> (i32, i32, f64) {
    let bearing = std::f64::consts::FRAC_PI_2 * (metres / 13_000.0);
    let radius = 13_000.0 / std::f64::consts::FRAC_PI_2;
    let (east, north) = (radius * (bearing.cos() - 1.0), radius * bearing.sin());
    let unit = 6_371_008.8 * 1e-7_f64.to_radians();
    let latitude = 500_000_000.0 + north / unit;
    let longitude = 80_000_000.0 + east / unit / 50.1_f64.to_radians().cos();
    (latitude.round() as i32, longitude.round() as i32, 360.0 - bearing.to_degrees())
}

/// The track as a row of an export of version 1.
fn track() -> String {
    let mut bytes = vec![1];
    bytes.extend(131_u32.to_be_bytes());
    for metres in (0..=130).map(|mark| mark * 100) {
        let (latitude, longitude, _) = place(f64::from(metres));
        bytes.extend([latitude, longitude, metres * 10].iter().flat_map(|one| one.to_be_bytes()));
        bytes.push(8);
    }
    json!({ "track": { "route": "7", "bytes": hex(&bytes) } }).to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An entry with the rates and delays of a carrier at 24 places from this kilometre on.
fn rates(writer: &str, sequence: u64, carrier: &str, kilometre: u64) -> String {
    let varint = |mut number: u64| {
        let mut out = Vec::new();
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
        out
    };
    let mut bytes = vec![3];
    bytes.extend(0xa0_u64.to_be_bytes());
    bytes.extend(varint(carrier.len() as u64));
    bytes.extend(carrier.bytes());
    bytes.extend(route(writer).0.to_be_bytes());
    bytes.extend([0, 24]);
    for at in 0..24 {
        let (decimetres, rate) = (kilometre * 10_000 + at * 1_000 + 500, 5_000_000 + at * 300_000);
        bytes.push(3);
        // A positive number is doubled, as zigzag order wants it.
        bytes.extend([decimetres * 2, rate, 30_000 + at * 500].map(varint).concat());
    }
    entry(writer, sequence, json!({ "bytes": hex(&bytes) }))
}

/// A row of an export of version 2.
fn entry(writer: &str, sequence: u64, fields: Value) -> String {
    let mut row = json!({ "writer": writer, "incarnation": "1", "sequence": sequence });
    for (name, value) in fields.as_object().into_iter().flatten() {
        row[name] = value.clone();
    }
    json!({ "entry": row }).to_string()
}

/// A handover of another train on its own track, with the spot where it began.
fn with_spot(sequence: u64, carrier: &str, metres: u64) -> String {
    let mut row: Value = serde_json::from_str(&handover(0x99, sequence, carrier, metres, false))
        .expect("it is JSON");
    row["handover"]["route"] = json!(route("train-2").to_string());
    let (latitude, longitude, bearing) = place(metres as f64);
    let heading = (bearing / 360.0 * 256.0) as u64 % 256;
    let spot = json!({ "latitude": latitude, "longitude": longitude, "heading": heading });
    entry("train-2", sequence, json!({ "handover": row["handover"], "spot": spot }))
}

/// The value of an attribute of the element with this id.
fn attribute<'a>(document: &'a str, id: &str, name: &str) -> &'a str {
    let element = document.split(&format!("id=\"{id}\"")).nth(1);
    let element = element.and_then(|rest| rest.split('>').next());
    let element = element.unwrap_or_else(|| panic!("no element {id} in {document}"));
    let value = element.split(&format!(" {name}=\"")).nth(1);
    value.and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("{element}: no {name}"))
}

fn number(document: &str, id: &str, name: &str) -> u64 {
    attribute(document, id, name).parse().expect("it is a number")
}

/// Makes a page, and checks that it needs nothing else.
fn page(made: &Made, rows: &[String], name: &str) -> PathBuf {
    fs::write(made.dir().join("rows.ndjson"), rows.join("\n")).expect("a test's folder is usable");
    made.fine(&["import", "rows.ndjson"]);
    made.fine(&["plot", "--html", name]);
    assert_eq!(made.mode(name), 0o600);
    let text = made.text(name);
    let (head, rest) = text.split_once("id=\"data\">").expect("it has data");
    let (_, tail) = rest.split_once("</script>").expect("the data ends");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "import("] {
        assert!(!head.contains(outside) && !tail.contains(outside), "the page has {outside}");
    }
    let (_, policy) = head.split_once("content=\"").expect("a policy");
    let (policy, _) = policy.split_once('"').expect("its end");
    let rules: Vec<&str> = policy.split(';').map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(rules[0], "default-src 'none'");
    let hashed = |rule: &&str| {
        let (kind, allowed) = rule.split_once(' ').expect("a rule");
        matches!(kind, "style-src" | "script-src") && allowed.starts_with("'sha256-")
            || matches!((kind, allowed), ("base-uri" | "form-action", "'none'"))
    };
    assert!(rules.len() >= 3 && rules[1..].iter().all(hashed), "{policy}");
    made.dir().join(name)
}

/// With a track, rates, and another train's handovers at spots of the track.
fn complete(made: &Made) -> PathBuf {
    let mut rows: Vec<String> = trips(TRIPS).lines().map(str::to_owned).collect();
    rows.insert(1, track());
    for (sequence, kilometre) in (0..).zip([0, 3, 6, 9]) {
        rows.push(rates("", sequence, CARRIERS[0], kilometre));
    }
    rows.push(rates("", 4, "satellite", 5));
    rows.extend((0..CELLS).map(|cell| with_spot(cell, CARRIERS[0], cell * 1_000 + 920)));
    page(made, &rows, "line.html")
}

/// A page's document when this is true, and a picture of it.
fn open(
    browser: &mut Browser,
    page: &Path,
    (size, scheme): ((u32, u32), &str),
    is_ready: &str,
    picture: &str,
) -> (String, Vec<u8>) {
    let page = browser.open(&format!("file://{}", page.display()), size, scheme);
    browser.wait(&page, is_ready);
    let shown = browser.value(&page, "document.documentElement.scrollWidth");
    assert_eq!(shown, size.0, "{picture}: nothing is wider than the screen");
    let document = browser.value(&page, "document.documentElement.outerHTML");
    let drawn = browser.draw(&page, &pictures().join(picture));
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    (document.as_str().expect("a text").to_owned(), drawn)
}

const READY: &str = "document.documentElement?.dataset.ready === ''";

const FAILURES: u64 = CELLS / 3 * (TRIPS * 3 / 4);
const FORECASTS: u64 = CELLS / 3;

#[test]
fn page_shows_the_line_on_phones_and_desktops_in_light_and_dark() {
    let made = Made::empty();
    let path = complete(&made);
    let sizes = [("phone", (390, 844)), ("desktop", (1280, 1400))];
    let kinds = sizes.into_iter().flat_map(|size| [(size, "light"), (size, "dark")]);
    let mut browser = Browser::start();
    let mut drawn = Vec::new();
    for ((name, size), scheme) in kinds {
        let picture = format!("{name}-{scheme}.png");
        let (document, picture) = open(&mut browser, &path, (size, scheme), READY, &picture);
        assert!(!document.contains("data-error"), "{document}");
        assert!(document.contains("Track 4fd0bfc100000007, up"), "{document}");
        // One train's handovers on another track are here, too.
        let handovers = TRIPS * CELLS * 2 + CELLS;
        for (id, value) in [
            ("figure-carriers", 3),
            ("figure-cells", CELLS * 2),
            ("figure-trips", TRIPS + 1),
            ("figure-handovers", handovers),
            ("figure-failures", FAILURES),
            ("figure-forecasts", FORECASTS),
        ] {
            assert_eq!(number(&document, id, "data-value"), value, "{id}");
        }
        for id in ["map", "strip"] {
            assert_eq!(number(&document, id, "data-cells"), CELLS * 2, "{id}");
            assert_eq!(number(&document, id, "data-failures"), FAILURES, "{id}");
            assert_eq!(number(&document, id, "data-successes"), handovers - FAILURES, "{id}");
            assert_eq!(number(&document, id, "data-forecasts"), FORECASTS, "{id}");
            assert!(number(&document, id, "width") <= u64::from(size.0), "{id}");
        }
        // Rates and delays at each place.
        assert_eq!(number(&document, "strip", "data-rates"), 5 * 24 * 2);
        assert_eq!(document.matches("title=\"Show cell ").count() as u64, CELLS / 3);
        drawn.push(picture);
    }
    assert!(drawn[0] != drawn[1] && drawn[2] != drawn[3], "dark is as light");
}

/// A page around the tested one that acts as a user and prints what the user sees.
const USER: &str = include_str!("user.html");

#[test]
fn user_zooms_moves_and_filters() {
    let made = Made::empty();
    let path = complete(&made).with_file_name("user.html");
    fs::write(&path, USER).unwrap();
    let mut browser = Browser::start();
    let page = browser.open(&format!("file://{}", path.display()), (1280, 900), "light");
    let seen = "document.getElementById('seen')?.textContent || ''";
    browser.wait(&page, &format!("({seen}) !== ''"));
    let seen = browser.value(&page, seen);
    let seen: Vec<Value> = serde_json::from_str(seen.as_str().unwrap()).unwrap();
    browser.draw(&page, &pictures().join("user.png"));
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    let of = |what: &str| {
        let row = seen.iter().find(|row| row[0] == what);
        row.unwrap_or_else(|| panic!("no {what} in {seen:?}"))
    };
    let all = CELLS * 2;
    for what in ["whole", "0", "button", "escape"] {
        assert_eq!(*of(what), json!([what, "km 0.0 to 13.0", all, all, ""]));
    }
    // A wheel that cannot zoom out further scrolls the page.
    assert_eq!((&of("scrolls")[1], &of("zooms")[1]), (&json!(false), &json!(true)));
    for what in ["wheel on strip", "wheel on map", "drag", "pinch", "+"] {
        assert_ne!(of(what)[1], "km 0.0 to 13.0", "{what}");
        assert!(of(what)[3].as_u64().is_some_and(|cells| (1..all).contains(&cells)), "{what}");
    }
    assert_ne!(of("wheel on map")[1], of("drag")[1]);
    for what in ["failure", "hover"] {
        assert!(of(what)[4].as_str().unwrap().starts_with("km "), "{what}: {:?}", of(what));
    }
    assert_eq!((&of("filter")[2], &of("filter")[3]), (&json!(CELLS), &json!(CELLS)));
    assert_eq!(of("carriers")[1], 2);
    // On a phone nothing is wider than the screen.
    assert_eq!(of("phone")[1], 390);
    assert!(of("phone")[2].as_u64().is_some_and(|width| width < 390), "{:?}", of("phone"));
}

/// Without coordinates, as a cloud has it, where each name is an attack.
#[test]
fn hostile_names_are_text_and_a_line_without_coordinates_is_a_strip() {
    const WRITER: &str = "</script><script>document.body.dataset.error='a'</script>";
    const CARRIERS: [&str; 4] = [
        "</script><img src=x onerror=a()>",
        "<!--<script>",
        "'\"><svg onload=a()>",
        "\u{2028}${a()}\\",
    ];
    let head = json!({ "linkdb": { "version": 2 } }).to_string();
    let mut rows = vec![head];
    for (at, line) in trips(TRIPS).lines().skip(1).enumerate() {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let fields = row["handover"].as_object_mut().unwrap();
        fields["route"] = json!(route(WRITER).to_string());
        let known = usize::from(fields["carrier"] == super::CARRIERS[1]);
        fields["carrier"] = json!(CARRIERS[known]);
        rows.push(entry(WRITER, at as u64, json!({ "handover": fields })));
    }
    let count = rows.len() as u64;
    for (sequence, carrier) in (count..).zip(CARRIERS) {
        rows.push(rates(WRITER, sequence, carrier, 3));
    }
    let made = Made::empty();
    let path = page(&made, &rows, "hostile.html");
    let text = made.text("hostile.html");
    assert_eq!(text.matches("</script>").count(), 2, "the data and the script");
    assert!(!text.contains('\u{2028}') && !text.contains("<img") && !text.contains("<svg"));

    let mut browser = Browser::start();
    let kind = ((390, 1400), "light");
    let (document, _) = open(&mut browser, &path, kind, READY, "strip-only.png");
    assert!(!document.contains("data-error=\""), "{document}");
    // Text of a document has its signs escaped; the data and the template have none of these.
    for element in ["<img", "<svg", "<script>document"] {
        assert!(!document.contains(element), "{element}: {document}");
    }
    for name in CARRIERS {
        let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(document.contains(&format!("<bdi>{shown}</bdi>")), "no {name:?}: {document}");
    }
    assert!(document.contains("&lt;/script&gt;&lt;script&gt;document"), "the writer: {document}");
    assert!(document.contains("LinkDB has no coordinates of this track"), "{document}");
    assert!(document.contains("id=\"map-panel\" hidden=\"\""), "{document}");
    assert_eq!(number(&document, "strip", "data-cells"), CELLS * 2);
    assert_eq!(number(&document, "strip", "data-failures"), FAILURES);
    // The file's own node has no handovers: forecasts and rates are the train's.
    assert_eq!(number(&document, "figure-forecasts", "data-value"), FORECASTS);
    assert_eq!(number(&document, "strip", "data-rates"), 4 * 24 * 2);
}

/// A cell is where a train receives it: before the handover out of it, in the direction of travel.
#[test]
fn cell_ends_at_its_handovers_in_both_directions() {
    let made = Made::empty();
    let up: Vec<String> = trips(TRIPS).lines().map(str::to_owned).collect();
    page(&made, &up, "up.html");
    let down: Vec<String> = up.iter().map(|row| row.replace("\"up\"", "\"down\"")).collect();
    fs::write(made.dir().join("down.ndjson"), down.join("\n")).unwrap();
    made.fine(&["import", "--db", "other", "down.ndjson"]);
    made.fine(&["plot", "--db", "other", "--down", "--html", "down.html"]);
    let cells = |name: &str| -> Vec<(u64, u64)> {
        let text = made.text(name);
        let data = text.split("id=\"data\">").nth(1).and_then(|rest| rest.split('<').next());
        let data: Value = serde_json::from_str(data.unwrap()).unwrap();
        let rows = data["carriers"][0]["cells"].as_array().unwrap();
        rows.iter().map(|row| (row[0].as_u64().unwrap(), row[1].as_u64().unwrap())).collect()
    };
    let (up, down) = (cells("up.html"), cells("down.html"));
    assert_eq!((up[0].0, down[CELLS as usize - 1].1), (0, CELLS * 1_000));
    for (up, down) in up.iter().zip(&down) {
        // Handovers are 900 to 940 m into each kilometre.
        assert!((900..940).contains(&(up.1 % 1_000)) && down.0 == up.1, "{up:?} {down:?}");
    }
    assert!(up.windows(2).chain(down.windows(2)).all(|pair| pair[0].1 == pair[1].0));
}

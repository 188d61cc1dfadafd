//! The text of the metrics: complete, valid, documented, and the same names in the dashboard and in
//! the alerts. The report: its vector, and hostile payloads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use polyrail_identity::NodeRole;

use super::figures::{LinkDbFigures, Scrape};
use polyrail_model::ForecastCounts;

use super::listed::{CARRIERS_MAX, ListedNames};
use super::*;
use crate::tests::{full_path, full_status};
use crate::{CloudState, PathPhase, PathState, RefusedCounts, SessionState};

/// A metric as its text declares it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exported {
    kind: String,
    unit: String,
    labels: BTreeSet<String>,
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A scrape in which every metric has a value.
fn full(role: NodeRole) -> Scrape {
    let linkdb = serde_json::json!({
        "shared": {"connected": true, "waiting": 1, "behind": 2, "sent": 3, "received": 4},
        "store": {"open": true, "stats": {"entries": 5, "file_bytes": 7, "writers": 1}},
        "forecasts": {"alarms": 1, "correct": 2},
        "recorded": 3,
        "trips": [],
        "sources": [{
            "source": "gpsd", "target": "[::1]:2947", "state": "connected",
            "since": "2026-11-21T12:40:00.000Z", "heard_at": null, "lines": 1, "observations": 1,
            "errors": 0, "message": null,
        }],
    });
    let linkdb: LinkDbFigures = serde_json::from_value(linkdb).unwrap();
    let report = full_report();
    let age = std::time::Duration::from_secs(4);
    let cloud = CloudCounts {
        dials_failed: vec![("refused", 2)],
        handed_over: vec![("tunnels", 3)],
        reports: vec![ReceivedReport { gateway: "train-7".to_owned(), age, report }],
        ..CloudCounts::default()
    };
    let plane = MetricsSnapshot {
        paths: vec![PathState { peer: Some("train-7".to_owned()), ..full_path() }],
        udp_dropped: vec![("quota", 1)],
        tunnel_dropped: vec![("expired", 4)],
        cloud: (role == NodeRole::Cloud).then_some(cloud),
        ..MetricsSnapshot::default()
    };
    let mut status = full_status();
    status.role = role;
    status.process.descriptors_open = Some(9);
    status.process.descriptors_max = Some(99);
    status.process.memory_resident_bytes = Some(999);
    Scrape { status, plane, linkdb: Some(linkdb), unlisted: 0 }
}

fn carrier_report(name: &str) -> CarrierReport {
    CarrierReport { name: name.to_owned(), ..CarrierReport::of(&full_path()) }
}

fn full_report() -> GatewayReport {
    GatewayReport {
        uptime_s: 3_600,
        cpu_ms: 70_000,
        memory_bytes: 30 << 20,
        flows: 200,
        users: 40,
        flows_opened: 9_000,
        refused: RefusedCounts { flows: 1, quota: 2, overload: 3, queries: 4 },
        reinjected_bytes: 1 << 33,
        datagrams: [100, 50, 90, 5],
        forecasts: ForecastCounts {
            alarms: 9,
            correct: 4,
            early: 1,
            late: 2,
            missed: 3,
            false_alarms: 1,
        },
        linkdb_entries: 12_345,
        carriers_configured: 2,
        carriers: vec![carrier_report("alpha"), carrier_report("beta")],
    }
}

/// The metrics of a text by name. Checks the syntax, and that no series is there twice.
fn parse(text: &str) -> BTreeMap<String, Exported> {
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let (mut metrics, mut series) = (BTreeMap::new(), BTreeSet::new());
    let mut name = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let [what, of, value] = std::array::from_fn(|_| words.next().unwrap());
            match what {
                "HELP" => assert!(value.ends_with('.'), "{line}"),
                "TYPE" => {
                    let total = if value == "counter" { "_total" } else { "" };
                    name = format!("{of}{total}");
                    let exported = Exported { kind: value.to_owned(), ..Exported::default() };
                    assert!(metrics.insert(name.clone(), exported).is_none(), "{line}");
                }
                "UNIT" => {
                    assert!(of.ends_with(value), "{line}");
                    metrics.get_mut(&name).unwrap().unit = value.replace('_', " ");
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        assert!(series.insert(key), "{line} is there twice");
        let (of, labels) = key.split_once('{').unwrap_or((key, "}"));
        let parts = ["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}"));
        assert!(of == name || parts.iter().any(|part| part == of), "{line} follows {name}");
        let names = &mut metrics.get_mut(&name).unwrap().labels;
        names.extend(label_names(labels.strip_suffix('}').unwrap()));
    }
    metrics
}

/// The names in `a="x",b="y"`.
fn label_names(mut text: &str) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        names.extend((name != "le").then(|| name.to_owned()));
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        text = &rest[end.expect("a label ends") + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
    assert!(text.is_empty(), "{text}");
    names
}

/// The metrics that either daemon exports, with all their labels.
fn exported() -> BTreeMap<String, Exported> {
    let all = parse(&full(NodeRole::Cloud).into_text());
    let own = parse(&full(NodeRole::Gateway).into_text());
    assert!(own.keys().all(|name| all.contains_key(name)), "a cloud has them all");
    assert!(own.keys().all(|name| !name.starts_with("polyrail_gateway_")));
    assert!(own.values().all(|one| !one.labels.contains("gateway")));
    all
}

#[test]
fn every_metric_is_documented_with_type_labels_unit_and_meaning() {
    let reference = file("docs/metrics.md");
    let rows = reference.lines().filter(|line| line.starts_with("| `polyrail_"));
    let mut documented = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        let [name, kind, labels, unit, meaning] = cells[..] else { panic!("{row}") };
        assert!(meaning.len() > 5, "{row}");
        let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let row = Exported { kind: kind.to_owned(), unit: unit.to_owned(), labels };
        assert!(documented.insert(name.replace('`', ""), row).is_none(), "{name} twice");
    }
    assert_eq!(documented, exported());
    assert!(documented.len() > 80, "{}", documented.len());
}

#[test]
fn dashboard_and_alerts_name_exported_metrics_alone() {
    let exported = exported();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (name, least) in
        [("packaging/grafana/polyrail.json", 35), ("packaging/prometheus/polyrail.rules.yml", 15)]
    {
        let text = file(name);
        let words = text.split(|c| !is_word(c)).filter(|word| word.starts_with("polyrail_"));
        let used: BTreeSet<&str> = words.collect();
        assert!(used.len() >= least, "{name}: {}", used.len());
        for word in used {
            let bare = word.strip_suffix("_bucket").unwrap_or(word);
            let found = exported.get(bare);
            let is_histogram = found.is_some_and(|one| one.kind == "histogram");
            assert!(found.is_some() && is_histogram == (bare != word), "{name}: {word}");
        }
    }
    let dashboard: serde_json::Value =
        serde_json::from_str(&file("packaging/grafana/polyrail.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 20);
    let mut told_apart = 0;
    for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
        let text = |key: &str| target[key].as_str().unwrap();
        let (query, legend) = (text("expr"), text("legendFormat"));
        let mut words = query.split(|c| !is_word(c));
        let metric = words.find(|word| word.starts_with("polyrail_")).unwrap();
        let metric = metric.strip_suffix("_bucket").unwrap_or(metric);
        // Of a session, on a gateway with several clouds one for each.
        let is_of_session =
            exported[metric].labels.contains("gateway") && !query.contains("polyrail_gateway_");
        if is_of_session && !query.contains("sum") {
            assert!(legend.contains("{{gateway}} {{cloud}}"), "{query}: {legend}");
            told_apart += 1;
        }
    }
    assert!(told_apart > 10, "{told_apart}");
}

#[test]
fn values_reach_the_text() {
    let text = full(NodeRole::Cloud).into_text();
    for line in [
        "polyrail_build_info{version=\"\",role=\"cloud\"} 1\n",
        "polyrail_flows{gateway=\"c\"} 2\n",
        "polyrail_path_state{gateway=\"train-7\",carrier=\"a\",state=\"up\"} 1\n",
        "polyrail_path_state{gateway=\"train-7\",carrier=\"a\",state=\"down\"} 0\n",
        "polyrail_path_rtt_seconds{gateway=\"train-7\",carrier=\"a\"} 0.000001\n",
        "polyrail_datagrams_dropped_total{gateway=\"c\",reason=\"queue\"} 3\n",
        "polyrail_datagrams_dropped_total{gateway=\"c\",reason=\"stale\"} 4\n",
        "polyrail_tunnel_datagrams_dropped_total{reason=\"expired\"} 4\n",
        "polyrail_linkdb_entries 5\n",
        "polyrail_forecast_outcomes_total{outcome=\"correct\"} 2\n",
        "polyrail_telemetry_connected{source=\"gpsd\"} 1\n",
        "polyrail_gateway_report_age_seconds{gateway=\"train-7\"} 4.0\n",
        "polyrail_gateway_forecast_outcomes_total{gateway=\"train-7\",outcome=\"late\"} 2\n",
        "polyrail_gateway_path_up{gateway=\"train-7\",carrier=\"beta\"} 1\n",
        "polyrail_loop_turn_seconds_bucket{le=\"+Inf\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(full(NodeRole::Gateway).into_text().contains("polyrail_flows 2\n"));
}

#[test]
fn gateway_with_several_clouds_names_them_and_reports_the_current_one_alone() {
    let mut scrape = full(NodeRole::Gateway);
    let clouds = &mut scrape.status.snapshot.clouds;
    clouds.push(CloudState { name: "d".to_owned(), current: false, ..clouds[0].clone() });
    let sessions = &mut scrape.status.snapshot.sessions;
    sessions.push(SessionState { peer: Some("d".to_owned()), ..sessions[0].clone() });
    let (link, state) = (None, PathPhase::Standby);
    let to = |peer: &str| PathState { peer: Some(peer.to_owned()), ..full_path() };
    scrape.plane.paths = vec![to("c"), PathState { link, state, ..to("d") }];
    let report = scrape.report();
    assert_eq!((report.carriers_configured, &report.carriers[..]), (1, &[carrier_report("a")][..]));
    let text = scrape.into_text();
    parse(&text);
    for line in [
        "polyrail_cloud_current{cloud=\"c\"} 1\n",
        "polyrail_cloud_current{cloud=\"d\"} 0\n",
        "polyrail_flows{cloud=\"d\"} 2\n",
        "polyrail_path_up{cloud=\"c\",carrier=\"a\"} 1\n",
        "polyrail_path_state{cloud=\"d\",carrier=\"a\",state=\"standby\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn hostile_names_are_escaped_and_bounded() {
    let name = |n: usize| format!("\"}} 1\n\\x{n}");
    let mut scrape = full(NodeRole::Cloud);
    let path = |n| PathState { carrier: name(n), peer: Some("m".to_owned()), ..full_path() };
    scrape.plane.paths.extend((0..CARRIERS_MAX + 9).map(path));
    scrape.limit(&mut ListedNames::default());
    assert_eq!((scrape.plane.paths.len(), scrape.unlisted), (CARRIERS_MAX + 1, 9));
    let text = scrape.into_text();
    parse(&text);
    assert!(text.contains("carrier=\"\\\"} 1\\n\\\\x7\"} 1\n"), "{text}");
    assert!(text.contains("polyrail_carriers_unlisted 9\n"));
}

#[test]
fn report_is_encoded_as_its_vector() {
    let vector = file("control/admin/vectors/report.txt");
    let bytes = full_report().encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(vector.lines().last().unwrap(), hex);
    assert_eq!(GatewayReport::decode(&bytes), Ok(Some(full_report())));
    for length in 0..bytes.len() {
        assert!(GatewayReport::decode(&bytes[..length]).is_err(), "{length}");
    }
    assert!(GatewayReport::decode(&[&bytes[..], &[0]].concat()).is_err());
    assert_eq!(GatewayReport::decode(&[2, 7, 7]), Ok(None), "a later form");
}

#[test]
fn report_with_invalid_carriers_is_refused() {
    let with = |names: &[&str]| {
        let carriers = names.iter().map(|name| carrier_report(name)).collect();
        GatewayReport::decode(&GatewayReport { carriers, ..full_report() }.encode())
    };
    assert!(with(&["a", "b\"\\"]).is_ok());
    for names in [&[""][..], &["a\nb"], &["a\u{7f}"], &["a", "a"]] {
        assert!(with(names).is_err(), "{names:?}");
    }
}

#[test]
fn largest_report_fits_a_message() {
    let huge = u64::MAX >> 2;
    let carriers: Vec<CarrierReport> = (0..20)
        .map(|n| CarrierReport {
            name: format!("{n:032}"),
            state: PathPhase::NoInterface,
            bytes: [huge; 2],
            packets: [huge; 2],
            events: [huge; 5],
            ..carrier_report("")
        })
        .collect();
    let report = GatewayReport { uptime_s: huge, carriers, ..full_report() };
    let bytes = report.encode();
    assert!((REPORT_MAX - 140..=REPORT_MAX).contains(&bytes.len()), "{}", bytes.len());
    let decoded = GatewayReport::decode(&bytes).unwrap().unwrap();
    let count = decoded.carriers.len();
    assert!(count >= 8 && decoded.carriers == report.carriers[..count], "{count}");
    // Usual names and counters: all that a configuration may have.
    let usual = (0..16).map(|n| CarrierReport {
        srtt_us: 45_000,
        rate_bits_per_s: 20_000_000,
        window_bytes: 200_000,
        bytes: [5 << 30; 2],
        packets: [3_000_000, 60_000],
        ..carrier_report(&format!("carrier-{n}"))
    });
    let report = GatewayReport { carriers: usual.collect(), ..full_report() };
    assert_eq!(GatewayReport::decode(&report.encode()), Ok(Some(report)));
}

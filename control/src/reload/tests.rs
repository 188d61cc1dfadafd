//! Two configurations in, changes or the keys that need a restart out.

use std::path::Path;

use super::*;
use polyrail_config::{CloudConfig, GatewayConfig};

const GATEWAY: &str = r#"mode = "auto"
[tls]
certificate = "g.crt"
key = "g.key"
authority = "ca.crt"
[cloud]
name = "cloud"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "a"
interface = "wwan0"
[[carrier]]
name = "b"
interface = "wwan1"
[socks5]
listen = ["127.0.0.1:1080"]
[intercept]
interfaces = ["lan0"]
[dns]
resolver = "9.9.9.9:53"
[session]
linger = "120s"
memory = "16 MiB"
flows_max = 100
"#;

const CLOUD: &str = r#"listen = ["[::]:4433"]
[tls]
certificate = "c.crt"
key = "c.key"
authority = "ca.crt"
[carrier_congestion]
a = "cubic"
[access]
deny = []
"#;

fn gateway(text: &str) -> GatewayConfig {
    GatewayConfig::parse(text, Path::new("/etc/gateway.toml")).unwrap()
}

fn cloud(text: &str) -> CloudConfig {
    CloudConfig::parse(text, Path::new("/etc/cloud.toml")).unwrap()
}

/// The example changed: what differs, as lines, and the typed changes.
fn changed(from: &str, to: &str) -> (Vec<String>, Vec<Change>) {
    assert!(GATEWAY.contains(from), "{from:?} is not in the example");
    let new = gateway(&GATEWAY.replacen(from, to, 1));
    let found = diff_gateway(&gateway(GATEWAY), &new).unwrap_or_else(|e| panic!("{to:?}: {e}"));
    for line in &found.lines {
        assert!(documented(&plain(line)).starts_with("live"), "{}", line.key);
    }
    (found.lines.iter().map(ToString::to_string).collect(), found.changes)
}

/// What the reference says of a key: its row's second cell.
fn documented(key: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, table) = text.split_once("## 9. Reloading").unwrap();
    let quoted = format!("`{key}`");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let mut found: Vec<_> = rows.filter(|row| row[1].split(", ").any(|k| k == quoted)).collect();
    assert_eq!(found.len(), 1, "rows for {key}");
    found.remove(0)[2].to_owned()
}

/// The key's name in the reference: without the carrier's own.
fn plain(line: &ChangeLine) -> String {
    let parts: Vec<_> = line.key.split('.').collect();
    match parts.as_slice() {
        ["carrier", _] => "carrier.name".to_owned(),
        ["carrier", _, key] => format!("carrier.{key}"),
        ["carrier_congestion", _] => "carrier_congestion".to_owned(),
        _ => line.key.clone(),
    }
}

#[test]
fn every_key_of_the_reference_has_its_row() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (reference, _) = text.split_once("## 9. Reloading").unwrap();
    let (_, reference) = reference.split_once("## 6. Keys of both files").unwrap();
    let cells = reference.lines().filter(|line| line.starts_with("| `"));
    let keys = cells.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'));
    let keys: Vec<_> = keys.filter(|key| !key.trim_matches([' ', ',']).is_empty()).collect();
    assert!(keys.len() > 50, "{keys:?}");
    for key in keys.iter().filter(|key| **key != "[[carrier]]") {
        assert!(["live", "restart"].iter().any(|word| documented(key).starts_with(word)), "{key}");
    }
}

fn name(text: &str) -> CarrierName {
    text.parse().unwrap()
}

#[test]
fn what_is_the_same_is_no_change() {
    assert_eq!(diff_gateway(&gateway(GATEWAY), &gateway(GATEWAY)), Ok(Difference::default()));
    let commented = format!("# new\n{GATEWAY}");
    assert_eq!(diff_gateway(&gateway(GATEWAY), &gateway(&commented)), Ok(Difference::default()));
    assert_eq!(diff_cloud(&cloud(CLOUD), &cloud(CLOUD)), Ok(Difference::default()));
}

#[test]
fn live_keys_of_a_gateway() {
    use Change::*;
    let default = polyrail_scheduler::ChainSpec::default().names().join(", ");
    let chains = format!("scheduler.chain: [{default}] -> [min_rtt, redundancy]");
    let rows = [
        ("mode = \"auto\"", "mode = \"tls\"", "mode: auto -> tls", Mode),
        ("[tls]", "[log]\nlevel = \"debug\"\n[tls]", "log.level: info -> debug", Log),
        ("[tls]", "[log]\nfile = \"x\"\n[tls]", "log.file: set to /etc/x", Log),
        ("[tls]", "[log]\nformat = \"json\"\n[tls]", "log.format: text -> json", Log),
        (
            "[tls]",
            "[telemetry]\ngpsd = \"127.0.0.1:2947\"\n[tls]",
            "telemetry.gpsd: set to 127.0.0.1:2947",
            Telemetry,
        ),
        (
            "[tls]",
            "[telemetry]\nmodem_manager = true\n[tls]",
            "telemetry.modem_manager: false -> true",
            Telemetry,
        ),
        (
            "[tls]",
            "[telemetry]\nreplay = \"x\"\n[tls]",
            "telemetry.replay: set to /etc/x",
            Telemetry,
        ),
        ("g.crt", "h.crt", "tls.certificate: /etc/g.crt -> /etc/h.crt", Certificates),
        ("linger = \"120s\"", "linger = \"90s\"", "session.linger: 120s -> 90s", Linger),
        ("flows_max = 100", "flows_max = 7", "session.flows_max: 100 -> 7", FlowsMax),
        ("[tls]", "[scheduler]\nchain = \"redundant\"\n[tls]", &chains, Chain),
        (
            "192.0.2.1:4433",
            "192.0.2.2:4433",
            "cloud.addresses: [192.0.2.1:4433] -> [192.0.2.2:4433]",
            CloudAddresses,
        ),
        (
            "[tls]",
            "[restart]\ninterval = \"250ms\"\n[tls]",
            "restart.interval: 100ms -> 250ms",
            Restart,
        ),
        ("9.9.9.9:53", "1.1.1.1:53", "dns.resolver: 9.9.9.9:53 -> 1.1.1.1:53", Resolver),
        (
            "[socks5]",
            "[socks5]\nreply = \"dialed\"",
            "socks5.reply: immediate -> dialed",
            SocksReply,
        ),
    ];
    for (from, to, line, change) in rows {
        assert_eq!(changed(from, to), (vec![line.to_owned()], vec![change]), "{to}");
    }
}

#[test]
fn live_keys_of_a_carrier() {
    use CarrierKey::*;
    let rows = [
        ("interface = \"eth9\"", "carrier.a.interface: wwan0 -> eth9", Interface),
        ("source = \"192.0.2.9\"", "carrier.a.source: set to 192.0.2.9", Source),
        ("addresses = [\"192.0.2.3:1\"]", "carrier.a.addresses: set to [192.0.2.3:1]", Addresses),
        ("congestion = \"cubic\"", "carrier.a.congestion: bbr -> cubic", Congestion),
        ("mode = \"quic\"", "carrier.a.mode: set to quic", Mode),
        ("metered = true", "carrier.a.metered: false -> true", Metered),
        ("qlog = \"/q\"", "carrier.a.qlog: set to /q", Qlog),
        ("modem = \"1a2b\"", "carrier.a.modem: set to 1a2b", Modem),
        ("role = \"backup\"", "carrier.a.role: primary -> backup", Role),
        ("enabled = false", "carrier.a.enabled: true -> false", Enabled),
    ];
    let wwan0 = "interface = \"wwan0\"";
    for (text, line, key) in rows {
        let to = if key == Interface { text.to_owned() } else { format!("{wwan0}\n{text}") };
        let change = Change::CarrierChanged(name("a"), BTreeSet::from([key]));
        assert_eq!(changed(wwan0, &to), (vec![line.to_owned()], vec![change]), "{to}");
    }
}

#[test]
fn carriers_come_and_go() {
    let b = "[[carrier]]\nname = \"b\"\ninterface = \"wwan1\"\n";
    let (lines, changes) = changed(b, "");
    assert_eq!(lines, ["carrier.b: removed, was interface wwan1"]);
    assert_eq!(changes, [Change::CarrierRemoved(name("b"))]);
    let c = b.replace("\"b\"", "\"c\"");
    let (_, changes) = changed(b, &c);
    assert_eq!(changes, [Change::CarrierRemoved(name("b")), Change::CarrierAdded(name("c"))]);
    let (lines, changes) =
        changed(b, &format!("{b}[[carrier]]\nname = \"c\"\nsource = \"192.0.2.7\"\n"));
    assert_eq!(lines, ["carrier.c: set to source 192.0.2.7"]);
    assert_eq!(changes, [Change::CarrierAdded(name("c"))]);

    let swapped = GATEWAY.replace(b, "").replacen("[[carrier]]", &format!("{b}[[carrier]]"), 1);
    let found = diff_gateway(&gateway(GATEWAY), &gateway(&swapped)).unwrap();
    assert_eq!(found.changes, [Change::CarrierOrder]);
    assert_eq!(found.lines[0].to_string(), "carrier: a, b -> b, a");
}

#[test]
fn what_needs_a_restart_is_refused_by_name() {
    let rows = [
        ("name = \"cloud\"", "name = \"other\"", "cloud.name"),
        ("16 MiB", "32 MiB", "session.memory"),
        ("[tls]", "[admin]\nsocket = \"/s\"\n[tls]", "admin.socket"),
        ("127.0.0.1:1080", "127.0.0.1:1081", "socks5.listen"),
        ("[socks5]\nlisten = [\"127.0.0.1:1080\"]\n", "", "socks5"),
        ("[dns]\nresolver = \"9.9.9.9:53\"\n", "", "dns"),
        ("[dns]", "[dns]\nport = 99", "dns.port"),
        ("\"lan0\"", "\"lan1\"", "intercept.interfaces"),
        ("[intercept]", "[intercept]\nport = 98", "intercept.port"),
        ("[intercept]", "[intercept]\nmark = 98", "intercept.mark"),
        ("[intercept]", "[intercept]\ntable = 98", "intercept.table"),
        ("[intercept]", "[intercept]\nbypass = [\"10.0.0.0/8\"]", "intercept.bypass"),
        ("[intercept]", "[intercept]\nprivate = \"carry\"", "intercept.private"),
        ("[intercept]", "[intercept]\nipv4 = false", "intercept.ipv4"),
        ("[intercept]", "[intercept]\nipv6 = false", "intercept.ipv6"),
        ("[intercept]", "[intercept]\nother = \"direct:a\"", "intercept.other"),
        ("[intercept]", "[intercept]\non_exit = \"closed\"", "intercept.on_exit"),
        ("[tls]", "[linkdb]\npath = \"l\"\n[tls]", "linkdb"),
        ("[tls]", "[users]\nkey = \"address\"\n[tls]", "users.key"),
    ];
    for (from, to, key) in rows {
        assert!(GATEWAY.contains(from), "{from:?}");
        let new = gateway(&GATEWAY.replacen(from, to, 1));
        let needed = diff_gateway(&gateway(GATEWAY), &new).expect_err(to);
        assert_eq!(needed.keys, [key]);
        if key.contains('.') {
            assert_eq!(documented(key), "restart");
        }
    }
    // A live key beside it does not help, and each key is named.
    let new = GATEWAY.replacen("mode = \"auto\"", "mode = \"tls\"", 1);
    let new = new.replacen("16 MiB", "8 MiB", 1).replacen(":1080", ":1081", 1);
    let needed = diff_gateway(&gateway(GATEWAY), &gateway(&new)).unwrap_err();
    assert_eq!(needed.keys, ["session.memory", "socks5.listen"]);
    assert!(needed.to_string().contains("session.memory, socks5.listen"), "{needed}");
}

#[test]
fn a_linkdb_changes_but_for_its_path() {
    let linkdb = "[linkdb]\npath = \"l\"\n";
    let rows = [
        ("events_max = 5000", "linkdb.events_max: 1000000 -> 5000"),
        ("retention_days = 7", "linkdb.retention_days: 365 -> 7"),
        ("forecast = false", "linkdb.forecast: true -> false"),
        ("guard = true", "linkdb.guard: false -> true"),
    ];
    for (text, line) in rows {
        let old = (gateway(&format!("{GATEWAY}{linkdb}")), cloud(&format!("{CLOUD}{linkdb}")));
        let new = format!("{linkdb}{text}\n");
        let new = (gateway(&format!("{GATEWAY}{new}")), cloud(&format!("{CLOUD}{new}")));
        let found = [diff_gateway(&old.0, &new.0).unwrap(), diff_cloud(&old.1, &new.1).unwrap()];
        for Difference { changes, lines } in found {
            assert_eq!(
                (changes.as_slice(), lines[0].to_string().as_str()),
                (&[Change::LinkDb][..], line)
            );
            assert!(documented(&lines[0].key).starts_with("live"));
        }
    }
    let moved = linkdb.replace("\"l\"", "\"m\"");
    let (old, new) =
        (gateway(&format!("{GATEWAY}{linkdb}")), gateway(&format!("{GATEWAY}{moved}")));
    assert_eq!(diff_gateway(&old, &new).unwrap_err().keys, ["linkdb.path"]);
    let (old, new) = (cloud(&format!("{CLOUD}{linkdb}")), cloud(&format!("{CLOUD}{moved}")));
    assert_eq!(diff_cloud(&old, &new).unwrap_err().keys, ["linkdb.path"]);
    assert_eq!(documented("linkdb.path"), "restart");
    let gone = diff_cloud(&old, &cloud(CLOUD)).unwrap_err();
    assert_eq!(gone.keys, ["linkdb"]);
    let new = cloud(&format!("{CLOUD}{linkdb}share = false\n"));
    let found = diff_cloud(&old, &new).unwrap();
    assert_eq!(found.lines[0].to_string(), "linkdb.share: true -> false");
    assert!(documented("linkdb.share").starts_with("live"));
}

#[test]
fn a_bus_of_modems_is_named_when_it_is_another() {
    let bus =
        |lines: &str| gateway(&format!("{GATEWAY}[telemetry]\nmodem_manager = true\n{lines}"));
    let other = bus("modem_manager_bus = \"unix:path=/b\"\n");
    let found = diff_gateway(&bus(""), &other).unwrap();
    let line = "telemetry.modem_manager_bus: set to unix:path=/b";
    assert_eq!(
        (found.changes, found.lines[0].to_string()),
        (vec![Change::Telemetry], line.to_owned())
    );
    assert!(documented("telemetry.modem_manager_bus").starts_with("live"));
}

#[test]
fn a_clouds_keys() {
    let rows = [
        ("[tls]", "congestion = \"reno\"\n[tls]", "congestion: set to reno", Change::Congestion),
        ("a = \"cubic\"", "", "carrier_congestion.a: removed, was cubic", Change::Congestion),
        ("deny = []", "deny = [\"10.0.0.0/8\"]", "access.deny: [] -> [10.0.0.0/8]", Change::Access),
        (
            "deny = []",
            "allow = [\"10.0.0.0/8\"]",
            "access.allow: [] -> [10.0.0.0/8]",
            Change::Access,
        ),
        ("deny = []", "deny_ports = []", "access.deny_ports: [25] -> []", Change::Access),
        ("[tls]", "[dial]\nipv6 = false\n[tls]", "dial.ipv6: true -> false", Change::Dial),
        ("[tls]", "[dial]\ntimeout = \"500ms\"\n[tls]", "dial.timeout: 10s -> 500ms", Change::Dial),
        ("c.crt", "d.crt", "tls.certificate: /etc/c.crt -> /etc/d.crt", Change::Certificates),
    ];
    for (from, to, line, change) in rows {
        let new = cloud(&CLOUD.replacen(from, to, 1));
        let found = diff_cloud(&cloud(CLOUD), &new).unwrap();
        assert_eq!((found.lines[0].to_string().as_str(), found.lines.len()), (line, 1));
        assert_eq!(found.changes, [change]);
        assert!(documented(&plain(&found.lines[0])).starts_with("live"));
    }
    let rows = [
        ("4433", "4434", "listen"),
        ("[tls]", "mode = \"tls\"\n[tls]", "mode"),
        ("[tls]", "[tunnel]\nretry_above = 1\n[tls]", "tunnel.retry_above"),
        ("[tls]", "[tunnel]\nhalf_open_max = 1\n[tls]", "tunnel.half_open_max"),
        ("[tls]", "[tunnel]\nserver_id = 1\n[tls]", "tunnel.server_id"),
        ("[tls]", "[admin]\nsocket = \"s\"\n[tls]", "admin.socket"),
    ];
    for (from, to, key) in rows {
        let needed = diff_cloud(&cloud(CLOUD), &cloud(&CLOUD.replacen(from, to, 1))).unwrap_err();
        assert_eq!(needed.keys, [key]);
        let wanted = if key == "mode" { "live on a gateway" } else { "restart" };
        assert_eq!(documented(key), wanted);
    }
}

//! Two configurations in, changed keys or a refusal out.

use std::path::Path;

use polyrail_config::{CloudConfig, GatewayConfig};

use super::*;

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

/// The changes after `from` is replaced by `to` in the example.
fn changed(from: &str, to: &str) -> Result<Vec<String>, RestartNeeded> {
    assert!(GATEWAY.contains(from), "{from:?} is not in the example");
    lines(&gateway(GATEWAY), &gateway(&GATEWAY.replacen(from, to, 1)))
}

/// The changes as text; the reference must call each key live.
fn lines<C: DaemonConfig>(old: &C, new: &C) -> Result<Vec<String>, RestartNeeded> {
    let lines = changes(old, new)?;
    for line in &lines {
        assert!(documented(&plain(line)).starts_with("live"), "{}", line.key);
    }
    Ok(lines.iter().map(ToString::to_string).collect())
}

/// The second cell of a key's row in the reference.
fn documented(key: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, table) = text.split_once("## 9. Reloading").unwrap();
    let quoted = format!("`{key}`");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let mut found: Vec<_> = rows.filter(|row| row[1].split(", ").any(|k| k == quoted)).collect();
    assert_eq!(found.len(), 1, "rows for {key}");
    found.remove(0)[2].to_owned()
}

/// The key's name in the reference: without the name of the carrier.
fn plain(line: &ChangeLine) -> String {
    let parts: Vec<_> = line.key.split('.').collect();
    match parts.as_slice() {
        ["carrier"] => "carrier.name".to_owned(),
        ["carrier", _, key] => format!("carrier.{key}"),
        ["carrier_congestion", _] => "carrier_congestion".to_owned(),
        _ => line.key.clone(),
    }
}

/// The table of reloads has a row for each key, and agrees with the keys that need a restart.
#[test]
fn reference_says_which_keys_need_a_restart() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (reference, _) = text.split_once("## 9. Reloading").unwrap();
    let (_, reference) = reference.split_once("## 6. Keys of both files").unwrap();
    let (both, own) = reference.split_once("## 7. Keys of `gateway.toml` alone").unwrap();
    let (of_gateway, of_cloud) = own.split_once("## 8. Keys of `cloud.toml` alone").unwrap();
    let keys = |text: &str| {
        let cells = text.lines().filter(|line| line.starts_with("| `"));
        let cells = cells.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'));
        let keys = cells.filter(|key| !key.trim_matches([' ', ',']).is_empty());
        keys.filter(|key| *key != "[[carrier]]").map(str::to_owned).collect::<Vec<_>>()
    };
    let needs_restart = |fixed: &[&str], key: &str| {
        let covers = |fixed: &&str| key == *fixed || key.starts_with(&format!("{fixed}."));
        fixed.iter().any(covers)
    };
    for key in keys(both).iter().chain(&keys(of_gateway)) {
        let fixed = needs_restart(GatewayConfig::NEEDS_RESTART, key);
        assert_eq!(fixed, documented(key) == "restart", "{key} of a gateway");
    }
    for key in keys(both).iter().chain(&keys(of_cloud)) {
        let fixed = needs_restart(CloudConfig::NEEDS_RESTART, key);
        assert_eq!(fixed, documented(key) == "restart" || key == "mode", "{key} of a cloud");
    }
    assert!(keys(reference).len() > 50);
}

#[test]
fn equal_configurations_have_no_changes() {
    let commented = format!("# new\n{GATEWAY}");
    assert_eq!(changes(&gateway(GATEWAY), &gateway(&commented)), Ok(Vec::new()));
    assert_eq!(changes(&cloud(CLOUD), &cloud(CLOUD)), Ok(Vec::new()));
}

#[test]
fn live_keys_of_a_gateway_are_listed() {
    let default = polyrail_config::ChainSpec::default().names().join(", ");
    let chains = format!("scheduler.chain: [{default}] -> [min_rtt, redundancy]");
    let rows = [
        ("mode = \"auto\"", "mode = \"tls\"", "mode: auto -> tls"),
        ("[tls]", "[log]\nlevel = \"debug\"\n[tls]", "log.level: info -> debug"),
        ("[tls]", "[log]\nformat = \"json\"\n[tls]", "log.format: text -> json"),
        (
            "[tls]",
            "[telemetry]\ngpsd = \"127.0.0.1:2947\"\n[tls]",
            "telemetry.gpsd: set to 127.0.0.1:2947",
        ),
        (
            "[tls]",
            "[telemetry]\nmodem_manager = true\n[tls]",
            "telemetry.modem_manager: false -> true",
        ),
        ("[tls]", "[telemetry]\nreplay = \"x\"\n[tls]", "telemetry.replay: set to /etc/x"),
        ("g.crt", "h.crt", "tls.certificate: /etc/g.crt -> /etc/h.crt"),
        ("linger = \"120s\"", "linger = \"90s\"", "session.linger: 120s -> 90s"),
        ("flows_max = 100", "flows_max = 7", "session.flows_max: 100 -> 7"),
        ("[tls]", "[scheduler]\nchain = \"redundant\"\n[tls]", &chains),
        (
            "192.0.2.1:4433",
            "192.0.2.2:4433",
            "cloud.addresses: [192.0.2.1:4433] -> [192.0.2.2:4433]",
        ),
        ("[tls]", "[restart]\ninterval = \"250ms\"\n[tls]", "restart.interval: 100ms -> 250ms"),
        ("9.9.9.9:53", "1.1.1.1:53", "dns.resolver: 9.9.9.9:53 -> 1.1.1.1:53"),
        ("[socks5]", "[socks5]\nreply = \"dialed\"", "socks5.reply: immediate -> dialed"),
    ];
    for (from, to, line) in rows {
        assert_eq!(changed(from, to), Ok(vec![line.to_owned()]), "{to}");
    }
    let rows = [
        ("interface = \"eth9\"", "carrier.a.interface: wwan0 -> eth9"),
        ("source = \"192.0.2.9\"", "carrier.a.source: set to 192.0.2.9"),
        ("addresses = [\"192.0.2.3:1\"]", "carrier.a.addresses: set to [192.0.2.3:1]"),
        ("congestion = \"cubic\"", "carrier.a.congestion: bbr -> cubic"),
        ("mode = \"quic\"", "carrier.a.mode: set to quic"),
        ("metered = true", "carrier.a.metered: false -> true"),
        ("qlog = \"/q\"", "carrier.a.qlog: set to /q"),
        ("modem = \"1a2b\"", "carrier.a.modem: set to 1a2b"),
        ("role = \"backup\"", "carrier.a.role: primary -> backup"),
        ("enabled = false", "carrier.a.enabled: true -> false"),
    ];
    let wwan0 = "interface = \"wwan0\"";
    for (text, line) in rows {
        let is_interface = text.starts_with("interface");
        let to = if is_interface { text.to_owned() } else { format!("{wwan0}\n{text}") };
        assert_eq!(changed(wwan0, &to), Ok(vec![line.to_owned()]), "{to}");
    }
}

#[test]
fn new_removed_and_reordered_carriers_are_listed() {
    let b = "[[carrier]]\nname = \"b\"\ninterface = \"wwan1\"\n";
    let removed = changed(b, "").unwrap();
    assert_eq!(removed[0], "carrier: a, b -> a");
    assert!(removed.contains(&"carrier.b.interface: removed, was wwan1".to_owned()), "{removed:?}");
    let added = changed(b, &format!("{b}{}", b.replace("\"b\"", "\"c\""))).unwrap();
    assert_eq!(added[0], "carrier: a, b -> a, b, c");
    assert!(added.contains(&"carrier.c.interface: set to wwan1".to_owned()), "{added:?}");

    let swapped = GATEWAY.replace(b, "").replacen("[[carrier]]", &format!("{b}[[carrier]]"), 1);
    let found = lines(&gateway(GATEWAY), &gateway(&swapped));
    assert_eq!(found.unwrap(), ["carrier: a, b -> b, a"]);
}

#[test]
fn keys_that_need_a_restart_are_refused_by_name() {
    let rows: [(&str, &str, &[&str]); 9] = [
        ("name = \"cloud\"", "name = \"other\"", &["cloud.name"]),
        ("16 MiB", "32 MiB", &["session.memory"]),
        ("[tls]", "[admin]\nsocket = \"/s\"\n[tls]", &["admin.socket"]),
        ("127.0.0.1:1080", "127.0.0.1:1081", &["socks5.listen"]),
        ("[socks5]\nlisten = [\"127.0.0.1:1080\"]\n", "", &["socks5.listen"]),
        ("[dns]\nresolver = \"9.9.9.9:53\"\n", "", &["dns.port"]),
        (
            "[intercept]",
            "[intercept]\nport = 98\nipv4 = false",
            &["intercept.ipv4", "intercept.port"],
        ),
        ("[tls]", "[linkdb]\npath = \"l\"\n[tls]", &["linkdb.path"]),
        ("[tls]", "[users]\nkey = \"address\"\n[tls]", &["users.key"]),
    ];
    for (from, to, keys) in rows {
        assert_eq!(changed(from, to).expect_err(to).keys, keys);
    }
    // Live keys beside them are refused too, and each key that needs a restart is named.
    let new = GATEWAY.replacen("mode = \"auto\"", "mode = \"tls\"", 1);
    let new = new.replacen("16 MiB", "8 MiB", 1).replacen(":1080", ":1081", 1);
    let needed = changes(&gateway(GATEWAY), &gateway(&new)).unwrap_err();
    assert_eq!(needed.keys, ["session.memory", "socks5.listen"]);
    assert!(needed.to_string().contains("session.memory, socks5.listen"), "{needed}");
}

#[test]
fn keys_of_linkdb_are_live_except_for_its_path() {
    let linkdb = "[linkdb]\npath = \"l\"\n";
    let with =
        |linkdb: &str| (gateway(&format!("{GATEWAY}{linkdb}")), cloud(&format!("{CLOUD}{linkdb}")));
    let rows = [
        ("events_max = 5000", "linkdb.events_max: 1000000 -> 5000"),
        ("retention_days = 7", "linkdb.retention_days: 365 -> 7"),
        ("forecast = false", "linkdb.forecast: true -> false"),
        ("guard = true", "linkdb.guard: false -> true"),
    ];
    let old = with(linkdb);
    for (text, line) in rows {
        let new = with(&format!("{linkdb}{text}\n"));
        assert_eq!(lines(&old.0, &new.0).unwrap(), [line]);
        assert_eq!(lines(&old.1, &new.1).unwrap(), [line]);
    }
    let moved = with(&linkdb.replace("\"l\"", "\"m\""));
    assert_eq!(changes(&old.0, &moved.0).unwrap_err().keys, ["linkdb.path"]);
    assert_eq!(changes(&old.1, &moved.1).unwrap_err().keys, ["linkdb.path"]);
    assert_eq!(changes(&old.1, &cloud(CLOUD)).unwrap_err().keys, ["linkdb.path"]);
    let new = cloud(&format!("{CLOUD}{linkdb}share = false\n"));
    assert_eq!(lines(&old.1, &new).unwrap(), ["linkdb.share: set to false"]);
}

#[test]
fn keys_of_a_cloud_are_listed_or_refused() {
    let with = |from: &str, to: &str| cloud(&CLOUD.replacen(from, to, 1));
    let rows = [
        ("[tls]", "congestion = \"reno\"\n[tls]", "congestion: set to reno"),
        ("a = \"cubic\"", "", "carrier_congestion.a: removed, was cubic"),
        ("deny = []", "deny = [\"10.0.0.0/8\"]", "access.deny: [] -> [10.0.0.0/8]"),
        ("deny = []", "allow = [\"10.0.0.0/8\"]", "access.allow: [] -> [10.0.0.0/8]"),
        ("deny = []", "deny_ports = []", "access.deny_ports: [25] -> []"),
        ("[tls]", "[dial]\nipv6 = false\n[tls]", "dial.ipv6: true -> false"),
        ("[tls]", "[dial]\ntimeout = \"500ms\"\n[tls]", "dial.timeout: 10s -> 500ms"),
        ("c.crt", "d.crt", "tls.certificate: /etc/c.crt -> /etc/d.crt"),
    ];
    for (from, to, line) in rows {
        assert_eq!(lines(&cloud(CLOUD), &with(from, to)).unwrap(), [line]);
    }
    let rows = [
        ("4433", "4434", "listen"),
        ("[tls]", "mode = \"tls\"\n[tls]", "mode"),
        ("[tls]", "[tunnel]\nretry_above = 1\n[tls]", "tunnel.retry_above"),
        ("[tls]", "[admin]\nsocket = \"s\"\n[tls]", "admin.socket"),
    ];
    for (from, to, key) in rows {
        assert_eq!(changes(&cloud(CLOUD), &with(from, to)).unwrap_err().keys, [key]);
    }
}

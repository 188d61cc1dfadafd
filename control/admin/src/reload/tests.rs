//! The changed keys of two configurations, and refusals.

use std::path::Path;

use polyrail_config::{CloudConfig, CloudTables, GatewayConfig, GatewayTables};

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

/// The changes if `to` replaces `from` in the example.
fn changed(from: &str, to: &str) -> Result<Vec<String>, RestartNeeded> {
    assert!(GATEWAY.contains(from), "{from:?} is not in the example");
    lines(&gateway(GATEWAY), &gateway(&GATEWAY.replacen(from, to, 1)))
}

/// The changes as text; the reference must call each key live.
fn lines<C: Tables>(old: &Config<C>, new: &Config<C>) -> Result<Vec<String>, RestartNeeded> {
    let lines = changes(old, new)?;
    for line in &lines {
        assert!(documented(&general(line)).starts_with("live"), "{}", line.key);
    }
    Ok(lines.iter().map(ToString::to_string).collect())
}

/// The second cell of a key's row in the reference.
fn documented(key: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, table) = text.split_once("## 5. Reloading").unwrap();
    let quoted = format!("`{key}`");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let mut found: Vec<_> = rows.filter(|row| row[1].split(", ").any(|k| k == quoted)).collect();
    assert_eq!(found.len(), 1, "rows for {key}");
    found.remove(0)[2].to_owned()
}

/// The key's name in the reference: without the name of the carrier.
fn general(line: &ChangeLine) -> String {
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
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (reference, _) = text.split_once("## 5. Reloading").unwrap();
    let (_, reference) = reference.split_once("## 2. Keys of both files").unwrap();
    let (both, own) = reference.split_once("## 3. Keys of `gateway.toml` alone").unwrap();
    let (of_gateway, of_cloud) = own.split_once("## 4. Keys of `cloud.toml` alone").unwrap();
    let keys = |text: &str| {
        let cells = text.lines().filter(|line| line.starts_with("| `"));
        let cells = cells.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'));
        let keys = cells.filter(|key| !key.trim_matches([' ', ',']).is_empty());
        keys.filter(|key| !key.starts_with("[[")).map(str::to_owned).collect::<Vec<_>>()
    };
    let needs_restart = |fixed: &[&str], key: &str| {
        let covers = |fixed: &&str| key == *fixed || key.starts_with(&format!("{fixed}."));
        fixed.iter().any(covers)
    };
    for key in keys(both).iter().chain(&keys(of_gateway)) {
        let fixed = needs_restart(GatewayTables::NEEDS_RESTART, key);
        assert_eq!(fixed, documented(key) == "restart", "{key} of a gateway");
    }
    for key in keys(both).iter().chain(&keys(of_cloud)) {
        let fixed = needs_restart(CloudTables::NEEDS_RESTART, key);
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
    let wwan0 = "interface = \"wwan0\"";
    let rows = [
        ("mode = \"auto\"", "mode = \"tls\"", "mode: auto -> tls"),
        ("[tls]", "[log]\nformat = \"json\"\n[tls]", "log.format: text -> json"),
        ("[tls]", "[telemetry]\nreplay = \"x\"\n[tls]", "telemetry.replay: set to /etc/x"),
        ("g.crt", "h.crt", "tls.certificate: /etc/g.crt -> /etc/h.crt"),
        ("linger = \"120s\"", "linger = \"90s\"", "session.linger: 120s -> 90s"),
        ("[tls]", "[scheduler]\nchain = \"redundant\"\n[tls]", &chains),
        (
            "192.0.2.1:4433",
            "192.0.2.2:4433",
            "cloud.addresses: [192.0.2.1:4433] -> [192.0.2.2:4433]",
        ),
        ("[tls]", "[restart]\ninterval = \"250ms\"\n[tls]", "restart.interval: 100ms -> 250ms"),
        (wwan0, "interface = \"eth9\"", "carrier.a.interface: wwan0 -> eth9"),
        (wwan0, "interface = \"wwan0\"\nmode = \"quic\"", "carrier.a.mode: set to quic"),
    ];
    for (from, to, line) in rows {
        assert_eq!(changed(from, to), Ok(vec![line.to_owned()]), "{to}");
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
    let rows: [(&str, &str, &[&str]); 5] = [
        ("name = \"cloud\"", "name = \"other\"", &["cloud.name"]),
        ("[socks5]\nlisten = [\"127.0.0.1:1080\"]\n", "", &["socks5.listen"]),
        ("[tls]", "[linkdb]\npath = \"l\"\n[tls]", &["linkdb.path"]),
        ("[tls]", "[metrics]\nlisten = \"127.0.0.1:9\"\n[tls]", &["metrics.listen"]),
        (
            "[intercept]",
            "[intercept]\nport = 98\nipv4 = false",
            &["intercept.ipv4", "intercept.port"],
        ),
    ];
    for (from, to, keys) in rows {
        assert_eq!(changed(from, to).expect_err(to).keys, keys);
    }
    // Changes of live keys in the same file are refused, too.
    let new = GATEWAY.replacen("mode = \"auto\"", "mode = \"tls\"", 1);
    let new = new.replacen("16 MiB", "8 MiB", 1).replacen(":1080", ":1081", 1);
    let needed = changes(&gateway(GATEWAY), &gateway(&new)).unwrap_err();
    assert_eq!(needed.keys, ["session.memory", "socks5.listen"]);
    assert!(needed.to_string().contains("session.memory, socks5.listen"), "{needed}");
}

#[test]
fn keys_of_a_cloud_are_listed_or_refused() {
    let text = format!("{CLOUD}[linkdb]\npath = \"l\"\n");
    let with = |from: &str, to: &str| cloud(&text.replacen(from, to, 1));
    let rows = [
        ("[tls]", "congestion = \"reno\"\n[tls]", "congestion: set to reno"),
        ("a = \"cubic\"", "", "carrier_congestion.a: removed, was cubic"),
        ("deny = []", "deny_ports = []", "access.deny_ports: [25] -> []"),
        ("[tls]", "[dial]\nipv6 = false\n[tls]", "dial.ipv6: true -> false"),
        ("\"l\"", "\"l\"\nevents_max = 5000", "linkdb.events_max: 1000000 -> 5000"),
        ("\"l\"", "\"l\"\nshare = false", "linkdb.share: set to false"),
        ("[tls]", "[udp]\nfiltering = \"none\"\n[tls]", "udp.filtering: set to none"),
    ];
    for (from, to, line) in rows {
        assert_eq!(lines(&cloud(&text), &with(from, to)).unwrap(), [line]);
    }
    let rows = [
        ("4433", "4434", "listen"),
        ("[tls]", "mode = \"tls\"\n[tls]", "mode"),
        ("[tls]", "[tunnel]\nretry_above = 1\n[tls]", "tunnel.retry_above"),
        ("\"l\"", "\"m\"", "linkdb.path"),
    ];
    for (from, to, key) in rows {
        assert_eq!(changes(&cloud(&text), &with(from, to)).unwrap_err().keys, [key]);
    }
}

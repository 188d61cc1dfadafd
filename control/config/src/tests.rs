//! Configurations in, values or mistakes with their places out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_model::Bytes;
use polyrail_scheduler::ChainSpec;

use super::*;

const GATEWAY: &str = r#"[tls]
certificate = "g.crt"
key = "/keys/g.key"
authority = "ca.crt"

[cloud]
name = "cloud"
addresses = ["192.0.2.1:4433"]

[[carrier]]
name = "a"
interface = "wwan0"

[socks5]
listen = ["127.0.0.1:1080"]
"#;

const CLOUD: &str = r#"listen = ["[::]:4433"]
[tls]
certificate = "c.crt"
key = "c.key"
authority = "ca.crt"
"#;

fn gateway(text: &str) -> Result<GatewayConfig, ConfigError> {
    GatewayConfig::parse(text, Path::new("/etc/polyrail/gateway.toml"))
}

fn cloud(text: &str) -> Result<CloudConfig, ConfigError> {
    CloudConfig::parse(text, Path::new("/etc/polyrail/cloud.toml"))
}

/// The example with `from` replaced by `to`, and the line number at which `mark` then stands.
fn changed(from: &str, to: &str, mark: &str) -> (String, usize) {
    assert!(GATEWAY.contains(from), "{from:?} is not in the example");
    let text = GATEWAY.replacen(from, to, 1);
    let at = text.find(mark).expect("the mark stands in the changed text");
    let line = text[..at].matches('\n').count() + 1;
    (text, line)
}

#[test]
fn defaults_are_as_documented() {
    let config = gateway(GATEWAY).unwrap();
    assert_eq!(config.mode, Mode::Auto);
    assert_eq!(config.carrier_mode(&config.carriers[0]), Mode::Auto);
    assert!(!config.carriers[0].metered && config.carriers[0].qlog.is_none());
    let interval = Duration::from_millis(100);
    let restart = Restart { enabled: true, early_data: true, attempts_max: 3, interval };
    assert_eq!(config.restart, restart);
    assert_eq!(config.admin, None);
    assert_eq!(config.log, LogConfig::default());
    assert_eq!(config.tls.certificate, PathBuf::from("/etc/polyrail/g.crt"));
    assert_eq!(config.tls.key, PathBuf::from("/keys/g.key"));
    assert_eq!(config.tls.revocations, None);
    assert_eq!(config.session.linger, Duration::from_secs(120));
    assert_eq!(config.session.memory, Bytes::from_mib(16));
    assert_eq!(config.session.flows_max, 16_384);
    assert_eq!(config.scheduler.chain, ChainSpec::named("polyrail").unwrap());
    assert_eq!(config.carriers[0].congestion.as_str(), "bbr");
    assert_eq!(config.carriers[0].role, CarrierRole::Primary);
    assert!(config.carriers[0].usable());
    assert_eq!(config.addresses(&config.carriers[0]), config.cloud.addresses);
    assert_eq!(config.users.key, UserKey::LinkAddress);
    assert!(config.intercept.is_none() && config.dns.is_none());
    assert!(config.telemetry.is_empty() && config.linkdb.is_none());
    assert_eq!(config.carriers[0].modem, None);

    let with = format!("{GATEWAY}[intercept]\ninterfaces = [\"lan0\"]\n");
    let intercept = gateway(&with).unwrap().intercept.unwrap();
    assert_eq!((intercept.port.get(), intercept.mark.get(), intercept.table), (7801, 0x706f, 7801));
    assert_eq!(intercept.other, OtherTraffic::Reject);
    assert_eq!(intercept.private, PrivateTraffic::Bypass);
    assert_eq!(intercept.on_exit, OnExit::Open);
    assert!(intercept.ipv4 && intercept.ipv6 && intercept.bypass.is_empty());

    let config = cloud(CLOUD).unwrap();
    assert_eq!(config.access, Access::default());
    assert_eq!(config.access.deny_ports[0].get(), 25);
    assert_eq!(config.dial, Dial::default());
    assert_eq!(config.mode, Mode::Auto);
    let usual = TunnelConfig { half_open_max: 1024, retry_above: 256, server_id: 0 };
    assert_eq!(config.tunnel, usual);
    assert_eq!(config.admin, None);
}

#[test]
fn modes_restarts_and_the_admin_socket_are_read() {
    let text = GATEWAY.replacen("\"wwan0\"", "\"w\"\nmode = \"tls\"\nqlog = \"q\"", 1);
    let tables = "[restart]\nenabled = false\nearly_data = false\nattempts_max = 8\n\
                  interval = \"1s\"\n[admin]\nsocket = \"/run/polyrail/gateway.sock\"\n";
    let config = gateway(&format!("mode = \"quic\"\n{text}{tables}")).unwrap();
    assert_eq!((config.mode, config.carriers[0].mode), (Mode::Quic, Some(Mode::Tls)));
    assert_eq!(config.carrier_mode(&config.carriers[0]), Mode::Tls);
    assert_eq!(config.carriers[0].qlog, Some(PathBuf::from("/etc/polyrail/q")));
    let interval = Duration::from_secs(1);
    let restart = Restart { enabled: false, early_data: false, attempts_max: 8, interval };
    assert_eq!(config.restart, restart);
    assert_eq!(config.admin.unwrap().socket, PathBuf::from("/run/polyrail/gateway.sock"));

    let tables = "[tunnel]\nhalf_open_max = 7\nretry_above = 0\nserver_id = 65535\n\
                  [admin]\nsocket = \"s\"\n";
    let config = cloud(&format!("{CLOUD}{tables}")).unwrap();
    assert_eq!(config.tunnel, TunnelConfig { half_open_max: 7, retry_above: 0, server_id: 65_535 });
    assert_eq!(config.admin.unwrap().socket, PathBuf::from("/etc/polyrail/s"));
    let long = "x".repeat(SOCKET_PATH_MAX);
    for (extra, key) in [
        ("[admin]".to_owned(), "admin.socket"),
        (format!("[admin]\nsocket = \"{long}\""), "admin.socket"),
        ("[tunnel]\nhalf_open_max = 0".to_owned(), "tunnel.half_open_max"),
        ("[tunnel]\nretry_above = 70000".to_owned(), "tunnel.retry_above"),
        ("[tunnel]\nserver_id = 65536".to_owned(), "tunnel.server_id"),
    ] {
        let error = cloud(&format!("{CLOUD}{extra}\n")).expect_err(&extra);
        assert_eq!(error.problems()[0].key, key, "{error}");
    }
}

#[test]
fn sources_of_telemetry_are_read() {
    let read = |lines: &str| gateway(&format!("{GATEWAY}[telemetry]\n{lines}\n"));
    let telemetry = |lines: &str| read(lines).unwrap().telemetry;
    let all = "gpsd = \"[::1]:2947\"\nmodem_manager = true\nreplay = \"trip.ndjson\"";
    let expected = TelemetryConfig {
        gpsd: Some("[::1]:2947".parse().unwrap()),
        modem_manager: Some(MessageBus::System),
        replay: Some(PathBuf::from("/etc/polyrail/trip.ndjson")),
    };
    assert_eq!(telemetry(all), expected);
    assert!(telemetry("modem_manager = false").is_empty());
    let bus = "unix:path=/run/other/bus";
    let private = format!("modem_manager = true\nmodem_manager_bus = \"{bus}\"");
    let found = telemetry(&private).modem_manager.unwrap();
    assert_eq!(found, MessageBus::At(bus.parse().unwrap()));
    assert_eq!(
        (found.to_string().as_str(), MessageBus::System.to_string().as_str()),
        (bus, "the system bus")
    );
    for (lines, key, reason) in [
        ("gpsd = \"localhost:2947\"", "telemetry.gpsd", "not an IP address"),
        ("gpsd = 2947", "telemetry.gpsd", "a string"),
        ("modem_manager = \"yes\"", "telemetry.modem_manager", "true or false"),
        ("modem_manager_bus = \"unix:path=/b\"", "telemetry.modem_manager_bus", "is not true"),
        (
            "modem_manager = true\nmodem_manager_bus = \"/b\"",
            "telemetry.modem_manager_bus",
            "of a bus",
        ),
        ("replay = \"\"", "telemetry.replay", "empty path"),
        ("gps = 1", "telemetry.gps", "known are: gpsd, modem_manager, modem_manager_bus, replay"),
    ] {
        let error = read(lines).expect_err(lines);
        let problem = &error.problems()[0];
        assert!(problem.key == key && problem.reason.contains(reason), "{error}");
    }
    let modem = GATEWAY.replacen("\"wwan0\"", "\"wwan0\"\nmodem = \"353270040012345\"", 1);
    let found = gateway(&modem).unwrap().carriers.remove(0).modem.unwrap();
    assert_eq!(found.as_str(), "353270040012345");
    let error = gateway(&modem.replace("353270040012345", "a b")).unwrap_err();
    assert_eq!(error.problems()[0].key, "carrier[1].modem");
}

#[test]
fn linkdbs_are_read() {
    let table = |lines: &str| format!("[linkdb]\n{lines}\n");
    let gateways = |lines: &str| gateway(&format!("{GATEWAY}{}", table(lines)));
    let clouds = |lines: &str| cloud(&format!("{CLOUD}{}", table(lines)));
    let usual = LinkDbConfig {
        path: PathBuf::from("/etc/polyrail/l.redb"),
        events_max: 1_000_000,
        retention_days: 365.try_into().unwrap(),
        forecast: true,
        guard: false,
    };
    let path = "path = \"l.redb\"\n";
    assert_eq!(gateways(path).unwrap().linkdb, Some(usual.clone()));
    let shared = CloudLinkDb { common: usual, share: true };
    assert_eq!(clouds(path).unwrap().linkdb, Some(shared.clone()));
    let other = "path = \"/l\"\nevents_max = 1000\nretention_days = 36500\nforecast = false\n\
                 guard = true\n";
    let common = LinkDbConfig {
        path: PathBuf::from("/l"),
        events_max: 1000,
        retention_days: 36_500.try_into().unwrap(),
        forecast: false,
        guard: true,
    };
    assert_eq!(gateways(other).unwrap().linkdb, Some(common.clone()));
    let alone = CloudLinkDb { common, share: false };
    assert_eq!(clouds(&format!("{other}share = false\n")).unwrap().linkdb, Some(alone));
    for (lines, key) in [
        (String::new(), "linkdb.path"),
        (format!("{path}events_max = 999"), "linkdb.events_max"),
        (format!("{path}retention_days = 0"), "linkdb.retention_days"),
        (format!("{path}retention_days = 36501"), "linkdb.retention_days"),
        (format!("{path}forecast = 1"), "linkdb.forecast"),
        (format!("{path}guard = \"yes\""), "linkdb.guard"),
    ] {
        assert_eq!(gateways(&lines).expect_err(&lines).problems()[0].key, key);
        assert_eq!(clouds(&lines).expect_err(&lines).problems()[0].key, key);
    }
    let error = gateways(&format!("{path}share = true")).unwrap_err();
    assert!(error.to_string().contains("linkdb.share: unknown key"), "{error}");
}

#[test]
fn both_examples_parse() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let config = GatewayConfig::load(folder.join("gateway.toml")).unwrap();
    assert_eq!(config.carriers.len(), 2);
    let intercept = config.intercept.unwrap();
    assert_eq!(intercept.mark.get(), 0x706f);
    assert_eq!(intercept.bypass[0].to_string(), "198.51.100.0/24");
    assert_eq!(config.dns.unwrap().resolver.port(), 53);
    assert_eq!(config.telemetry.gpsd.unwrap().port(), 2947);
    assert_eq!(config.linkdb.unwrap().path, PathBuf::from("/var/lib/polyrail/linkdb.redb"));
    let config = CloudConfig::load(folder.join("cloud.toml")).unwrap();
    assert_eq!(config.listen[0].port(), 4433);
    assert!(config.linkdb.unwrap().share);
}

/// Each row: what is replaced, by what, where the mistake then is, its key, words of its reason.
#[test]
fn mistakes_are_placed() {
    let rows: &[[&str; 5]] = &[
        ["name = \"cloud\"", "name = \"cloud\"\nnam = 1", "nam = 1", "cloud.nam", "unknown key"],
        ["[tls]", "speed = 1\n[tls]", "speed", "speed", "unknown key at the top"],
        ["[tls]", "[sesion]\n[tls]", "[sesion]", "sesion", "unknown key"],
        ["\"cloud\"", "7", "name = 7", "cloud.name", "expected a string in quotes, found integer"],
        ["\"cloud\"", "\"Cloud\"", "\"Cloud\"", "cloud.name", "not a node name"],
        ["name = \"cloud\"\n", "", "[cloud]", "cloud.name", "missing"],
        ["[tls]", "[session]\nlinger = \"2 days\"\n[tls]", "linger", "session.linger", "units: ms"],
        ["[tls]", "[session]\nlinger = 120\n[tls]", "linger", "session.linger", "found integer"],
        ["[tls]", "[session]\nlinger = \"2h\"\n[tls]", "linger", "session.linger", "not between"],
        ["[tls]", "[session]\nmemory = \"16 Mb\"\n[tls]", "memory", "session.memory", "64 KiB"],
        ["[tls]", "[session]\nmemory = \"1 B\"\n[tls]", "memory", "session.memory", "not between"],
        ["[tls]", "[session]\nflows_max = 0\n[tls]", "flows", "session.flows_max", "not between"],
        ["[tls]", "[scheduler]\nchain = \"x\"\n[tls]", "chain", "scheduler.chain", "min_rtt"],
        [
            "[tls]",
            "[scheduler]\nchain = [\n\"min_rtt\",\n\"x\"]\n[tls]",
            "\"x\"",
            "scheduler.chain[2]",
            "no schedulerlet is named \"x\"; there are: blest, completion_reinjection,",
        ],
        [
            "[tls]",
            "[scheduler]\nchain = [\n\"redundancy\",\n\"extended_reinjection\"]\n[tls]",
            "chain",
            "scheduler.chain",
            "no rule of this chain selects a path: add one of blest, daps,",
        ],
        ["[tls]", "[log]\nlevel = \"loud\"\n[tls]", "level", "log.level", "use error, warn"],
        ["[tls]", "[log]\nformat = \"xml\"\n[tls]", "format", "log.format", "\"json\""],
        ["192.0.2.1:4433", "192.0.2.1", "\"192.0", "cloud.addresses[1]", "with a port"],
        ["192.0.2.1:4433", "192.0.2.1:0", "\"192.0", "cloud.addresses[1]", "port 0"],
        ["192.0.2.1:4433", "0.0.0.0:1", "\"0.0", "cloud.addresses[1]", "names no host"],
        ["192.0.2.1:4433", "host:1", "\"host", "cloud.addresses[1]", "not an IP address"],
        ["[\"192.0.2.1:4433\"]", "[]", "addresses", "cloud.addresses", "between 1 and 8"],
        ["[\"192.0.2.1:4433\"]", "\"192.0.2.1:4433\"", "addresses", "cloud.addresses", "a list"],
        ["\"wwan0\"", "\"wwan/0\"", "interface", "carrier[1].interface", "interface name"],
        ["\"wwan0\"", "\"w\"\nsource = \"::1\"", "source", "carrier[1].source", "family"],
        ["\"wwan0\"", "\"w\"\nsource = \"0.0.0.0\"", "source", "carrier[1].source", "no address"],
        ["\"wwan0\"", "\"w\"\nrole = \"main\"", "role", "carrier[1].role", "\"primary\""],
        ["\"wwan0\"", "\"w\"\nrole = \"never\"", "[[carrier]]", "carrier[1]", "no carrier may be"],
        ["\"wwan0\"", "\"w\"\nenabled = false", "[[carrier]]", "carrier[1]", "no carrier may be"],
        ["\"wwan0\"", "\"w\"\nenabled = 1", "enabled", "carrier[1].enabled", "true or false"],
        ["\"wwan0\"", "\"w\"\ncongestion = \"B B\"", "cong", "carrier[1].congestion", "bbr"],
        ["[socks5]", "[[carrier]]\nname=\"a\"\n[socks5]", "name=", "carrier[2].name", "already"],
        ["name = \"a\"\n", "", "[[carrier]]", "carrier[1].name", "missing"],
        ["127.0.0.1:1080", "localhost:1080", "\"localhost", "socks5.listen[1]", "IP address"],
        ["[socks5]", "[dns]\nresolver = \"9.9.9.9:53\"\n[socks5]", "[dns]", "dns", "[intercept]"],
        ["[socks5]", "[users]\nkey = \"mac\"\n[socks5]", "key = \"mac\"", "users.key", "address"],
        ["[[carrier]]", "[carrier]", "[carrier]", "carrier", "[[carrier]]"],
        ["[[carrier]]", "carrier = 5\n[x]", "carrier = 5", "cloud.carrier", "unknown key"],
        ["\"g.crt\"", "\"\"", "certificate", "tls.certificate", "empty path"],
    ];
    assert_placed(rows);
}

#[test]
fn mistakes_about_modes_and_restarts_are_placed() {
    assert_placed(&[
        [
            "[tls]",
            "[restart]\nattempts_max = 9\n[tls]",
            "attempts_max",
            "restart.attempts_max",
            "not between 1 and 8",
        ],
        [
            "[tls]",
            "[restart]\ninterval = \"1ms\"\n[tls]",
            "interval",
            "restart.interval",
            "not between 20ms and 10s",
        ],
        ["[tls]", "mode = \"udp\"\n[tls]", "mode", "mode", "use auto, quic or tls"],
        ["\"wwan0\"", "\"w\"\nmode = \"udp\"", "mode", "carrier[1].mode", "is not a mode"],
        ["\"wwan0\"", "\"w\"\nmetered = 1", "metered", "carrier[1].metered", "true or false"],
        ["\"wwan0\"", "\"w\"\nqlog = \"\"", "qlog", "carrier[1].qlog", "empty path"],
    ]);
}

fn assert_placed(rows: &[[&str; 5]]) {
    for [from, to, mark, key, reason] in rows {
        let (text, line) = changed(from, to, mark);
        let error = gateway(&text).expect_err(to);
        let problem = error.problems().iter().find(|problem| problem.key == *key);
        let problem = problem.unwrap_or_else(|| panic!("{to:?} did not blame {key}: {error}"));
        assert!(problem.reason.contains(reason), "{to:?}: {error}");
        assert_eq!(problem.line, line, "{to:?}: {error}");
        let shown = format!("/etc/polyrail/gateway.toml:{line}:{}: {key}: ", problem.column);
        assert!(error.to_string().contains(&shown), "{error} is not {shown}");
    }
}

#[test]
fn interception_is_checked() {
    let rows = [
        ("port = 0", "intercept.port", "not between 1 and 65535"),
        ("mark = 0", "intercept.mark", "not between"),
        ("mark = 0x1_0000_0000", "intercept.mark", "not between"),
        ("table = 254", "intercept.table", "belongs to the kernel"),
        ("bypass = [\"10.0.0.1/8\"]", "intercept.bypass[1]", "\"10.0.0.0/8\""),
        ("private = \"drop\"", "intercept.private", "\"carry\""),
        ("on_exit = \"shut\"", "intercept.on_exit", "\"closed\""),
        ("ipv4 = false\nipv6 = false", "intercept.ipv6", "both false"),
        ("other = \"direct\"", "intercept.other", "direct:<carrier>"),
        ("other = \"direct:b\"", "intercept.other", "no carrier is named \"b\""),
        ("other = \"direct:B\"", "intercept.other", "not a carrier name"),
        ("port = 1080", "socks5.listen[1]", "the same"),
        ("port = 7853\n[dns]\nresolver = \"9.9.9.9:53\"", "dns", "the same"),
        ("[dns]", "dns.resolver", "missing"),
    ];
    for (extra, key, reason) in rows {
        let text = format!("{GATEWAY}[intercept]\ninterfaces = [\"lan0\"]\n{extra}\n");
        let error = gateway(&text).expect_err(extra);
        let problem = &error.problems()[0];
        assert!(problem.key.starts_with(key) && problem.reason.contains(reason), "{error}");
    }
    let listed = |list: &str| gateway(&format!("{GATEWAY}[intercept]\ninterfaces = {list}\n"));
    assert!(listed("[\"wwan0\"]").unwrap_err().to_string().contains("belongs to the carrier"));
    assert!(listed("[\"l\", \"l\"]").unwrap_err().to_string().contains("twice"));
    let direct = format!("{GATEWAY}[intercept]\ninterfaces=[\"l\"]\nother = \"direct:a\"\n");
    let other = gateway(&direct).unwrap().intercept.unwrap().other;
    assert_eq!(other, OtherTraffic::Direct("a".parse().unwrap()));
    let unused = direct.replacen("name = \"a\"", "name = \"b\"\n[[carrier]]\nname = \"a\"", 1);
    let unused = unused.replacen("wwan0\"", "wwan0\"\nenabled = false", 1);
    assert!(gateway(&unused).unwrap_err().to_string().contains("is disabled"));
    let unbound = direct.replacen("interface = \"wwan0\"\n", "", 1);
    assert!(gateway(&unbound).unwrap_err().to_string().contains("has no interface"));
}

#[test]
fn missing_tables_and_sources_of_users_are_named() {
    let text = GATEWAY.replacen("[socks5]\nlisten = [\"127.0.0.1:1080\"]\n", "", 1);
    assert!(gateway(&text).unwrap_err().to_string().contains("add [intercept], [socks5]"));
    let error = gateway("").unwrap_err();
    let keys: Vec<_> = error.problems().iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["tls", "cloud", "carrier"]);
    assert!(error.to_string().contains(":1:1: tls: the table [tls] is missing"), "{error}");
    let error = cloud("listen = []").unwrap_err();
    let keys: Vec<_> = error.problems().iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["tls", "listen"]);
}

#[test]
fn all_mistakes_are_listed_in_the_order_of_the_file() {
    let text = GATEWAY.replacen("\"wwan0\"", "\"\"\ncolour = 1", 1).replacen(
        "name = \"cloud\"",
        "name = \"?\"",
        1,
    );
    let error = gateway(&text).unwrap_err();
    let keys: Vec<_> = error.problems().iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["cloud.name", "carrier[1].interface", "carrier[1].colour"]);
    assert_eq!(error.to_string().lines().count(), 3);
}

#[test]
fn the_list_of_mistakes_is_bounded() {
    let text: String = (0..1000).map(|n| format!("x{n} = 1\n")).collect();
    assert_eq!(gateway(&text).unwrap_err().problems().len(), PROBLEMS_MAX);
}

#[test]
fn a_text_that_is_not_toml_is_placed() {
    let error = gateway("mode = \"tls\"\n[tls\n").unwrap_err();
    assert_eq!(error.problems()[0].line, 2, "{error}");
    let error = gateway("mode = \"tls\"\nmode = \"tls\"\n").unwrap_err();
    assert_eq!(error.problems()[0].line, 2, "{error}");
    assert!(error.to_string().contains("duplicate key"), "{error}");
}

#[test]
fn too_many_carriers_are_refused() {
    let more = |n| (0..n).map(|i| format!("[[carrier]]\nname=\"c{i}\"\nsource=\"192.0.2.9\"\n"));
    let text = |n| format!("{GATEWAY}{}", more(n).collect::<String>());
    assert_eq!(gateway(&text(CARRIERS_MAX - 1)).unwrap().carriers.len(), CARRIERS_MAX);
    let error = gateway(&text(CARRIERS_MAX)).unwrap_err();
    assert!(error.to_string().contains("carrier: 17 entries; between 1 and 16"), "{error}");
}

#[test]
fn two_carriers_may_not_take_the_same_way_unknowingly() {
    let more = "[[carrier]]\nname = \"b\"\n[[carrier]]\nname = \"c\"\n";
    let error = gateway(&format!("{GATEWAY}{more}")).unwrap_err();
    assert_eq!(error.problems()[0].key, "carrier[3]");
    let more = more.replace("\"c\"", "\"c\"\naddresses = [\"192.0.2.2:4433\"]");
    assert_eq!(gateway(&format!("{GATEWAY}{more}")).unwrap().carriers.len(), 3);
}

#[test]
fn a_session_gets_the_memory_that_it_needs() {
    let memory = |amount: &str| {
        let config = cloud(&format!("{CLOUD}[session]\nmemory = \"{amount}\"\n"));
        config.map(|config| config.session.memory)
    };
    assert_eq!(memory("1 MiB").unwrap(), Bytes::from_mib(1));
    assert_eq!(memory("4 GiB").unwrap(), Bytes::from_mib(4096));
    for bad in ["256 KiB", "1023 KiB", "5 GiB"] {
        let error = memory(bad).unwrap_err().to_string();
        assert!(error.contains("session.memory: "), "{error}");
        assert!(error.contains(" is not between 1.0 MiB and 4096.0 MiB"), "{error}");
    }
}

#[test]
fn congestion_controls_of_the_downlink_are_read() {
    let read = |text: &str| cloud(&format!("{text}{CLOUD}"));
    let usual = cloud(CLOUD).unwrap();
    assert!(usual.congestion.is_none() && usual.carrier_congestion.is_empty());
    let cubic: CongestionControl = "cubic".parse().unwrap();
    assert_eq!(read("congestion = \"cubic\"\n").unwrap().congestion.as_ref(), Some(&cubic));
    let table = "[carrier_congestion]\nsatellite = \"cubic\"\nlte-a = \"bbr\"\n";
    let config = cloud(&format!("{CLOUD}{table}")).unwrap();
    let satellite: CarrierName = "satellite".parse().unwrap();
    assert_eq!(config.carrier_congestion.get(&satellite), Some(&cubic));
    assert_eq!(config.carrier_congestion.len(), 2);
    let rows = [
        ("[carrier_congestion]\nLTE = \"bbr\"", "carrier_congestion.LTE", "not a carrier name"),
        ("[carrier_congestion]\na = 1", "carrier_congestion.a", "a string in quotes"),
        ("[carrier_congestion]\na = \"B\"", "carrier_congestion.a", "a congestion control"),
    ];
    for (extra, key, reason) in rows {
        let error = cloud(&format!("{CLOUD}{extra}\n")).expect_err(extra);
        let problem = &error.problems()[0];
        assert_eq!((problem.key.as_str(), problem.line), (key, 7), "{error}");
        assert!(problem.reason.contains(reason), "{error}");
    }
    let many = |n: usize| {
        let lines = (0..n).map(|i| format!("c{i} = \"bbr\"\n")).collect::<String>();
        cloud(&format!("{CLOUD}[carrier_congestion]\n{lines}"))
    };
    assert_eq!(many(256).unwrap().carrier_congestion.len(), 256);
    let error = many(257).unwrap_err().to_string();
    assert!(error.contains("carrier_congestion: 257 entries"), "{error}");
}

#[test]
fn cloud_values_are_checked() {
    let rows = [
        ("[dial]\ntimeout = \"1ms\"", "dial.timeout", 7),
        ("[dial]\nipv4 = false\nipv6 = false", "dial.ipv6", 8),
        ("[access]\nallow = [\"10.0.0.0/8\", \"ten\"]", "access.allow[2]", 7),
        ("[access]\ndeny_ports = [25, 65536]", "access.deny_ports[2]", 7),
        ("[carrier]", "carrier", 6),
    ];
    for (extra, key, line) in rows {
        let error = cloud(&format!("{CLOUD}{extra}\n")).expect_err(extra);
        let problem = &error.problems()[0];
        assert_eq!((problem.key.as_str(), problem.line), (key, line), "{error}");
    }
    let twice = CLOUD.replacen("[\"[::]:4433\"]", "[\"[::]:4433\", \"[::]:4433\"]", 1);
    assert!(cloud(&twice).unwrap_err().to_string().contains("listen[2]"));
    let open = format!("{CLOUD}[access]\nallow = [\"10.0.0.0/8\"]\ndeny_ports = []\n");
    assert!(cloud(&open).unwrap().access.deny_ports.is_empty());
}

#[test]
fn chains_are_named_or_listed() {
    let chain = |chain: &str| {
        let config = gateway(&format!("{GATEWAY}[scheduler]\nchain = {chain}\n"));
        config.map(|config| config.scheduler.chain)
    };
    assert_eq!(chain("\"redundant\"").unwrap(), ChainSpec::named("redundant").unwrap());
    let listed = ChainSpec::of(&["round_robin", "redundancy"]).unwrap();
    assert_eq!(chain("[\"round_robin\", \"redundancy\"]").unwrap(), listed);
    let error = chain("[]").unwrap_err().to_string();
    assert!(error.contains("0 entries; between 1 and 16"), "{error}");
}

#[test]
fn the_command_line_wins() {
    let mut config = gateway(GATEWAY).unwrap();
    config.apply(&Overrides { mode: Some(Mode::Tls), log_level: Some(LogLevel::Debug) });
    assert_eq!(config.log.level, LogLevel::Debug);
    config.apply(&Overrides::default());
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(config.mode, Mode::Tls);
    for mode in [Mode::Auto, Mode::Quic, Mode::Tls] {
        assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
    }
}

#[test]
fn unreadable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let error = GatewayConfig::load(&file).unwrap_err().to_string();
    assert!(error.contains("x.toml") && error.contains("No such file"), "{error}");
    std::fs::write(&file, b"mode = \"tls\"\n# \xff").unwrap();
    let error = CloudConfig::load(&file).unwrap_err();
    assert_eq!((error.problems()[0].line, error.problems()[0].column), (2, 3));
    std::fs::write(&file, vec![b'#'; FILE_MAX as usize + 1]).unwrap();
    assert!(CloudConfig::load(&file).unwrap_err().to_string().contains("over 1 MiB"));
}

/// Every key that is read has a row in the reference.
#[test]
fn the_reference_has_every_key() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let reference = std::fs::read_to_string(file).unwrap();
    let rows: Vec<&str> = reference.lines().filter(|line| line.starts_with("| `")).collect();
    let documented = |key: &str| {
        let quoted = format!("`{key}`");
        rows.iter().any(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&quoted)))
    };
    let tables = |names: &[&str]| {
        let table = |name: &&str| match *name {
            "carrier" => "[[carrier]]\nx = 1\n".to_owned(),
            name => format!("[{name}]\nx = 1\n"),
        };
        format!("x = 1\n{}", names.iter().map(table).collect::<String>())
    };
    let common = ["log", "tls", "session", "scheduler", "admin", "linkdb"];
    let gateways =
        ["cloud", "carrier", "restart", "intercept", "dns", "socks5", "users", "telemetry"];
    let clouds = ["access", "dial", "tunnel"];
    let errors = [
        gateway(&tables(&[&common[..], &gateways].concat())).unwrap_err(),
        cloud(&tables(&[&common[..], &clouds].concat())).unwrap_err(),
    ];
    let mut count = 0;
    for problem in errors.iter().flat_map(ConfigError::problems) {
        let Some((_, known)) = problem.reason.split_once("; known are: ") else { continue };
        let table = problem.key.trim_end_matches('x').replace("[1]", "");
        for key in known.split(", ") {
            let full = format!("{table}{key}");
            let is_table = common.iter().chain(&gateways).chain(&clouds).any(|name| *name == full);
            assert!(is_table || documented(&full), "{full} is not in docs/operations.md");
            count += 1;
        }
    }
    assert!(count > 50, "{count} keys were found");
}

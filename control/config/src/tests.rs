//! Configurations in, values or a mistake with its place out.

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

fn problem<T: std::fmt::Debug>(parsed: Result<T, ConfigError>) -> Problem {
    match parsed {
        Err(ConfigError::Invalid(problem)) => problem,
        other => panic!("not an invalid configuration: {other:?}"),
    }
}

#[test]
fn gateway_defaults_are_as_documented() {
    let with = "[intercept]\ninterfaces = [\"lan0\"]\n[dns]\nresolver = \"9.9.9.9:53\"\n";
    let Config { common, own, ignored } = gateway(&format!("{GATEWAY}{with}")).unwrap();
    assert_eq!(common.mode, Mode::Auto);
    assert_eq!(common.log, LogConfig { level: LogLevel::Info, format: LogFormat::Text });
    assert_eq!(common.tls.certificate, PathBuf::from("/etc/polyrail/g.crt"));
    assert_eq!(common.tls.key, PathBuf::from("/keys/g.key"));
    assert_eq!(common.tls.revocations, None);
    let (linger, memory) = (Duration::from_secs(120), Bytes::from_mib(16));
    let (flows_max, user_flows_max) = (16_384, 1_024);
    let flow_idle = Duration::from_secs(2 * 3600 + 4 * 60);
    let session = SessionConfig { linger, memory, flows_max, user_flows_max, flow_idle };
    assert_eq!(common.session, session);
    assert_eq!(common.scheduler.chain, ChainSpec::named("polyrail").unwrap());
    assert_eq!((common.admin, common.linkdb), (None, None));
    assert_eq!((common.metrics, common.page), (None, None));
    assert_eq!(ignored, vec![]);

    let carrier = &own.carriers[0];
    assert!(!carrier.metered && carrier.usable());
    assert_eq!((carrier.qlog.as_ref(), carrier.modem.as_ref(), carrier.mode), (None, None, None));
    assert_eq!((carrier.congestion.as_str(), carrier.role), ("bbr", CarrierRole::Primary));
    assert_eq!(own.addresses(0, carrier), own.cloud.addresses);
    let interval = Duration::from_millis(100);
    let restart = Restart { enabled: true, early_data: true, attempts_max: 3, interval };
    assert_eq!(own.restart, restart);
    assert_eq!(own.users.key, UserKey::LinkAddress);
    assert_eq!(own.socks5.unwrap().reply, SocksReply::Immediate);
    assert!(own.telemetry.is_empty());
    assert_eq!(own.dns.unwrap().port.get(), 7853);
    let intercept = own.intercept.unwrap();
    assert_eq!((intercept.port.get(), intercept.mark.get(), intercept.table), (7801, 0x706f, 7801));
    let Intercept { other, private, on_exit, .. } = intercept;
    let usual = (OtherTraffic::Reject, PrivateTraffic::Bypass, OnExit::Open);
    assert_eq!((other, private, on_exit), usual);
    assert!(intercept.ipv4 && intercept.ipv6 && intercept.bypass.is_empty());
    assert!(intercept.udp == UdpTraffic::Carry && intercept.udp_ports.is_empty());
}

#[test]
fn cloud_defaults_are_as_documented() {
    let Config { common, own, .. } = cloud(CLOUD).unwrap();
    assert_eq!(common.udp.filtering(), Filtering::Address);
    let CloudTables { access, dial, tunnel, congestion, carrier_congestion, .. } = own;
    assert_eq!((own.workers, own.listen.len()), (0, 1));
    assert_eq!((access.deny_ports[0].get(), access.deny_ports.len()), (25, 1));
    assert!(access.allow.is_empty() && access.deny.is_empty());
    let timeout = Duration::from_secs(10);
    let (user_max, gateway_max) = (128, 1024);
    assert_eq!(dial, Dial { timeout, user_max, gateway_max, ipv4: true, ipv6: true });
    assert_eq!(tunnel, TunnelConfig { half_open_max: 1024, retry_above: 256, server_id: 0 });
    assert!(congestion.is_none() && carrier_congestion.is_empty());
}

#[test]
fn every_table_of_a_gateway_is_read() {
    let carrier = "\"w\"\nmode = \"tls\"\nqlog = \"q\"\nmodem = \"353270040012345\"";
    let text = GATEWAY.replacen("\"wwan0\"", carrier, 1);
    let tables = "[restart]\nenabled = false\nearly_data = false\nattempts_max = 8\n\
                  interval = \"1s\"\n[admin]\nsocket = \"/run/polyrail/gateway.sock\"\n\
                  [telemetry]\ngpsd = \"[::1]:2947\"\nmodem_manager = true\nreplay = \"t.ndjson\"\n\
                  modem_manager_bus = \"unix:path=/b\"\n\
                  [scheduler]\nchain = [\"round_robin\", \"redundancy\"]\n\
                  [log]\nlevel = \"trace\"\nformat = \"json\"\n\
                  [linkdb]\npath = \"/l\"\nevents_max = 1000\nretention_days = 36500\n\
                  forecast = false\n\
                  [udp]\ncopies = \"forecast\"\ncopies_max = 0\n\
                  [intercept]\ninterfaces=[\"l\"]\nother = \"direct:a\"\nprivate = \"carry\"\n\
                  udp = \"direct:a\"\n\
                  udp_ports = { 443 = \"reject\", 27000-27100 = \"carry\" }\n";
    let config = gateway(&format!("mode = \"quic\"\n{text}{tables}")).unwrap();
    assert_eq!((config.common.mode, config.carriers[0].mode), (Mode::Quic, Some(Mode::Tls)));
    assert_eq!(config.carrier_mode(&config.carriers[0]), Mode::Tls);
    let Config { common, own, .. } = config;
    assert_eq!(own.carriers[0].qlog, Some(PathBuf::from("/etc/polyrail/q")));
    assert_eq!(own.carriers[0].modem.as_ref().unwrap().as_str(), "353270040012345");
    let interval = Duration::from_secs(1);
    let restart = Restart { enabled: false, early_data: false, attempts_max: 8, interval };
    assert_eq!(own.restart, restart);
    assert_eq!(common.admin.unwrap().socket, PathBuf::from("/run/polyrail/gateway.sock"));
    let telemetry = TelemetryConfig {
        gpsd: Some("[::1]:2947".parse().unwrap()),
        modem_manager: true,
        modem_manager_bus: Some("unix:path=/b".parse().unwrap()),
        replay: Some(PathBuf::from("/etc/polyrail/t.ndjson")),
    };
    assert_eq!(own.telemetry, telemetry);
    let chain = ChainSpec::of(&["round_robin", "redundancy"]).unwrap();
    assert_eq!(common.scheduler.chain, chain);
    assert_eq!(common.log, LogConfig { level: LogLevel::Trace, format: LogFormat::Json });
    let linkdb = LinkDbConfig {
        path: PathBuf::from("/l"),
        events_max: 1000,
        retention_days: 36_500.try_into().unwrap(),
        forecast: false,
        share: None,
        shared: None,
    };
    assert_eq!(common.linkdb, Some(linkdb));
    let intercept = own.intercept.unwrap();
    assert_eq!(intercept.other, OtherTraffic::Direct("a".parse().unwrap()));
    assert_eq!(intercept.udp, UdpTraffic::Other(intercept.other.clone()));
    let ports: Vec<_> = intercept.udp_ports.iter().map(|(k, v)| format!("{k} {v}")).collect();
    assert_eq!(ports, ["443 reject", "27000-27100 carry"]);
    assert!(intercept.carries_udp() && intercept.direct().unwrap().0 == "intercept.udp");
    assert_eq!(intercept.private, PrivateTraffic::Carry);
    assert_eq!((common.udp.copies, common.udp.copies_max), (DatagramCopies::Forecast, 0));
}

#[test]
fn chain_of_each_kind_of_copies_builds() {
    let rules = |copies, copies_max| {
        UdpConfig { copies, copies_max, filtering: None }.chain().names().to_vec()
    };
    let chain = ChainSpec::named("datagrams").unwrap();
    let usual = "datagram_redundancy(burst=65536, forecast=false, rate=65536)";
    assert_eq!(UdpConfig::default().chain().names()[2], usual);
    let least = "datagram_redundancy(burst=0, forecast=true, rate=0)";
    assert_eq!(rules(DatagramCopies::Forecast, 0)[2], least);
    let most = "datagram_redundancy(burst=1073741824, forecast=false, rate=1073741824)";
    assert_eq!(rules(DatagramCopies::Always, 1 << 30)[2], most);
    assert_eq!(rules(DatagramCopies::Off, 1), chain.names()[..2]);
}

#[test]
fn every_table_of_a_cloud_is_read() {
    let tables = "[tunnel]\nhalf_open_max = 7\nretry_above = 0\nserver_id = 65535\n\
                  [admin]\nsocket = \"s\"\n[session]\nmemory = \"4 GiB\"\n\
                  [access]\nallow = [\"10.0.0.0/8\"]\ndeny_ports = []\n\
                  [linkdb]\npath = \"l.redb\"\nshare = false\n\
                  [linkdb.shared]\nurl = \"postgres://cloud@db.example/polyrail\"\n\
                  password_file = \"pw\"\nca = \"ca.pem\"\n\
                  [metrics]\nlisten = \"[::1]:9464\"\n\
                  [udp]\nfiltering = \"endpoint\"\n\
                  [carrier_congestion]\nsatellite = \"cubic\"\nlte-a = \"bbr\"\n";
    let text = format!("congestion = \"reno\"\n{CLOUD}{tables}");
    let Config { common, own, .. } = cloud(&text).unwrap();
    assert_eq!(own.tunnel, TunnelConfig { half_open_max: 7, retry_above: 0, server_id: 65_535 });
    assert_eq!(common.admin.unwrap().socket, PathBuf::from("/etc/polyrail/s"));
    assert_eq!(common.session.memory, Bytes::from_mib(4096));
    assert_eq!(common.udp.filtering(), Filtering::Endpoint);
    let listen = "[::1]:9464".parse().unwrap();
    assert_eq!(common.metrics, Some(MetricsConfig { listen }));
    assert!(own.access.deny_ports.is_empty());
    assert_eq!(own.access.allow[0].to_string(), "10.0.0.0/8");
    let linkdb = LinkDbConfig {
        path: PathBuf::from("/etc/polyrail/l.redb"),
        events_max: 1_000_000,
        retention_days: 365.try_into().unwrap(),
        forecast: true,
        share: Some(false),
        shared: Some(SharedConfig {
            url: "postgres://cloud@db.example/polyrail".to_owned(),
            password_file: Some(PathBuf::from("/etc/polyrail/pw")),
            ca: Some(PathBuf::from("/etc/polyrail/ca.pem")),
        }),
    };
    assert!(!linkdb.shares());
    assert_eq!(common.linkdb, Some(linkdb));
    let cubic: CongestionControl = "cubic".parse().unwrap();
    let satellite: CarrierName = "satellite".parse().unwrap();
    assert_eq!(own.carrier_congestion.get(&satellite), Some(&cubic));
    assert_eq!(own.congestion.unwrap().as_str(), "reno");
}

#[test]
fn both_examples_parse() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let config = GatewayConfig::load(folder.join("gateway.toml"), &Overrides::default()).unwrap();
    let Config { common, own: config, .. } = config;
    assert_eq!(config.carriers.len(), 2);
    let intercept = config.intercept.unwrap();
    assert_eq!(intercept.mark.get(), 0x706f);
    assert_eq!(intercept.bypass[0].to_string(), "198.51.100.0/24");
    assert_eq!(config.dns.unwrap().resolver.port(), 53);
    assert_eq!(config.telemetry.gpsd.unwrap().port(), 2947);
    assert_eq!(common.linkdb.unwrap().path, PathBuf::from("/var/lib/polyrail/linkdb.redb"));
    let config = CloudConfig::load(folder.join("cloud.toml"), &Overrides::default()).unwrap();
    assert_eq!(config.listen[0].port(), 4433);
    assert!(config.common.linkdb.unwrap().shares());
}

#[test]
fn units_restart_a_failed_or_hanging_daemon_without_limit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for unit in ["polyrail-gateway.service", "polyrail-cloud.service"] {
        let text = std::fs::read_to_string(folder.join(unit)).unwrap();
        for setting in [
            "StartLimitIntervalSec=0",
            "Type=notify",
            "RestartSec=1",
            "WatchdogSec=10",
            "KillMode=mixed",
        ] {
            assert!(text.lines().any(|line| line == setting), "{unit}: {setting}");
        }
        // A cloud that was drained ends in success and stays ended.
        let restart = if unit.contains("cloud") { "on-failure" } else { "always" };
        assert!(text.contains(&format!("\nRestart={restart}\n")), "{unit}");
    }
}

/// Replaces `from` in the example by `to`; the line at `mark` must be blamed on `key`, with
/// `reason`.
fn assert_placed([from, to, mark, key, reason]: &[&str; 5]) {
    assert!(GATEWAY.contains(from), "{from:?} is not in the example");
    let text = GATEWAY.replacen(from, to, 1);
    let at = text.find(mark).expect("the mark is in the changed text");
    let line = text[..at].matches('\n').count() + 1;
    let found = problem(gateway(&text));
    assert_eq!((found.key.as_str(), found.line), (*key, line), "{to:?}: {found}");
    assert!(found.reason.contains(reason), "{to:?}: {found}");
    let shown = format!("/etc/polyrail/gateway.toml:{line}:{}: {key}: ", found.column);
    assert!(found.to_string().starts_with(&shown), "{found} does not begin with {shown}");
}

#[test]
fn mistakes_have_line_key_and_reason() {
    let rows: &[[&str; 5]] = &[
        ["name = \"cloud\"", "name = \"cloud\"\nnam = 1", "nam = 1", "cloud.nam", "unknown field"],
        ["[tls]", "speed = 1\n[tls]", "speed", "speed", "unknown field `speed`, expected one of"],
        ["[tls]", "[sesion]\n[tls]", "[sesion]", "sesion", "unknown field"],
        ["\"cloud\"", "7", "name = 7", "cloud.name", "expected a string in quotes"],
        ["\"cloud\"", "\"Cloud\"", "\"Cloud\"", "cloud.name", "not a node name"],
        ["name = \"cloud\"\n", "", "[cloud]", "cloud.name", "missing"],
        ["name = \"a\"\n", "", "[[carrier]]", "carrier[1].name", "missing"],
        ["192.0.2.1:4433", "192.0.2.1", "\"192.0", "cloud.addresses[1]", "with a port"],
        ["192.0.2.1:4433", "192.0.2.1:0", "\"192.0", "cloud.addresses[1]", "port 0"],
        ["192.0.2.1:4433", "0.0.0.0:1", "\"0.0", "cloud.addresses[1]", "names no host"],
        ["192.0.2.1:4433", "host:1", "\"host", "cloud.addresses[1]", "not an IP address"],
        ["[\"192.0.2.1:4433\"]", "[]", "addresses", "cloud.addresses", "1 to 8 are allowed"],
        ["[\"192.0.2.1:4433\"]", "\"192.0.2.1:4433\"", "addresses", "cloud.addresses", "sequence"],
        ["[socks5]", "[[carrier]]\nname=\"a\"\n[socks5]", "name=", "carrier[2].name", "already"],
        ["127.0.0.1:1080", "localhost:1080", "\"localhost", "socks5.listen[1]", "IP address"],
        ["[socks5]", "[dns]\nresolver = \"9.9.9.9:53\"\n[socks5]", "[dns]", "dns", "[intercept]"],
        ["[[carrier]]", "[carrier]", "[carrier]", "carrier", "expected a sequence"],
        ["[[carrier]]", "carrier = 5\n[x]", "carrier = 5", "cloud.carrier", "unknown field"],
        ["\"g.crt\"", "\"\"", "certificate", "tls.certificate", "empty path"],
    ];
    rows.iter().for_each(assert_placed);
}

/// Rows: lines of the first carrier, the key, the reason.
#[test]
fn mistakes_about_carriers_have_line_key_and_reason() {
    let rows = [
        ("interface = \"wwan/0\"", "interface", "interface name"),
        ("source = \"::1\"", "source", "family"),
        ("source = \"0.0.0.0\"", "source", "not the address of a host"),
        ("role = \"main\"", "role", "expected one of `primary`"),
        ("enabled = 1", "enabled", "expected a boolean"),
        ("congestion = \"B B\"", "congestion", "bbr"),
        ("mode = \"udp\"", "mode", "unknown variant `udp`, expected one of `auto`, `quic`, `tls`"),
        ("metered = 1", "metered", "expected a boolean"),
        ("rate_limit = \"63 kbit/s\"", "rate_limit", "not between 64 kbit/s and 100 Gbit/s"),
        ("cap = { bytes = \"50 GBit\" }", "cap.bytes", "an amount of data"),
        ("cap = { bytes = \"1 GB\", reset_day = 29 }", "cap.reset_day", "between 1 and 28"),
        ("cap = { bytes = \"1 GB\", at = \"off\" }", "cap.at", "\"limit:RATE\""),
        ("cap = { bytes = \"1 GB\" }", "cap", "needs an interface"),
        ("qlog = \"\"", "qlog", "empty path"),
        ("modem = \"a b\"", "modem", "not a modem's"),
    ];
    for (line, key, reason) in rows {
        let key = format!("carrier[1].{key}");
        assert_placed(&["interface = \"wwan0\"", line, line, &key, reason]);
    }
    for unused in ["role = \"never\"", "enabled = false"] {
        let reason = "no carrier may be used";
        assert_placed(&["interface = \"wwan0\"", unused, "[[carrier]]", "carrier[1]", reason]);
    }
}

#[test]
fn caps_and_groups_are_read_and_checked() {
    let keys = "role = \"secondary\"\nrate_limit = \"20 Mbit/s\"\n\
                cap = { bytes = \"50 GB\", at = \"limit:1 Mbit/s\" }\n";
    let groups = "[[group]]\nname = \"crew\"\nweight = 4\nsources = [\"10.1.0.0/24\"]\n\
                  [[group]]\nname = \"staff\"\nweight = 2\n\
                  link_addresses = [\"02:00:00:00:00:01\"]\n";
    let text = GATEWAY.replace("[socks5]", &format!("{keys}\n[socks5]")) + groups;
    let config = gateway(&text).unwrap();
    let (carrier, cap) = (&config.carriers[0], config.carriers[0].cap.unwrap());
    assert_eq!(carrier.rate_limit.unwrap().rate().as_mbps(), 20.0);
    assert_eq!((cap.bytes.bytes().0, cap.reset_day), (50_000_000_000, 1));
    assert_eq!(cap.at, CapAction::Limit("1 Mbit/s".parse().unwrap()));
    assert_eq!(config.groups.iter().map(|group| group.weight).collect::<Vec<_>>(), [4, 2]);
    assert_eq!(config.usage.path, PathBuf::from("/var/lib/polyrail/usage.json"));

    let other = "[[carrier]]\nname = \"b\"\ninterface = \"wwan0\"\nsource = \"192.0.2.9\"\n";
    let found = problem(gateway(&(text.clone() + other)));
    assert_eq!(found.key, "carrier[1].cap", "{found}");
    assert!(found.reason.contains("\"b\" has, too"), "{found}");
    for (from, to, key, reason) in [
        ("weight = 4", "weight = 17", "group[1].weight", "between 1 and 16"),
        ("weight = 4", "weight = 0", "group[1].weight", "between 1 and 16"),
        ("\"staff\"", "\"crew\"", "group[2].name", "already named \"crew\""),
        ("sources = [\"10.1.0.0/24\"]", "", "group[1]", "needs sources or link_addresses"),
        ("10.1.0.0/24", "10.1.0.1/24", "group[1].sources[1]", "bits beyond its length"),
        ("00:01\"]", "00:0G\"]", "group[2].link_addresses[1]", "not a link address"),
        (
            "[socks5]",
            "[users]\nkey = \"address\"\n[socks5]",
            "group[2].link_addresses",
            "no link address is known",
        ),
    ] {
        let found = problem(gateway(&text.replacen(from, to, 1)));
        assert_eq!(found.key, key, "{found}");
        assert!(found.reason.contains(reason), "{found}");
    }
}

/// Rows: a table, a line of it, the key that is blamed, the reason.
#[test]
fn mistakes_in_other_tables_have_line_key_and_reason() {
    let linkdb = "linkdb]\npath = \"l\"";
    let rows = [
        ("session]", "linger = \"2 days\"", "session.linger", "units: ms"),
        ("session]", "linger = 120", "session.linger", "expected a string"),
        ("session]", "linger = \"2h\"", "session.linger", "not between 1s and 3600s"),
        ("session]", "memory = \"16 Mb\"", "session.memory", "64 KiB"),
        ("session]", "memory = \"1023 KiB\"", "session.memory", "between 1.0 MiB and 4096.0 MiB"),
        ("session]", "memory = \"5 GiB\"", "session.memory", "not between"),
        ("session]", "flows_max = 0", "session.flows_max", "0 is not between 1 and 1000000"),
        ("scheduler]", "chain = \"x\"", "scheduler.chain", "min_rtt"),
        ("scheduler]", "chain = [\"min_rtt\", \"x\"]", "scheduler.chain", "there are: blest,"),
        ("scheduler]", "chain = [\"redundancy\"]", "scheduler.chain", "no rule of this chain"),
        ("udp]", "copies = \"twice\"", "udp.copies", "unknown variant"),
        ("udp]", "copies_max = 1073741825", "udp.copies_max", "between 0 and 1073741824"),
        ("udp]", "filtering = \"none\"", "udp.filtering", "unknown field"),
        ("scheduler]", "chain = []", "scheduler.chain", "1 to 16 schedulerlets, not 0"),
        ("log]", "level = \"loud\"", "log.level", "expected one of `error`, `warn`"),
        ("log]", "format = \"xml\"", "log.format", "`json`"),
        ("users]", "key = \"mac\"", "users.key", "`address`"),
        ("restart]", "attempts_max = 9", "restart.attempts_max", "not between 1 and 8"),
        ("restart]", "interval = \"1ms\"", "restart.interval", "not between 20ms and 10s"),
        ("telemetry]", "gpsd = \"localhost:2947\"", "telemetry.gpsd", "not an IP address"),
        ("telemetry]", "gpsd = 2947", "telemetry.gpsd", "a string"),
        ("metrics]", "listen = \"192.0.2.1:1\"", "metrics.listen", "not a loopback address"),
        ("metrics]", "listen = \"[::]:1\"", "metrics.listen", "not a loopback address"),
        ("metrics]", "listen = 9464", "metrics.listen", "a string"),
        ("metrics]", "port = 1", "metrics.port", "unknown field"),
        ("telemetry]", "modem_manager = \"yes\"", "telemetry.modem_manager", "a boolean"),
        ("telemetry]", "modem_manager_bus = \"/b\"", "telemetry.modem_manager_bus", "of a bus"),
        (
            "telemetry]",
            "modem_manager_bus = \"unix:path=/b\"",
            "telemetry.modem_manager_bus",
            "= true",
        ),
        ("telemetry]", "replay = \"\"", "telemetry.replay", "empty path"),
        ("telemetry]", "gps = 1", "telemetry.gps", "`gpsd`, `modem_manager`"),
        (linkdb, "share = true", "linkdb.share", "unknown field"),
        (linkdb, "shared = { url = \"x\" }", "linkdb.shared", "unknown field"),
        (linkdb, "events_max = 999", "linkdb.events_max", "not between 1000 and 100000000"),
        (linkdb, "retention_days = 36501", "linkdb.retention_days", "not between 1 and 36500"),
        (linkdb, "forecast = \"yes\"", "linkdb.forecast", "a boolean"),
        ("linkdb]", "forecast = true", "linkdb.path", "missing"),
    ];
    for (table, line, key, reason) in rows {
        let mark = if reason == "missing" { table } else { line };
        assert_placed(&["[tls]", &format!("[{table}\n{line}\n[tls]"), mark, key, reason]);
    }
    assert_placed(&["[tls]", "mode = \"udp\"\n[tls]", "mode", "mode", "`quic`"]);
}

#[test]
fn interception_is_checked() {
    let many: String = (1..=65).map(|port| format!("{port} = \"reject\"\n")).collect();
    let many = format!("[intercept.udp_ports]\n{many}");
    let rows = [
        ("port = 0", "intercept.port", "nonzero"),
        ("mark = 0", "intercept.mark", "nonzero"),
        ("mark = 0x1_0000_0000", "intercept.mark", "nonzero u32"),
        ("table = 254", "intercept.table", "belongs to the kernel"),
        ("bypass = [\"10.0.0.1/8\"]", "intercept.bypass[1]", "\"10.0.0.0/8\""),
        ("private = \"drop\"", "intercept.private", "`carry`"),
        ("on_exit = \"shut\"", "intercept.on_exit", "`closed`"),
        ("ipv4 = false\nipv6 = false", "intercept.ipv6", "both false"),
        ("other = \"direct\"", "intercept.other", "direct:<carrier>"),
        ("other = \"direct:b\"", "intercept.other", "no carrier is named \"b\""),
        ("other = \"direct:B\"", "intercept.other", "not a carrier name"),
        ("udp = \"drop\"", "intercept.udp", "is none of \"carry\""),
        ("udp = \"direct:b\"", "intercept.udp", "no carrier is named \"b\""),
        ("udp_ports = \"443\"", "intercept.udp_ports", "a map"),
        ("udp_ports = { 0 = \"reject\" }", "intercept.udp_ports.0", "from 1 to 65535"),
        ("udp_ports = { 65536 = \"reject\" }", "intercept.udp_ports.65536", "from 1 to"),
        ("udp_ports = { 9-7 = \"reject\" }", "intercept.udp_ports.9-7", "an ascending range"),
        ("udp_ports = { 07 = \"reject\" }", "intercept.udp_ports.07", "neither a port"),
        ("udp_ports = { x = \"reject\" }", "intercept.udp_ports.x", "neither a port"),
        ("udp_ports = { 7 = \"drop\" }", "intercept.udp_ports.7", "is none of"),
        ("udp_ports = { 7 = \"direct:b\" }", "intercept.udp_ports.7", "no carrier is named"),
        ("udp_ports = { 5-7 = \"carry\", 7 = \"reject\" }", "intercept.udp_ports.7", "overlap"),
        ("other = \"direct:a\"\nudp = \"direct:b\"", "intercept.udp", "names another carrier"),
        (&many, "intercept.udp_ports", "65 entries; 0 to 64"),
        ("port = 1080", "socks5.listen[1]", "the same"),
        ("port = 7853\n[dns]\nresolver = \"9.9.9.9:53\"", "dns", "the same"),
        ("[dns]", "dns.resolver", "missing"),
    ];
    for (extra, key, reason) in rows {
        let text = format!("{GATEWAY}[intercept]\ninterfaces = [\"lan0\"]\n{extra}\n");
        let found = problem(gateway(&text));
        assert!(found.key.starts_with(key) && found.reason.contains(reason), "{found}");
    }
    let listed = |list: &str| {
        problem(gateway(&format!("{GATEWAY}[intercept]\ninterfaces = {list}\n"))).to_string()
    };
    assert!(listed("[\"wwan0\"]").contains("belongs to the carrier"));
    assert!(listed("[\"l\", \"l\"]").contains("twice"));
    let direct = format!("{GATEWAY}[intercept]\ninterfaces=[\"l\"]\nother = \"direct:a\"\n");
    let unused = direct.replacen("name = \"a\"", "name = \"b\"\n[[carrier]]\nname = \"a\"", 1);
    let unused = unused.replacen("wwan0\"", "wwan0\"\nenabled = false", 1);
    assert!(problem(gateway(&unused)).reason.contains("is disabled"));
    let unbound = direct.replacen("interface = \"wwan0\"\n", "", 1);
    assert!(problem(gateway(&unbound)).reason.contains("has no interface"));
}

#[test]
fn standby_clouds_have_names_and_addresses_of_their_own() {
    let standby = |name: &str, address: &str| {
        format!("[[cloud.standby]]\nname = \"{name}\"\naddresses = [\"{address}\"]\n")
    };
    let with = |more: &str, carrier: &str| {
        let text = GATEWAY.replacen("interface = \"wwan0\"", carrier, 1);
        gateway(&text.replacen("[socks5]", &format!("{more}[socks5]"), 1))
    };
    let (two, three) = (standby("two", "192.0.2.2:4433"), standby("three", "[2001:db8::3]:4433"));
    let own = "interface = \"wwan0\"\naddresses = [\"192.0.2.9:4433\"]";
    let config = with(&format!("{two}{three}"), own).unwrap();
    let names: Vec<_> = config.clouds().map(ToString::to_string).collect();
    assert_eq!(names, ["cloud", "two", "three"]);
    let carrier = &config.carriers[0];
    let shown = |cloud| config.addresses(cloud, carrier)[0].to_string();
    assert_eq!([shown(0), shown(1)], ["192.0.2.9:4433", "192.0.2.2:4433"]);
    let unbound = "addresses = [\"192.0.2.8:4433\"]\n[[carrier]]\nname = \"z\"";
    with("", unbound).unwrap();
    let rows = [
        (standby("cloud", "192.0.2.2:4433"), own, "cloud.standby[1].name", "already named"),
        (format!("{two}{two}"), own, "cloud.standby[2].name", "already named"),
        (standby("two", "192.0.2.2"), own, "cloud.standby[1].addresses[1]", "with a port"),
        (
            (1..=8).map(|i| standby(&format!("c{i}"), "192.0.2.2:1")).collect(),
            own,
            "cloud.standby",
            "8 entries; at most 7",
        ),
        (three, "source = \"192.0.2.77\"", "carrier[1].source", "the cloud \"three\""),
        (two, unbound, "carrier[2]", "an interface or a source: both"),
    ];
    for (more, carrier, key, reason) in rows {
        let found = problem(with(&more, carrier));
        assert!(found.key == key && found.reason.contains(reason), "{found}");
    }
}

#[test]
fn missing_tables_and_sources_of_users_are_named() {
    let text = GATEWAY.replacen("[socks5]\nlisten = [\"127.0.0.1:1080\"]\n", "", 1);
    assert!(problem(gateway(&text)).reason.contains("add [intercept], [socks5]"));
    let found = problem(gateway("")).to_string();
    assert_eq!(found, "/etc/polyrail/gateway.toml:1:1: tls: missing field `tls`");
}

#[test]
fn mistake_in_the_toml_syntax_is_placed() {
    let found = problem(gateway("mode = \"tls\"\n[tls\n"));
    assert_eq!((found.line, found.key.as_str()), (2, ""), "{found}");
    let found = problem(gateway("mode = \"tls\"\nmode = \"tls\"\n"));
    assert!(found.line == 2 && found.reason.contains("duplicate key"), "{found}");
}

#[test]
fn deleted_keys_are_ignored_with_a_warning() {
    let log = "[log]\nlevel = \"debug\"\nfile = \"/var/log/x\"\n";
    let gateway = gateway(&format!("{GATEWAY}{log}")).unwrap();
    let cloud = cloud(&format!("{CLOUD}{log}")).unwrap();
    assert_eq!(
        (gateway.common.log.level, cloud.common.log.level),
        (LogLevel::Debug, LogLevel::Debug)
    );
    assert_eq!((gateway.ignored.len(), cloud.ignored.len()), (1, 1));
    let warning = gateway.ignored[0].to_string();
    let expected = "/etc/polyrail/gateway.toml:18:1: log.file: this key is ignored: ";
    assert!(warning.starts_with(expected), "{warning}");
}

#[test]
fn too_many_carriers_are_refused() {
    let more = |n| (0..n).map(|i| format!("[[carrier]]\nname=\"c{i}\"\nsource=\"192.0.2.9\"\n"));
    let text = |n| format!("{GATEWAY}{}", more(n).collect::<String>());
    assert_eq!(gateway(&text(CARRIERS_MAX - 1)).unwrap().carriers.len(), CARRIERS_MAX);
    let found = problem(gateway(&text(CARRIERS_MAX)));
    assert_eq!(
        (found.key.as_str(), found.reason.as_str()),
        ("carrier", "17 entries; 1 to 16 are allowed")
    );
}

#[test]
fn two_carriers_without_binding_are_refused() {
    let more = "[[carrier]]\nname = \"b\"\n[[carrier]]\nname = \"c\"\n";
    let found = problem(gateway(&format!("{GATEWAY}{more}")));
    assert_eq!((found.key.as_str(), found.line), ("carrier[3]", 18), "{found}");
    let more = more.replace("\"c\"", "\"c\"\naddresses = [\"192.0.2.2:4433\"]");
    assert_eq!(gateway(&format!("{GATEWAY}{more}")).unwrap().carriers.len(), 3);
}

#[test]
fn mistakes_of_a_cloud_are_placed() {
    let long = format!("[admin]\nsocket = \"{}\"", "x".repeat(SOCKET_PATH_MAX));
    let many: String = (0..257).map(|i| format!("c{i} = \"bbr\"\n")).collect();
    let many = format!("[carrier_congestion]\n{many}");
    let rows = [
        ("[dial]\ntimeout = \"1ms\"", "dial.timeout", 7),
        ("[dial]\nipv4 = false\nipv6 = false", "dial.ipv6", 8),
        ("[access]\nallow = [\"10.0.0.0/8\", \"ten\"]", "access.allow[2]", 7),
        ("[access]\ndeny_ports = [25, 65536]", "access.deny_ports[2]", 7),
        ("[carrier]", "carrier", 6),
        ("[admin]", "admin.socket", 6),
        (&long, "admin.socket", 7),
        ("[tunnel]\nhalf_open_max = 0", "tunnel.half_open_max", 7),
        ("[tunnel]\nretry_above = 70000", "tunnel.retry_above", 7),
        ("[tunnel]\nserver_id = 65536", "tunnel.server_id", 7),
        ("[carrier_congestion]\nLTE = \"bbr\"", "carrier_congestion.LTE", 7),
        ("[carrier_congestion]\na = 1", "carrier_congestion.a", 7),
        ("[carrier_congestion]\na = \"B\"", "carrier_congestion.a", 7),
        (&many, "carrier_congestion", 6),
        ("[linkdb]\npath = \"l\"\nforecast = 1", "linkdb.forecast", 8),
        ("[udp]\nfiltering = \"port\"", "udp.filtering", 7),
        ("[page]", "page.listen", 6),
        ("[page]\nlisten = \"192.0.2.1:8080\"", "page.listen", 7),
        ("[page]\nlisten = \"0.0.0.0:8080\"", "page.listen", 7),
        ("[page]\nlisten = \"localhost:8080\"", "page.listen", 7),
    ];
    for (extra, key, line) in rows {
        let found = problem(cloud(&format!("{CLOUD}{extra}\n")));
        assert_eq!((found.key.as_str(), found.line), (key, line), "{found}");
    }
    let twice = CLOUD.replacen("[\"[::]:4433\"]", "[\"[::]:4433\", \"[::]:4433\"]", 1);
    assert_eq!(problem(cloud(&twice)).key, "listen[2]");
}

#[test]
fn command_line_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    std::fs::write(&file, GATEWAY).unwrap();
    let overrides = Overrides { mode: Some(Mode::Tls), log_level: Some(LogLevel::Debug) };
    let common = GatewayConfig::load(&file, &overrides).unwrap().common;
    assert_eq!((common.log.level, common.mode), (LogLevel::Debug, Mode::Tls));
}

#[test]
fn unreadable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let error = || CloudConfig::load(&file, &Overrides::default()).unwrap_err().to_string();
    assert!(error().contains("x.toml") && error().contains("No such file"), "{}", error());
    std::fs::write(&file, b"mode = \"tls\"\n# \xff").unwrap();
    assert!(error().contains("UTF-8"));
    std::fs::write(&file, vec![b'#'; FILE_MAX as usize + 1]).unwrap();
    assert!(error().contains("over 1 MiB"));
}

/// Rows: the keys of `[linkdb.shared]`, the key that is blamed or none, the reason.
#[test]
fn shared_linkdb_is_encrypted_or_local() {
    let rows = [
        ("url = \"postgres://cloud@db/x\"\nca = \"c\"", "", ""),
        ("url = \"postgresql://cloud@localhost:5433/x\"", "", ""),
        ("url = \"postgres://cloud@%2Frun%2Fpostgresql/x\"", "", ""),
        ("url = \"postgres://cloud@[::1]/x\"", "", ""),
        ("url = \"postgres://cloud@db/x\"", "ca", "needs TLS"),
        ("url = \"postgres://cloud@10.0.0.1:5432/x\"", "ca", "needs TLS"),
        ("url = \"postgres://cloud@127.0.0.1,localhost:5433/x\"", "", ""),
        ("url = \"postgres://cloud@localhost.example.net/x\"", "ca", "needs TLS"),
        ("url = \"postgres://cloud@127.example.net/x\"", "ca", "needs TLS"),
        ("url = \"postgres://cloud@localhost,db/x\"", "ca", "needs TLS"),
        ("url = \"postgres://localhost/x@db\"", "url", "of the form"),
        ("url = \"postgres://cloud@localhost@db/x\"", "url", "of the form"),
        ("url = \"postgres://cloud@localhost:x/x\"", "url", "of the form"),
        ("url = \"postgres://cloud@[::1/x\"", "url", "of the form"),
        ("url = \"postgres:///x\"", "url", "of the form"),
        ("url = \"mysql://cloud@localhost/x\"", "url", "postgres://USER@HOST/DATABASE"),
        ("url = \"postgres://cloud:secret@localhost/x\"", "url", "password_file"),
        ("url = \"postgres://cloud@localhost/x?sslmode=disable\"", "url", "parameters"),
        ("password_file = \"p\"", "url", "missing"),
        ("url = \"postgres://a@localhost/x\"\ntls = true", "tls", "unknown field"),
    ];
    for (keys, key, reason) in rows {
        let text = format!("{CLOUD}[linkdb]\npath = \"l\"\n[linkdb.shared]\n{keys}\n");
        match cloud(&text) {
            Ok(_) => assert_eq!(key, "", "{keys}"),
            refused => {
                let found = problem(refused);
                assert_eq!(found.key, format!("linkdb.shared.{key}"), "{found}");
                assert!(found.reason.contains(reason), "{found}");
            }
        }
    }
}

/// Every key that a table takes has a row in the reference.
#[test]
fn reference_has_every_key() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let reference = std::fs::read_to_string(file).unwrap();
    let rows: Vec<&str> = reference.lines().filter(|line| line.starts_with("| `")).collect();
    let documented = |key: &str| {
        let quoted = format!("`{key}`");
        rows.iter().any(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&quoted)))
    };
    let tables = "cloud cloud.standby restart intercept dns socks5 users telemetry log tls session \
                  scheduler udp admin metrics linkdb page carrier group usage access dial tunnel \
                  linkdb.shared";
    let tables: Vec<_> = tables.split_whitespace().collect();
    let mut count = 0;
    for table in std::iter::once("").chain(tables.iter().copied()) {
        let text = match table {
            "" => "x = 1\n".to_owned(),
            list @ ("carrier" | "cloud.standby" | "group") => format!("[[{list}]]\nx = 1\n"),
            table => format!("[{table}]\nx = 1\n"),
        };
        let tls = if table == "tls" {
            ""
        } else {
            "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n"
        };
        let text = text + tls;
        for found in [problem(gateway(&text)), problem(cloud(&text))] {
            let Some((_, known)) = found.reason.split_once("expected ") else { continue };
            let Some(prefix) = found.key.strip_suffix('x') else { continue };
            let prefix = prefix.replace("[1]", "");
            for key in known.split('`').skip(1).step_by(2) {
                let full = format!("{prefix}{key}");
                assert!(
                    tables.contains(&full.as_str()) || documented(&full),
                    "{full} is undocumented"
                );
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count} keys were found");
}

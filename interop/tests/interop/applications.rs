//! Real programs of passengers that use UDP: a browser with HTTP/3, WireGuard, calls and so on.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::namespace::Namespace;
use polyrail_interop::addresses::{CLOUD_INSIDE, Family, PASSENGER, SERVER, SERVER_NAME};
use polyrail_interop::carrier::Link;
use polyrail_interop::exchange::{Ending, Exchange, Verdicts};
use polyrail_interop::lab::Lab;
use polyrail_interop::process::{Process, Program};
use polyrail_interop::world::{Plan, World};
use polyrail_interop::{client, scratch};
use serde_json::Value;

use crate::{alone, both_modes, in_both_modes};

/// The time limit of a program, and of a scenario.
const LIMIT: Duration = Duration::from_secs(30);
const BOUND: Duration = Duration::from_secs(60);
/// A second address of the server, for STUN.
const OTHER_SERVER: &str = "198.51.100.12";

/// The name in the page's certificate is not checked, but its key is.
#[test]
fn browser_loads_a_page_by_http3() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        let lab = &world.lab;
        let text: String = (0..125_000).map(|number| format!("{number:07} ")).collect();
        let (_caddy, access) = serve_http3(lab, &text)?;
        let key_hash = std::fs::read_to_string(file(lab, "key-hash"))?;
        let page = lab.folder().join("page");
        let mut chromium = Program::new("chromium", "chromium", lab.log("chromium"))
            // Root has no sandbox of its own, and the page is the test's own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-sync", "--disable-breakpad"])
            .args(["--disable-component-update", "--dump-dom"])
            .arg(format!("--user-data-dir={}", file(lab, "profile")))
            .arg(format!("--log-net-log={}", file(lab, "net-log")))
            .arg(format!("--origin-to-force-quic-on={SERVER_NAME}:443"))
            .arg(format!("--ignore-certificate-errors-spki-list={}", key_hash.trim()))
            .arg(format!("https://{SERVER_NAME}/"))
            .home(lab.folder())
            .output(&page)
            .resolver(&lab.resolver_file(false))
            .start(&lab.passenger)
            .context("Debian package chromium")?;
        let status = chromium.wait(LIMIT)?;
        ensure!(status.success(), "chromium ended ({status}):\n{}", chromium.log());
        let page = std::fs::read_to_string(&page)?;
        let (length, access) = (page.len(), std::fs::read_to_string(access)?);
        ensure!(page.contains(&text), "the page has {length} bytes, not all of the text");
        ensure!(page.contains(">by h3<"), "not by HTTP/3: {}", &page[text.len()..]);
        ensure!(net_log_names_h3(&file(lab, "net-log"))?, "the browser's network log has no h3");
        let line = access.lines().next().context("the server has logged nothing")?;
        let request: Value = serde_json::from_str(line)?;
        ensure!(request["request"]["proto"] == "HTTP/3.0", "the server saw {request}");
        Ok(())
    })
}

/// Whether Chromium's network log has the headers of an answer by HTTP/3.
fn net_log_names_h3(log: &str) -> Result<bool> {
    let log: Value = serde_json::from_slice(&std::fs::read(log)?)?;
    let kind = &log["constants"]["logEventTypes"]["HTTP3_HEADERS_DECODED"];
    ensure!(kind.is_number(), "the network log names no such event");
    let events = log["events"].as_array().context("events")?;
    Ok(events.iter().any(|event| event["type"] == *kind))
}

/// Serves a page with this text by HTTP/3. Returns the server and its log of requests.
fn serve_http3(lab: &Lab, text: &str) -> Result<(Process, PathBuf)> {
    let folder = lab.folder();
    let [site, access] = ["site", "access"].map(|name| folder.join(name));
    std::fs::create_dir_all(&site)?;
    let page = format!(
        "<!doctype html><pre>{text}</pre><p id=by></p><script>
document.getElementById('by').textContent = 'by ' + performance.getEntries()[0].nextHopProtocol
</script>"
    );
    std::fs::write(site.join("index.html"), page)?;
    let configuration = folder.join("Caddyfile");
    let (here, log) = (folder.display(), access.display());
    std::fs::write(
        &configuration,
        format!(
            "{{
	admin off
	auto_https off
}}
https://{SERVER_NAME} {{
	tls {here}/page.crt {here}/page.key
	root * {here}/site
	file_server
	log {{
		output file {log}
	}}
}}
"
        ),
    )?;
    let script = format!(
        "set -e; cd {here}
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 7 \
    -keyout page.key -out page.crt -subj /CN={SERVER_NAME}
openssl x509 -in page.crt -pubkey -noout | openssl pkey -pubin -outform der |
    openssl dgst -sha256 -binary | openssl base64 >key-hash"
    );
    let certify = lab.server.command("sh").args(["-c", &script]).output()?;
    let errors = String::from_utf8_lossy(&certify.stderr);
    ensure!(certify.status.success(), "openssl: {errors}");
    let caddy = Program::new("caddy", "caddy", lab.log("caddy"))
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(&configuration)
        .home(folder);
    Ok((listening(lab, caddy, 443).context("Debian package caddy")?, access))
}

/// The path of the tunnel's datagrams goes dark, while the tunnel carries a download.
#[test]
fn wireguard_survives_a_dark_carrier() -> Result<()> {
    let link = Link::new(8.0, 40);
    let plan = Plan::new().carrier("alpha", link).carrier("beta", link);
    in_both_modes(&plan, BOUND, |world| {
        // The programs have sockets there, under names that both modes use.
        scratch::mount_tmpfs(Path::new("/run"), "1m")?;
        let lab = &world.lab;
        let endpoint = SERVER.at(Family::V4, 51_820);
        let mut laptop = WireGuard::start(lab, &lab.passenger, "wg-laptop", 51_821)?;
        let mut office = WireGuard::start(lab, &lab.server, "wg-office", endpoint.port())?;
        laptop.set_up("10.9.0.2/24", &office, &format!("endpoint {endpoint}"))?;
        office.set_up("10.9.0.1/24", &laptop, "")?;
        let inside = SocketAddr::from(([10, 9, 0, 1], 7_000));
        let verdicts = Verdicts::default();
        verdicts.serve(&lab.server, inside)?;
        let exchange = Exchange { seed: 7, up: 500_000, down: 9_000_000, ending: Ending::Together };
        let stream = client::connect(&lab.passenger, inside)?;
        let transfer = std::thread::spawn(move || exchange.perform(stream));
        std::thread::sleep(Duration::from_millis(1_500));
        let [first, second] = downloaded(world)?;
        let (used, other) = if first > second { (0, 1) } else { (1, 0) };
        let before = downloaded(world)?[other];
        world.carriers[used].dark_for(lab, Duration::from_secs(5))?;
        let meanwhile = downloaded(world)?[other] - before;
        ensure!(!transfer.is_finished(), "the download ended before the carrier was back");
        transfer.join().map_err(|_| anyhow!("the download panicked"))??;
        verdicts.verdict(&exchange, LIMIT)?;
        println!("{first} and {second} bytes, then {meanwhile} over the other carrier");
        ensure!(meanwhile > 1_000_000, "the other carrier carried {meanwhile} bytes");
        for end in [&mut laptop, &mut office] {
            ensure!(end.process.exit()?.is_none(), "{} has ended", end.device);
        }
        Ok(())
    })
}

/// Bytes that the two carriers have delivered to the gateway.
fn downloaded(world: &World) -> Result<[u64; 2]> {
    world.carried()?.try_into().map_err(|carried| anyhow!("not two carriers: {carried:?}"))
}

/// One end of a tunnel.
struct WireGuard {
    device: &'static str,
    inside: Namespace,
    process: Process,
}

impl WireGuard {
    fn start(lab: &Lab, inside: &Namespace, device: &'static str, port: u16) -> Result<Self> {
        let mut process = Program::new(device, "wireguard-go", lab.log(device))
            .args(["--foreground", device])
            .start(inside)
            .context("Debian package wireguard-go")?;
        let socket = PathBuf::from(format!("/run/wireguard/{device}.sock"));
        process.wait_until("its socket", LIMIT, |_| socket.exists())?;
        let key = lab.folder().join(format!("{device}.key"));
        std::fs::write(&key, inside.tool("wg", "genkey")?)?;
        let key = key.display();
        inside.tool("wg", &format!("set {device} private-key {key} listen-port {port}"))?;
        Ok(Self { device, inside: inside.clone(), process })
    }

    fn set_up(&self, address: &str, peer: &WireGuard, endpoint: &str) -> Result<()> {
        let key = peer.inside.tool("wg", &format!("show {} public-key", peer.device))?;
        let (device, key) = (self.device, key.trim());
        let peer = format!("set {device} peer {key} allowed-ips 10.9.0.0/24 {endpoint}");
        self.inside.tool("wg", &peer)?;
        self.inside.ip(&format!("address add {address} dev {device}"))?;
        Ok(self.inside.ip(&format!("link set {device} up"))?)
    }
}

#[test]
fn streams_of_iperf3_lose_less_than_1_percent_in_both_directions() -> Result<()> {
    alone(|| {
        both_modes(&Plan::twins(), BOUND, |world| {
            let lab = &world.lab;
            let server = Program::new("iperf3-server", "iperf3", lab.log("iperf3-server"));
            let _server = listening(lab, server.args(["--server"]), 5_201)?;
            let client = "--udp --bidir --bitrate 2M --length 1200 --time 3 --json --client";
            let report = run(lab, "iperf3", &format!("{client} {}", SERVER.v4))?;
            let report: Value = serde_json::from_str(&report)?;
            for sum in ["sum_received", "sum_received_bidir_reverse"] {
                let sum = &report["end"][sum];
                println!("{sum}");
                let (packets, lost) = (sum["packets"].as_u64(), sum["lost_percent"].as_f64());
                // 625 in 3 s.
                ensure!(packets.is_some_and(|packets| packets > 500), "too few packets: {sum}");
                ensure!(lost.is_some_and(|percent| percent < 1.0), "packets lost: {sum}");
            }
            Ok(())
        })
    })
}

#[test]
fn name_servers_stun_and_sip_work_over_udp() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        names(&world.lab).context("dig")?;
        mapping(&world.lab).context("stun")?;
        calls(&world.lab).context("sipp")
    })
}

/// Asks a name server on a port that the gateway's own forwarder does not intercept.
fn names(lab: &Lab) -> Result<()> {
    let long = ["x".repeat(250), "y".repeat(250), "z".repeat(250)].join(",");
    let long = format!("{long},{long}");
    let server = Program::new("dnsmasq", "/usr/sbin/dnsmasq", lab.log("dnsmasq"))
        .args(["--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"])
        .args(["--port=5300", "--bind-interfaces", "--edns-packet-max=4096"])
        .args(Family::BOTH.map(|family| format!("--listen-address={}", SERVER.of(family))))
        .arg(format!("--address=/{SERVER_NAME}/{}", SERVER.v4))
        .arg(format!("--txt-record=long.polyrail.test,{long}"));
    let _server = listening(lab, server, 5_300).context("Debian package dnsmasq-base")?;
    for family in Family::BOTH {
        let dig = format!("@{} -p 5300 +tries=1 +ignore +bufsize=4096", SERVER.of(family));
        let short = run(lab, "dig", &format!("{dig} {SERVER_NAME} A"))?;
        ensure!(short.contains(&SERVER.v4.to_string()) && short.contains("(UDP)"), "{short}");
        let text = run(lab, "dig", &format!("{dig} long.polyrail.test TXT"))?;
        let whole = text.matches(&"z".repeat(250)).count() == 2;
        ensure!(whole && text.contains("(UDP)"), "{text}");
    }
    Ok(())
}

/// What STUN finds: one mapping to an address of the cloud, whatever the destination.
fn mapping(lab: &Lab) -> Result<()> {
    lab.server.ip(&format!("address add {OTHER_SERVER}/24 dev eth0"))?;
    let server = Program::new("stund", "/usr/sbin/stund", lab.log("stund"));
    let server = server.args(["-h", &SERVER.v4.to_string(), "-a", OTHER_SERVER]);
    let _server = listening(lab, server, 3_478).context("Debian package stun-server")?;
    let mapped = |server: &str| -> Result<SocketAddr> {
        // Test 1 asks for the mapped address.
        let answer = run(lab, "stun", &format!("{server} 1 -v -p 40000"))?;
        let line = answer.lines().find_map(|line| line.strip_prefix("MappedAddress = "));
        line.and_then(|address| address.parse().ok())
            .with_context(|| format!("no address: {answer}"))
    };
    let [first, second] = [SERVER.v4.to_string().as_str(), OTHER_SERVER].map(mapped);
    let (first, second) = (first?, second?);
    ensure!(first.ip() == IpAddr::from(CLOUD_INSIDE.v4), "mapped to {first}, not to the cloud");
    ensure!(first == second, "mapped to {first} for one server, to {second} for another");
    let nat = run(lab, "stun", &SERVER.v4.to_string())?;
    ensure!(nat.contains("Independent Mapping, Address Dependent Filter"), "{nat}");
    Ok(())
}

/// Twenty calls of half a second, by the scenarios that come with the program.
fn calls(lab: &Lab) -> Result<()> {
    let (address, own, calls) = (SERVER.v4, PASSENGER.v4, "-nostdin -m 20");
    let callee = Program::new("sipp-callee", "sipp", lab.log("sipp-callee"))
        .args(format!("-sn uas -i {address} -p 5060 {calls}").split_whitespace());
    let mut callee = listening(lab, callee, 5_060).context("Debian package sip-tester")?;
    let report =
        run(lab, "sipp", &format!("-sn uac {address}:5060 -i {own} -r 20 -d 500 {calls}"))?;
    let count = |name: &str| {
        let line = report.lines().rev().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split('|').next_back()?.trim().parse::<u32>().ok())
    };
    let ended = (count("Successful call"), count("Failed call"));
    ensure!(ended == (Some(20), Some(0)), "{ended:?} of 20 calls:\n{report}");
    let status = callee.wait(LIMIT)?;
    ensure!(status.success(), "the callee ended ({status}):\n{}", callee.log());
    Ok(())
}

/// Runs a program of the passenger, and returns all that it prints.
fn run(lab: &Lab, name: &str, arguments: &str) -> Result<String> {
    let log = lab.log(name);
    // The log of an earlier run would be continued.
    let _ = std::fs::remove_file(&log);
    let mut program = Program::new(name, name, log)
        .args(arguments.split_whitespace())
        .start(&lab.passenger)
        .context("`make setup` installs it")?;
    program.wait(LIMIT)?;
    Ok(program.log())
}

/// Starts a program in the server's namespace and waits until it listens on this port.
fn listening(lab: &Lab, program: Program, port: u16) -> Result<Process> {
    let mut process = program.start(&lab.server)?;
    process.wait_until("port", LIMIT, |_| {
        let sockets = lab.server.tool("ss", &format!("-Hltun sport = :{port}"));
        sockets.is_ok_and(|sockets| !sockets.is_empty())
    })?;
    Ok(process)
}

/// The path of a file in the scratch folder.
fn file(lab: &Lab, name: &str) -> String {
    lab.folder().join(name).display().to_string()
}

//! Runs the programs that change the kernel's rules (`nft`, `ip`), and reads the kernel's state.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use polyrail_model::Families;

use super::InterceptError;
use super::plan::{Hop, Hops};
use super::ruleset::{PROTOCOL, Script, Step, TABLE};

impl Script {
    /// Runs all commands.
    pub(super) fn run(&self) -> Result<(), InterceptError> {
        if self.routing_first {
            self.run_routing()?;
            nft(&self.ruleset)
        } else {
            nft(&self.ruleset)?;
            self.run_routing()
        }
    }

    /// Runs only the `ip` commands.
    pub(super) fn run_routing(&self) -> Result<(), InterceptError> {
        self.routing.iter().try_for_each(run)
    }
}

/// Runs one command; a harmless complaint counts as success.
fn run(step: &Step) -> Result<(), InterceptError> {
    let output = output(&step.line)?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || step.harmless.iter().any(|text| message.contains(text)) {
        Ok(())
    } else {
        Err(refused(&step.line, &message))
    }
}

/// Runs nftables commands as one transaction.
pub(super) fn nft(commands: &str) -> Result<(), InterceptError> {
    let failed = |source| InterceptError::Run { program: "nft".to_owned(), source };
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(commands.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(nft_refusal(&String::from_utf8_lossy(&output.stderr)))
}

/// The error that nft reports: a table that another process owns shows as "not permitted".
pub(super) fn nft_refusal(message: &str) -> InterceptError {
    if message.contains("not permitted") && table_is_owned() {
        return InterceptError::Held;
    }
    refused("nft -f -", message)
}

/// Whether a process owns our table.
pub(super) fn table_is_owned() -> bool {
    listed("table", "").is_some_and(|text| text.contains("flags owner"))
}

/// The families in a set of our table.
pub(super) fn members(set: &str) -> Option<Families> {
    let text = listed("set", set)?;
    Some(Families { v4: text.contains("ipv4"), v6: text.contains("ipv6") })
}

/// Whether a set of our table contains an element, both given as `set { element }`.
pub(super) fn contains(element: &str) -> bool {
    let output = output(&format!("nft get element {TABLE} {element}"));
    output.is_ok_and(|output| output.status.success())
}

/// The listing of our table or of a set in it.
fn listed(kind: &str, name: &str) -> Option<String> {
    let output = output(&format!("nft list {kind} {TABLE} {name}")).ok();
    let output = output.filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The next hops of the first interface that has any; checks that the kernel forwards.
pub(super) fn hops(interfaces: &[String], families: Families) -> Result<Hops, InterceptError> {
    for interface in interfaces {
        let hop = |family, wanted| if wanted { hop(family, interface) } else { Ok(None) };
        let (v4, v6) = (hop("-4", families.v4)?, hop("-6", families.v6)?);
        if v4.is_some() || v6.is_some() {
            let hops = Hops { interface: interface.clone(), v4, v6 };
            return check_forwarding(&hops).map(|()| hops);
        }
    }
    Err(InterceptError::DirectRoute(interfaces.join(" or ")))
}

fn check_forwarding(hops: &Hops) -> Result<(), InterceptError> {
    for (wanted, parameter) in [
        (hops.v4.is_some(), "net.ipv4.ip_forward"),
        (hops.v6.is_some(), "net.ipv6.conf.all.forwarding"),
    ] {
        let path = format!("/proc/sys/{}", parameter.replace('.', "/"));
        let on = fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
        if wanted && !on {
            return Err(InterceptError::Forwarding(parameter));
        }
    }
    Ok(())
}

fn hop(family: &str, interface: &str) -> Result<Option<Hop>, InterceptError> {
    let line = format!("ip {family} route show default table all dev {interface}");
    let output = output(&line)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        // A missing interface or family has no route.
        let absent = message.contains("Cannot find device") || message.contains("not supported");
        return if absent { Ok(None) } else { Err(refused(&line, &message)) };
    }
    Ok(parse_hop(&String::from_utf8_lossy(&output.stdout)))
}

/// The first default route of `ip route show` that is not ours and whose link is connected.
pub(super) fn parse_hop(routes: &str) -> Option<Hop> {
    let ours = format!(" proto {PROTOCOL} ");
    let useless = [ours.as_str(), " linkdown", " dead"];
    let is_useful = |route: &&str| !useless.iter().any(|mark| route.contains(mark));
    let mut routes = routes.lines().filter(is_useful);
    let route = routes.find(|route| route.starts_with("default "))?;
    let mut words = route.split_whitespace().skip_while(|word| *word != "via");
    let router = words.nth(1).and_then(|word| match word {
        "inet" | "inet6" => words.next()?.parse().ok(),
        address => address.parse().ok(),
    });
    Some(Hop { router })
}

fn output(line: &str) -> Result<Output, InterceptError> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    Command::new(program)
        .args(words)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| InterceptError::Run { program: program.to_owned(), source })
}

fn refused(command: &str, message: &str) -> InterceptError {
    let message = message.trim().lines().next().unwrap_or("no reason given").to_owned();
    InterceptError::Refused { command: command.to_owned(), message }
}

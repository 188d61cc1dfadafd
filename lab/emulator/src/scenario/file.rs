//! The file format of scenarios, and its conversion to a [`Scenario`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_model::Bytes;
use serde::Deserialize;
use toml::Spanned;

use super::quantity;
use super::{End, LINKS_MAX, LinkScenario, ParseError, Scenario};
use crate::link::{
    Blackout, BlackoutWindow, BurstLoss, LinkSpec, PathMtu, Policing, Probability, Rate, Reorder,
    Schedule,
};

/// The longest interface name in Linux.
const INTERFACE_CHARS_MAX: usize = 15;

/// The least MTU of IPv6 (RFC 8200, section 5).
const MTU_MIN_V6: u16 = 1280;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    #[serde(default = "one")]
    seed: u64,
    #[serde(default, deserialize_with = "quantity::maybe_duration")]
    duration: Option<Duration>,
    #[serde(default)]
    namespaces: RawNamespaces,
    link: Vec<RawLink>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNamespaces {
    near: Option<PathBuf>,
    far: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    name: Spanned<String>,
    #[serde(default = "ethernet")]
    mtu: u16,
    #[serde(default)]
    near: RawEnd,
    #[serde(default)]
    far: RawEnd,
    #[serde(default)]
    nat: bool,
    up: DirectionFile,
    down: DirectionFile,
    #[serde(default)]
    blackout: Vec<RawBlackout>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd {
    interface: Option<String>,
    #[serde(default)]
    addresses: Vec<IpNet>,
    namespace: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(try_from = "RawDirection")]
struct DirectionFile(LinkSpec);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDirection {
    #[serde(default = "unlimited", deserialize_with = "quantity::rate")]
    rate: Rate,
    #[serde(default)]
    rate_steps: Vec<RawRateStep>,
    #[serde(default, deserialize_with = "quantity::maybe_duration")]
    rate_repeat: Option<Duration>,
    #[serde(default, deserialize_with = "quantity::duration")]
    delay: Duration,
    #[serde(default)]
    delay_steps: Vec<RawDelayStep>,
    #[serde(default, deserialize_with = "quantity::maybe_duration")]
    delay_repeat: Option<Duration>,
    #[serde(default = "queue", deserialize_with = "quantity::queue")]
    queue: Bytes,
    #[serde(default)]
    loss: Probability,
    #[serde(default)]
    loss_steps: Vec<RawLossStep>,
    #[serde(default, deserialize_with = "quantity::maybe_duration")]
    loss_repeat: Option<Duration>,
    burst_loss: Option<BurstLoss>,
    #[serde(default)]
    duplicate: Probability,
    reorder: Option<RawReorder>,
    #[serde(default, deserialize_with = "quantity::policing")]
    udp: Policing,
    #[serde(default, deserialize_with = "quantity::path_mtu")]
    mtu: Option<u16>,
    #[serde(default)]
    mtu_silent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRateStep {
    #[serde(deserialize_with = "quantity::duration")]
    at: Duration,
    #[serde(deserialize_with = "quantity::rate")]
    rate: Rate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDelayStep {
    #[serde(deserialize_with = "quantity::duration")]
    at: Duration,
    #[serde(deserialize_with = "quantity::duration")]
    delay: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLossStep {
    #[serde(deserialize_with = "quantity::duration")]
    at: Duration,
    loss: Probability,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReorder {
    share: Probability,
    #[serde(deserialize_with = "quantity::duration")]
    delay: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBlackout {
    #[serde(deserialize_with = "quantity::duration")]
    start: Duration,
    #[serde(deserialize_with = "quantity::duration")]
    length: Duration,
    mode: Blackout,
    #[serde(default)]
    direction: RawSides,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RawSides {
    Up,
    Down,
    #[default]
    Both,
}

fn one() -> u64 {
    1
}

fn ethernet() -> u16 {
    1500
}

fn unlimited() -> Rate {
    Rate::Unlimited
}

fn queue() -> Bytes {
    LinkSpec::default().queue
}

/// Reads the text of a scenario file.
pub(super) fn parse(text: &str) -> Result<Scenario, ParseError> {
    let at = |span: Option<Range<usize>>, reason: String| ParseError {
        line: span.map(|span| 1 + text[..span.start].matches('\n').count()),
        reason,
    };
    let raw: RawScenario =
        toml::from_str(text).map_err(|e| at(e.span(), e.message().to_owned()))?;
    let RawScenario { seed, duration, namespaces: RawNamespaces { near, far }, link } = raw;
    if link.is_empty() || link.len() > LINKS_MAX {
        return Err(at(None, format!("{} links; 1 to {LINKS_MAX} are possible", link.len())));
    }
    let mut taken = BTreeSet::new();
    let mut links: Vec<LinkScenario> = Vec::new();
    for raw in link {
        let span = raw.name.span();
        let link = built(raw).map_err(|reason| at(Some(span.clone()), reason))?;
        if links.iter().any(|other| other.name == link.name) {
            return Err(at(Some(span), format!("two links are called {:?}", link.name)));
        }
        for (side, end) in [("near", &link.near), ("far", &link.far)] {
            if !taken.insert((side, end.namespace.clone(), end.interface.clone())) {
                let name = &end.interface;
                return Err(at(Some(span), format!("two interfaces {name:?} on the {side} side")));
            }
        }
        links.push(link);
    }
    Ok(Scenario { seed, duration, near, far, links })
}

fn built(raw: RawLink) -> Result<LinkScenario, String> {
    let RawLink { name, mtu, near, far, nat, up, down, blackout } = raw;
    let name = name.into_inner();
    let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > INTERFACE_CHARS_MAX || !name.chars().all(sound) {
        return Err(format!(
            "link name {name:?}: it must have 1 to {INTERFACE_CHARS_MAX} characters, \
             letters, digits, '-' or '_'"
        ));
    }
    let (near, far) = (end(near, &name)?, end(far, &name)?);
    let v6 = [&near, &far].iter().any(|end| end.addresses.iter().any(|a| a.addr().is_ipv6()));
    let least = if v6 { MTU_MIN_V6 } else { quantity::MTU_MIN_V4 };
    if mtu < least {
        return Err(format!("link {name}: an MTU of {mtu}; at least {least} is needed"));
    }
    let dark = |spec: LinkSpec, side| {
        let concerned = |b: &&RawBlackout| b.direction == side || b.direction == RawSides::Both;
        let windows: Vec<_> = blackout.iter().filter(concerned).map(window).collect();
        spec.with_blackouts(&windows).map_err(|e| format!("link {name}: blackouts: {e}"))
    };
    let (up, down) = (dark(up.0, RawSides::Up)?, dark(down.0, RawSides::Down)?);
    Ok(LinkScenario { name, mtu, near, far, nat, up, down })
}

fn window(raw: &RawBlackout) -> BlackoutWindow {
    BlackoutWindow { start: raw.start, length: raw.length, mode: raw.mode }
}

fn end(raw: RawEnd, link: &str) -> Result<End, String> {
    let interface = raw.interface.unwrap_or_else(|| link.to_owned());
    let sound = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
    let dots = interface == "." || interface == "..";
    if interface.is_empty()
        || interface.len() > INTERFACE_CHARS_MAX
        || dots
        || !interface.chars().all(sound)
    {
        return Err(format!(
            "link {link}: {interface:?} cannot be the name of an interface \
             (1 to {INTERFACE_CHARS_MAX} printable characters without '/', ':' and '%')"
        ));
    }
    Ok(End { interface, addresses: raw.addresses, namespace: raw.namespace })
}

impl TryFrom<RawDirection> for DirectionFile {
    type Error = String;

    fn try_from(raw: RawDirection) -> Result<Self, String> {
        let rates = raw.rate_steps.iter().map(|step| (step.at, step.rate));
        let delays = raw.delay_steps.iter().map(|step| (step.at, step.delay));
        let losses = raw.loss_steps.iter().map(|step| (step.at, step.loss));
        let losses = Schedule::new(raw.loss, losses, raw.loss_repeat)
            .map_err(|e| format!("loss_steps: {e}"))?;
        let mut spec = LinkSpec {
            rate: Schedule::new(raw.rate, rates, raw.rate_repeat)
                .map_err(|e| format!("rate_steps: {e}"))?,
            delay: Schedule::new(raw.delay, delays, raw.delay_repeat)
                .map_err(|e| format!("delay_steps: {e}"))?,
            queue: raw.queue,
            loss: raw.loss,
            burst_loss: raw.burst_loss,
            duplicate: raw.duplicate,
            reorder: raw
                .reorder
                .map(|reorder| Reorder { share: reorder.share, delay: reorder.delay }),
            udp: raw.udp,
            mtu: raw.mtu.map(|bytes| PathMtu { bytes, silent: raw.mtu_silent }),
            ..LinkSpec::default()
        };
        if !raw.loss_steps.is_empty() {
            spec = spec.with_losses(losses);
        }
        Ok(Self(spec))
    }
}

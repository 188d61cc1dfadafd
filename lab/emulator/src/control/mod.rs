//! The live control of a running emulator: lines of text over a Unix stream socket.
//!
//! ```text
//! down LINK [hold|drop]      a blackout from now on (default: drop)
//! up LINK                    the end of that blackout
//! set LINK rate 5 Mbit/s     also `unlimited`
//! set LINK delay 40 ms
//! set LINK loss 0.05
//! set LINK queue 64 KiB
//! set LINK burst-loss 0.01 0.25   enter and leave; then loss and loss_good; or `off`
//! set LINK reorder 0.01 5 ms      also `off`
//! set LINK udp 1 Mbit/s           also `free`, `blocked`
//! set LINK mtu 1280               also `1280 silent`, `off`
//! set LINK seed 7                 restarts random faults
//! set NAME nat rebind             also `on`, `off`
//! stats
//! ```
//! `LINK` is a link's name, or `NAME.up` or `NAME.down` for one direction. Each line is answered by
//! one line of JSON: `{"ok":true}`, `{"error":"..."}`, or for `stats` `{"links":[...]}`.

mod server;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::link::{Blackout, BurstLoss, PathMtu, Probability, Reorder, Setting};
use crate::scenario::{parse_duration, parse_path_mtu, parse_policing, parse_rate};

pub use crate::packet::nat::Order as NatOrder;

pub(crate) use server::Server;

/// The time limit of an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start a blackout.
    Down(Target, Blackout),
    /// End it.
    Up(Target),
    /// Change a property for good.
    Set(Target, Setting),
    /// Change the NAT of a link, given by its name.
    Nat(String, NatOrder),
    /// Report all counters.
    Stats,
}

/// Which link, and which of its directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The link's name.
    pub link: String,
    /// The direction from near to far.
    pub up: bool,
    /// The direction from far to near.
    pub down: bool,
}

/// The reason why a line is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseCommandError(String);

impl FromStr for Command {
    type Err = ParseCommandError;

    fn from_str(line: &str) -> Result<Self, ParseCommandError> {
        let wrong = |text: String| Err(ParseCommandError(text));
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["stats"] => Ok(Self::Stats),
            ["up", link] => Ok(Self::Up(target(link)?)),
            ["down", link] | ["down", link, "drop"] => {
                Ok(Self::Down(target(link)?, Blackout::Drop))
            }
            ["down", link, "hold"] => Ok(Self::Down(target(link)?, Blackout::Hold)),
            ["down", _, mode] => wrong(format!("{mode:?} is neither \"hold\" nor \"drop\"")),
            ["set", link, "nat", order] => Ok(Self::Nat((*link).to_owned(), nat_order(order)?)),
            ["set", link, property, value @ ..] if !value.is_empty() => {
                Ok(Self::Set(target(link)?, setting(property, &value.join(" "))?))
            }
            _ => wrong(format!(
                "{line:?} is none of: down LINK [hold|drop], up LINK, \
                 set LINK {PROPERTIES} VALUE, set NAME nat on|off|rebind, stats"
            )),
        }
    }
}

impl Target {
    /// Both directions of a link.
    pub fn whole(link: &str) -> Self {
        Self { link: link.to_owned(), up: true, down: true }
    }

    /// The places of the target's directions, in a list of pairs (up first) in the order of
    /// `names`.
    pub(crate) fn places(&self, names: &[String]) -> Result<[Option<usize>; 2], String> {
        let link = names.iter().position(|name| *name == self.link);
        let link = link
            .ok_or_else(|| format!("no link {:?}; there are: {}", self.link, names.join(", ")))?;
        Ok([self.up.then_some(2 * link), self.down.then_some(2 * link + 1)])
    }
}

fn target(word: &str) -> Result<Target, ParseCommandError> {
    let (link, up, down) = match word.rsplit_once('.') {
        None => (word, true, true),
        Some((link, "up")) => (link, true, false),
        Some((link, "down")) => (link, false, true),
        Some(_) => {
            return Err(ParseCommandError(format!(
                "{word:?}: after the dot of a link comes \"up\" or \"down\""
            )));
        }
    };
    Ok(Target { link: link.to_owned(), up, down })
}

fn nat_order(word: &str) -> Result<NatOrder, ParseCommandError> {
    match word {
        "on" => Ok(NatOrder::On),
        "off" => Ok(NatOrder::Off),
        "rebind" => Ok(NatOrder::Rebind),
        _ => Err(ParseCommandError(format!("{word:?} is none of: on, off, rebind"))),
    }
}

fn setting(property: &str, value: &str) -> Result<Setting, ParseCommandError> {
    let read = match property {
        "rate" => parse_rate(value).map(Setting::Rate).map_err(|e| e.to_string()),
        "delay" => parse_duration(value).map(Setting::Delay).map_err(|e| e.to_string()),
        "queue" => value.parse().map(Setting::Queue).map_err(|e| format!("{e}")),
        "loss" => share(value).map(Setting::Loss),
        "burst-loss" => burst_loss(value).map(Setting::BurstLoss),
        "reorder" => reorder(value).map(Setting::Reorder),
        "udp" => parse_policing(value).map(Setting::Udp).map_err(|e| e.to_string()),
        "mtu" => mtu(value).map(Setting::Mtu),
        "seed" => value.parse().map(Setting::Seed).map_err(|_| format!("{value:?} is not a seed")),
        _ => Err(format!("{property:?} is none of: {PROPERTIES}, nat")),
    };
    read.map_err(ParseCommandError)
}

/// The properties that `set` changes.
const PROPERTIES: &str = "rate|delay|loss|queue|burst-loss|reorder|udp|mtu|seed";

fn share(text: &str) -> Result<Probability, String> {
    let read = text.parse().ok().and_then(Probability::new);
    read.ok_or_else(|| format!("{text:?} is not a share between 0 and 1"))
}

/// `ENTER LEAVE [LOSS [LOSS_GOOD]]` or `off`.
fn burst_loss(value: &str) -> Result<Option<BurstLoss>, String> {
    if value == "off" {
        return Ok(None);
    }
    let shares = value.split(' ').map(share).collect::<Result<Vec<_>, _>>()?;
    let (enter, leave, loss, loss_good) = match shares.as_slice() {
        [enter, leave] => (enter, leave, &Probability::ALWAYS, &Probability::NEVER),
        [enter, leave, loss] => (enter, leave, loss, &Probability::NEVER),
        [enter, leave, loss, loss_good] => (enter, leave, loss, loss_good),
        _ => return Err(format!("{value:?} is neither off nor ENTER LEAVE [LOSS [LOSS_GOOD]]")),
    };
    let (enter, leave, loss, loss_good) = (*enter, *leave, *loss, *loss_good);
    Ok(Some(BurstLoss { enter, leave, loss, loss_good }))
}

/// `SHARE DELAY` or `off`.
fn reorder(value: &str) -> Result<Option<Reorder>, String> {
    if value == "off" {
        return Ok(None);
    }
    let (part, delay) = value
        .split_once(' ')
        .ok_or_else(|| format!("{value:?} is neither off nor SHARE DELAY, such as 0.01 5 ms"))?;
    let delay = parse_duration(delay).map_err(|e| e.to_string())?;
    Ok(Some(Reorder { share: share(part)?, delay }))
}

/// `BYTES [silent]` or `off`.
fn mtu(value: &str) -> Result<Option<PathMtu>, String> {
    if value == "off" {
        return Ok(None);
    }
    let (bytes, silent) = match value.split_once(' ') {
        None => (value, false),
        Some((bytes, "silent")) => (bytes, true),
        Some((_, other)) => return Err(format!("{other:?} after an MTU; only silent may stand")),
    };
    parse_path_mtu(bytes).map(|bytes| Some(PathMtu { bytes, silent })).map_err(|e| e.to_string())
}

/// A connection to a running emulator's control socket.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket.
    ///
    /// # Errors
    /// No emulator listens there.
    pub fn connect(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one line and waits for its answer, at most 10 s.
    ///
    /// # Errors
    /// The connection broke, or the emulator answered with an error.
    pub fn command(&mut self, line: &str) -> std::io::Result<serde_json::Value> {
        self.stream.get_mut().write_all(format!("{}\n", line.trim_end()).as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        match answer.get("error") {
            Some(error) => Err(std::io::Error::other(error.as_str().unwrap_or("?").to_owned())),
            None => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Policing, Rate};
    use polyrail_model::{Bitrate, Bytes};

    fn both(link: &str) -> Target {
        Target { link: link.to_owned(), up: true, down: true }
    }

    #[test]
    fn commands_are_read() {
        let up = Target { down: false, ..both("a") };
        let rate = Setting::Rate(Rate::Limited(Bitrate::from_mbps(5.0)));
        for (line, command) in [
            ("stats\n", Command::Stats),
            ("down a", Command::Down(both("a"), Blackout::Drop)),
            ("down a.up hold", Command::Down(up.clone(), Blackout::Hold)),
            ("  up   a.up ", Command::Up(up)),
            ("set a rate 5 Mbit/s", Command::Set(both("a"), rate)),
            ("set a rate unlimited", Command::Set(both("a"), Setting::Rate(Rate::Unlimited))),
            (
                "set a delay 40ms",
                Command::Set(both("a"), Setting::Delay(Duration::from_millis(40))),
            ),
            ("set a queue 64 KiB", Command::Set(both("a"), Setting::Queue(Bytes::from_kib(64)))),
            ("set a loss 1", Command::Set(both("a"), Setting::Loss(Probability::ALWAYS))),
            ("set a nat on", Command::Nat("a".to_owned(), NatOrder::On)),
            ("set a nat off", Command::Nat("a".to_owned(), NatOrder::Off)),
            ("set a nat rebind", Command::Nat("a".to_owned(), NatOrder::Rebind)),
        ] {
            assert_eq!(line.parse(), Ok(command), "{line}");
        }
    }

    #[test]
    fn faults_are_read() {
        let p = |value| Probability::new(value).unwrap();
        let burst = |loss, loss_good| {
            let (loss, loss_good) = (p(loss), p(loss_good));
            Setting::BurstLoss(Some(BurstLoss { enter: p(0.1), leave: p(0.5), loss, loss_good }))
        };
        let mtu = |silent| Setting::Mtu(Some(PathMtu { bytes: 1280, silent }));
        let limited = Policing::Limited(Bitrate::from_mbps(1.0));
        let delay = Duration::from_millis(5);
        for (rest, setting) in [
            ("burst-loss 0.1 0.5", burst(1.0, 0.0)),
            ("burst-loss 0.1 0.5 0.3", burst(0.3, 0.0)),
            ("burst-loss 0.1 0.5  0.3 0.01", burst(0.3, 0.01)),
            ("burst-loss off", Setting::BurstLoss(None)),
            ("reorder 0.2 5 ms", Setting::Reorder(Some(Reorder { share: p(0.2), delay }))),
            ("reorder off", Setting::Reorder(None)),
            ("udp free", Setting::Udp(Policing::Free)),
            ("udp blocked", Setting::Udp(Policing::Blocked)),
            ("udp 1 Mbit/s", Setting::Udp(limited)),
            ("mtu 1280", mtu(false)),
            ("mtu 1280 silent", mtu(true)),
            ("mtu off", Setting::Mtu(None)),
            ("seed 7", Setting::Seed(7)),
        ] {
            let read = format!("set a {rest}").parse();
            assert_eq!(read, Ok(Command::Set(both("a"), setting)), "{rest}");
        }
    }

    #[test]
    fn invalid_command_is_rejected_with_a_reason() {
        for (line, reason) in [
            ("", "none of: down LINK"),
            ("down", "none of: down LINK"),
            ("down a never", "neither \"hold\" nor \"drop\""),
            ("up a.left", "\"up\" or \"down\""),
            ("set a rate fast", "is not \"unlimited\" or a rate"),
            ("set a rate", "none of: down LINK"),
            ("set a loss 2", "between 0 and 1"),
            ("set a colour red", "rate|delay|loss|queue"),
            ("set a burst-loss 0.1", "ENTER LEAVE"),
            ("set a burst-loss 0.1 2", "\"2\" is not a share"),
            ("set a reorder 0.1", "SHARE DELAY"),
            ("set a reorder 0.1 5", "is not a time"),
            ("set a udp slow", "\"free\", \"blocked\" or a rate"),
            ("set a mtu 100", "an MTU of 576 to 65535"),
            ("set a mtu 1280 loud", "only silent"),
            ("set a seed -1", "is not a seed"),
            ("set a nat reset", "on, off, rebind"),
        ] {
            let error = line.parse::<Command>().unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}

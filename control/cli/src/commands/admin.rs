//! `polyrail status | paths | path | scheduler | drain | reload | events`: requests to a running
//! daemon.

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand};
use polyrail_admin::client::{AdminClient, AdminResponse, ClientError, path_address};
use polyrail_admin::{DRAIN_S_MAX, Drain, PathChange, PathState, RestartWish, Scheduler};
use polyrail_config::{
    Cap, CapAction, CapBytes, CarrierRole, ChainSpec, Mode, RateLimit, parse_duration,
};
use serde::Deserialize;

use super::shown;

/// The daemon's socket and the format of its answer.
#[derive(Args)]
pub(crate) struct Connection {
    /// The admin socket [default: /run/polyrail/gateway.sock, else cloud.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the daemon's JSON answer
    #[arg(long)]
    pub(super) json: bool,
}

/// `polyrail paths`.
#[derive(Args)]
pub(crate) struct Paths {
    /// Show one path with its measurements and connections
    name: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail path`.
#[derive(Subcommand)]
pub(crate) enum PathOrder {
    /// Change a path until the daemon ends or a reload changes the same key
    Set(Set),
    /// Restart a path on a fresh connection
    Restart {
        /// The path's name, as `polyrail paths` shows it
        name: String,
        /// Its modem changed the cell, for programs that watch modems
        #[arg(long)]
        cell: bool,
        #[command(flatten)]
        connection: Connection,
    },
}

/// `polyrail path set`.
#[derive(Args)]
#[command(group(
    ArgGroup::new("wish").required(true).multiple(true)
        .args(["mode", "enable", "disable", "role", "cap", "rate_limit"])
))]
pub(crate) struct Set {
    /// The path's name, as `polyrail paths` shows it
    name: String,
    /// The mode of its tunnels: auto, quic or tls
    #[arg(long)]
    mode: Option<Mode>,
    /// Which carriers go first: primary, secondary, backup or never
    #[arg(long, value_parser = role)]
    role: Option<CarrierRole>,
    /// The data that it may carry in a month, as `50 GB`, or none
    #[arg(long, value_name = "AMOUNT", value_parser = or_none::<CapBytes>)]
    cap: Option<Wish<CapBytes>>,
    /// The day of the month on which the cap's period begins
    #[arg(long, value_name = "DAY", default_value_t = 1, requires = "cap")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=28))]
    reset_day: u8,
    /// What happens at the cap: stop, backup or limit:RATE
    #[arg(long, value_name = "ACTION", default_value_t = CapAction::Stop, requires = "cap")]
    at: CapAction,
    /// The most that each side sends over it, as `20 Mbit/s`, or none
    #[arg(long, value_name = "RATE", value_parser = or_none::<RateLimit>)]
    rate_limit: Option<Wish<RateLimit>>,
    /// Enable it
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable it
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail scheduler`.
#[derive(Args)]
pub(crate) struct SetScheduler {
    /// A chain's name, or schedulerlets with commas between them: `min_rtt, blest(lambda=1.1)`
    #[arg(value_name = "CHAIN")]
    chain: ChainSpec,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail drain`.
#[derive(Args)]
pub(crate) struct DrainOrder {
    /// When the remaining flows are reset, as 90s, 5m or 2h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = limit)]
    limit: Drain,
    #[command(flatten)]
    connection: Connection,
}

fn limit(text: &str) -> Result<Drain, String> {
    let wrong = || format!("{text:?} is no time from 1s to 24h, such as 90s, 5m or 2h");
    let limit_s = parse_duration(text).ok_or_else(wrong)?.as_secs();
    (1..=DRAIN_S_MAX).contains(&limit_s).then_some(Drain { limit_s }).ok_or_else(wrong)
}

/// `polyrail events`.
#[derive(Args)]
pub(crate) struct Events {
    /// Wait for new events after the buffered ones
    #[arg(long, short)]
    follow: bool,
    /// Skip events up to this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
    #[command(flatten)]
    connection: Connection,
}

/// Shows the daemon's status.
pub(crate) fn status(connection: &Connection, out: &mut dyn Write) -> anyhow::Result<bool> {
    let answer = connection.client()?.get("/v1/status")?;
    connection.show(&answer, out, shown::status)
}

/// Shows the paths.
pub(crate) fn paths(arguments: &Paths, out: &mut dyn Write) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Listed {
        paths: Vec<PathState>,
    }
    let connection = &arguments.connection;
    let client = connection.client()?;
    match &arguments.name {
        None => connection
            .show(&client.get("/v1/paths")?, out, |Listed { paths }, out| shown::paths(paths, out)),
        Some(name) => connection.show(&client.get(&path_address(name))?, out, shown::path),
    }
}

/// Changes a path.
pub(crate) fn path(order: PathOrder, out: &mut dyn Write) -> anyhow::Result<bool> {
    let (name, change, connection) = match order {
        PathOrder::Set(set) => {
            let change = set.change();
            (set.name, change, set.connection)
        }
        PathOrder::Restart { name, cell, connection } => {
            let wish = if cell { RestartWish::Cell } else { RestartWish::Wanted };
            (name, PathChange { restart: Some(wish), ..PathChange::default() }, connection)
        }
    };
    let answer = connection.client()?.put(&path_address(&name), &change)?;
    connection
        .show(&answer, out, |path: &PathState, out| shown::paths(std::slice::from_ref(path), out))
}

/// A value, or `none`.
#[derive(Clone, Copy)]
enum Wish<T> {
    None,
    Some(T),
}

impl<T> Wish<T> {
    fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::Some(value) => Some(value),
        }
    }
}

fn or_none<T: FromStr<Err = String>>(text: &str) -> Result<Wish<T>, String> {
    if text == "none" { Ok(Wish::None) } else { text.parse().map(Wish::Some) }
}

fn role(text: &str) -> Result<CarrierRole, String> {
    let all =
        [CarrierRole::Primary, CarrierRole::Secondary, CarrierRole::Backup, CarrierRole::Never];
    let found = all.into_iter().find(|role| role.as_str() == text);
    found.ok_or_else(|| "one of primary, secondary, backup and never".to_owned())
}

impl Set {
    fn change(&self) -> PathChange {
        let &Self { mode, enable, disable, role, cap, reset_day, at, rate_limit, .. } = self;
        let cap = cap.map(|cap| cap.value().map(|bytes| Cap { bytes, reset_day, at }));
        PathChange {
            enabled: (enable || disable).then_some(enable),
            mode,
            role,
            cap,
            rate_limit: rate_limit.map(Wish::value),
            restart: None,
        }
    }
}

/// Changes the scheduler of the daemon's direction of sending.
pub(crate) fn scheduler(arguments: SetScheduler, out: &mut dyn Write) -> anyhow::Result<bool> {
    let SetScheduler { chain, connection } = arguments;
    let answer = connection.client()?.put("/v1/scheduler", &Scheduler { chain })?;
    connection.show(&answer, out, |scheduler: &Scheduler, out| {
        writeln!(out, "scheduler: {}", scheduler.chain.names().join(", "))
    })
}

/// Drains the daemon.
pub(crate) fn drain(arguments: &DrainOrder, out: &mut dyn Write) -> anyhow::Result<bool> {
    let answer = arguments.connection.client()?.drain(arguments.limit)?;
    arguments.connection.show(&answer, out, shown::drain)
}

/// Reloads the daemon's configuration.
pub(crate) fn reload(connection: &Connection, out: &mut dyn Write) -> anyhow::Result<bool> {
    let answer = connection.client()?.reload()?;
    connection.show(&answer, out, shown::reloaded)
}

/// Shows events; returns false if the daemon disconnected this reader as too slow.
pub(crate) fn events(arguments: &Events, out: &mut dyn Write) -> anyhow::Result<bool> {
    let connection = &arguments.connection;
    let mut in_time = true;
    let take = |line: &str| {
        let event = serde_json::from_str(line).unwrap_or_default();
        in_time &= !shown::is_cut_off(&event);
        match connection.json {
            true => writeln!(out, "{line}")?,
            false => shown::event(&event, out)?,
        }
        out.flush()?;
        anyhow::Ok(true)
    };
    connection.client()?.events(arguments.since, arguments.follow, take)?;
    Ok(in_time)
}

/// Whether the error is that no daemon listens.
pub(crate) fn is_not_running(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::NotRunning(_)))
}

impl Connection {
    pub(super) fn client(&self) -> anyhow::Result<AdminClient> {
        Ok(AdminClient::new(self.socket.as_deref())?)
    }

    pub(super) fn show<T>(
        &self,
        answer: &AdminResponse<T>,
        out: &mut dyn Write,
        show: impl Fn(&T, &mut dyn Write) -> std::io::Result<()>,
    ) -> anyhow::Result<bool> {
        match self.json {
            true => write!(out, "{}", answer.text)?,
            false => show(&answer.value, out)?,
        }
        Ok(true)
    }
}

//! `polyrail status | paths | path | reload | events`: questions and orders to a running daemon.

use std::io::Write;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use polyrail_config::Mode;
use polyrail_control::admin::client::{Answer, Client, ClientError};
use polyrail_control::admin::{PathChange, RestartWish};
use polyrail_scheduler::ChainSpec;

use super::shown;

/// Where the daemon is, and how its answer is shown.
#[derive(Args)]
pub(crate) struct Connection {
    /// The daemon's admin socket; left out: /run/polyrail/gateway.sock, else cloud.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the daemon's answer as it is
    #[arg(long)]
    json: bool,
}

/// `polyrail paths`.
#[derive(Args)]
pub(crate) struct Paths {
    /// Show one path with all its figures and connections
    name: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail path`.
#[derive(Subcommand)]
pub(crate) enum PathOrder {
    /// Change a path until the daemon ends or a reload changes the same key
    Set(Set),
    /// Give a path a fresh connection now
    Restart {
        /// The path's name, as `polyrail paths` shows it
        name: String,
        /// Its modem is in another cell: for programs that watch modems
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
        .args(["mode", "enable", "disable", "scheduler"])
))]
pub(crate) struct Set {
    /// The path's name, as `polyrail paths` shows it
    name: String,
    /// How its tunnels travel: auto, quic or tls
    #[arg(long)]
    mode: Option<Mode>,
    /// Let it be used
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Do not let it be used
    #[arg(long)]
    disable: bool,
    /// The chain of this node's direction of sending, over all paths: a name, or schedulerlets
    /// with commas between them, as `min_rtt, blest(lambda=1.1)`
    #[arg(long, value_name = "CHAIN")]
    scheduler: Option<ChainSpec>,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail events`.
#[derive(Args)]
pub(crate) struct Events {
    /// Wait for more when all that is remembered was shown
    #[arg(long, short)]
    follow: bool,
    /// Begin behind the event of this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
    #[command(flatten)]
    connection: Connection,
}

/// Shows how the daemon is.
pub(crate) fn status(connection: &Connection, out: &mut dyn Write) -> anyhow::Result<bool> {
    let answer = connection.client()?.status()?;
    connection.show(&answer, out, shown::status)
}

/// Shows how the paths are.
pub(crate) fn paths(arguments: &Paths, out: &mut dyn Write) -> anyhow::Result<bool> {
    let connection = &arguments.connection;
    match &arguments.name {
        None => connection
            .show(&connection.client()?.paths()?, out, |paths, out| shown::paths(paths, out)),
        Some(name) => connection.show(&connection.client()?.path(name)?, out, shown::path),
    }
}

/// Changes a path.
pub(crate) fn path(order: PathOrder, out: &mut dyn Write) -> anyhow::Result<bool> {
    let (name, change, connection) = match order {
        PathOrder::Set(Set { name, mode, enable, disable, scheduler, connection }) => {
            let enabled = (enable || disable).then_some(enable);
            (name, PathChange { enabled, mode, chain: scheduler, restart: None }, connection)
        }
        PathOrder::Restart { name, cell, connection } => {
            let wish = if cell { RestartWish::Cell } else { RestartWish::Wanted };
            (name, PathChange { restart: Some(wish), ..PathChange::default() }, connection)
        }
    };
    let answer = connection.client()?.set_path(&name, &change)?;
    connection.show(&answer, out, |path, out| shown::paths(std::slice::from_ref(path), out))
}

/// Lets the daemon read its configuration again.
pub(crate) fn reload(connection: &Connection, out: &mut dyn Write) -> anyhow::Result<bool> {
    let answer = connection.client()?.reload()?;
    connection.show(&answer, out, shown::reloaded)
}

/// Shows what happened, and what happens; false when this reader was too slow for the daemon.
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

/// Whether the trouble is that no daemon answers.
pub(crate) fn is_not_running(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::NotRunning { .. }))
}

impl Connection {
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.socket.as_deref())?)
    }

    pub(super) fn show<T>(
        &self,
        answer: &Answer<T>,
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

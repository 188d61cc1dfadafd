//! `polyrail linkdb shared`: the database in PostgreSQL that several clouds share.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use polyrail_shared::{Server, VERSION, migrate};

/// `polyrail linkdb shared`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create the schema, or bring it to the version of this program; run it as the owner
    Migrate(Migrate),
}

/// `polyrail linkdb shared migrate`.
#[derive(Args)]
pub(crate) struct Migrate {
    /// `postgres://OWNER@HOST/DATABASE`
    #[arg(long)]
    url: String,
    /// A file with the owner's password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The authority of the server's certificate, PEM; without it there is no encryption
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Keep handovers and rates for this many days [default: as before, at first 365]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    retention_days: Option<u32>,
}

/// Runs the command.
pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<bool> {
    let Command::Migrate(Migrate { url, password_file, ca, retention_days }) = command;
    let server = Server { url, password_file, ca };
    let before = migrate(&server, retention_days).context("the shared database")?;
    match before {
        0 => writeln!(out, "created schema {VERSION}, and the role polyrail_cloud")?,
        VERSION => writeln!(out, "the schema has version {VERSION} already")?,
        _ => writeln!(out, "schema {before} became {VERSION}")?,
    }
    Ok(true)
}

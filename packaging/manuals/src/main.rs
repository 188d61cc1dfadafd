//! `polyrail-manuals FOLDER` writes the manual pages and the shells' completions of all programs.
//!
//! Both come from the definitions of the command lines, so they cannot differ from them.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("name a folder")?;
    let command = polyrail_cli::command_line();
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), &folder)?;
    complete(command, &folder)?;
    for daemon in [
        polyrail_gateway::command_line::Arguments::command(),
        polyrail_cloud::command_line::Arguments::command(),
    ] {
        // Section 8 is that of daemons.
        let path = folder.join(format!("{}.8", daemon.get_name()));
        let mut text = Vec::new();
        Man::new(daemon.clone()).section("8").render(&mut text)?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        complete(daemon, &folder)?;
    }
    Ok(())
}

/// Writes the completions of a command.
fn complete(mut command: Command, folder: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, folder)?;
    }
    Ok(())
}

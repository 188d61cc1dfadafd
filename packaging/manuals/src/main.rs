//! `polyrail-manuals FOLDER` writes the manual pages and the shells' completions of all programs.
//!
//! Both come from the definitions of the command lines, so they cannot differ from them.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("name a folder")?;
    // Section 1: commands of users; section 8: daemons.
    for (command, section) in [
        (polyrail_cli::command_line(), "1"),
        (polyrail_gateway::command_line::Arguments::command(), "8"),
        (polyrail_cloud::command_line::Arguments::command(), "8"),
    ] {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command.clone(), &name, &folder)?;
        }
        for page in pages(command) {
            let path = folder.join(format!("{}.{section}", page.get_name()));
            let mut text = Vec::new();
            Man::new(page).section(section).render(&mut text)?;
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The command and its subcommands at all depths, each under its full name, as `polyrail-pki-init`.
fn pages(mut command: Command) -> Vec<Command> {
    command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    let mut waiting = vec![command];
    while let Some(command) = waiting.pop() {
        let name = command.get_name().to_owned();
        waiting.extend(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(|sub| {
            let full = format!("{name}-{}", sub.get_name());
            sub.clone().display_name(full.clone()).name(full)
        }));
        pages.push(command);
    }
    pages
}

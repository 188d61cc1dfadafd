//! Where the programs under test are.
//!
//! `make build` puts them into the folder of the current executable's profile. Tests run in its
//! subfolder `deps`. `POLYRAIL_BIN_DIR` names another folder. `make previous` puts the daemons of
//! an earlier commit into the subfolder `previous`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::lab::Side;

/// Overrides the folder of the programs under test.
pub const FOLDER_VARIABLE: &str = "POLYRAIL_BIN_DIR";

/// The programs under test, by name.
const NAMES: [&str; 4] = ["polyrail", "polyrail-gateway", "polyrail-cloud", "polyrail-emulator"];

/// The subfolder with the daemons of an earlier commit.
const PREVIOUS: &str = "previous";

/// The tools with which a world without interception is set up and used.
const TOOLS: [&str; 4] = ["/usr/bin/ip", "/usr/sbin/tc", "/usr/sbin/nginx", "/usr/bin/curl"];

/// The programs under test.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
    previous: Option<Side>,
}

/// The daemons of an earlier commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Previous {
    /// Built.
    Built {
        /// Their commit.
        commit: String,
        /// The golden vectors of the wire are those of this tree.
        same_wire: bool,
    },
    /// Not built for this reason.
    Skipped(String),
}

impl Programs {
    /// Finds the folder and checks that every program is in it.
    ///
    /// # Errors
    /// A program is missing; the error names the command that builds it.
    pub fn find() -> Result<Programs> {
        let folder = match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => own_folder()?,
        };
        let programs = Programs { folder, previous: None };
        for name in NAMES {
            if !programs.path(name).is_file() {
                bail!(
                    "{name} is not in {}: build it first with `make build`, \
                     or name the folder in {FOLDER_VARIABLE}",
                    programs.folder.display()
                );
            }
        }
        Ok(programs)
    }

    /// The path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of a daemon.
    pub fn daemon(&self, side: Side) -> PathBuf {
        let name = format!("polyrail-{}", side.name());
        if self.previous == Some(side) {
            return self.folder.join(PREVIOUS).join(name);
        }
        self.path(&name)
    }

    /// Uses the daemon of an earlier commit on one side.
    pub fn with_previous(mut self, side: Option<Side>) -> Programs {
        self.previous = side;
        self
    }

    /// The daemons of an earlier commit.
    ///
    /// # Errors
    /// `make previous` has not run.
    pub fn previous(&self) -> Result<Previous> {
        let read = |name| std::fs::read_to_string(self.folder.join(PREVIOUS).join(name));
        if let Ok(reason) = read("skipped") {
            return Ok(Previous::Skipped(reason.trim().to_owned()));
        }
        let commit = read("commit").context("no daemons of an earlier commit: `make previous`")?;
        let same_wire = read("wire").is_ok_and(|words| words.trim() == "same");
        Ok(Previous::Built { commit: commit.trim().to_owned(), same_wire })
    }

    /// The paths of all of them and of their tools: what a guest needs for a world.
    pub fn with_tools(&self) -> Vec<PathBuf> {
        let programs = NAMES.iter().map(|name| self.path(name));
        programs.chain(TOOLS.map(PathBuf::from)).collect()
    }
}

fn own_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("own program")?;
    let folder = program.parent().context("own folder")?;
    let inside = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    let folder = if inside { folder.parent().context("profile folder")? } else { folder };
    Ok(Path::to_path_buf(folder))
}

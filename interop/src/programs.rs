//! Where the programs under test are.
//!
//! They are built before the tests run (`make build`), in the folder of the current executable's
//! profile: tests live in its `deps` folder, the harness binaries in it. `POLYRAIL_BIN_DIR` names
//! another one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Overrides the folder of the programs under test.
pub const FOLDER_VARIABLE: &str = "POLYRAIL_BIN_DIR";

/// The programs under test.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Finds the folder and checks that every program is in it.
    ///
    /// # Errors
    /// When a program is missing, with the command that builds it.
    pub fn find() -> Result<Programs> {
        let folder = match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => own_folder()?,
        };
        let programs = Programs { folder };
        for name in ["polyrail", "polyrail-gateway", "polyrail-cloud", "polyrail-emulator"] {
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
}

fn own_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("own program")?;
    let folder = program.parent().context("own folder")?;
    let inside = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    let folder = if inside { folder.parent().context("profile folder")? } else { folder };
    Ok(Path::to_path_buf(folder))
}

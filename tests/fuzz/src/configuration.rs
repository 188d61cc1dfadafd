//! Configuration files of both daemons, through the parser and the whole check.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::Path;

use polyrail_admin::reload::changes;
use polyrail_config::check::check;
use polyrail_config::{CloudConfig, Config, ConfigError, GatewayConfig, Tables};
use polyrail_identity::NodeRole;
use tempfile::NamedTempFile;

/// Checks the text as a file of each daemon. A refusal names a place in the text.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    parse(GatewayConfig::parse(text, Path::new("folder/gateway.toml")), text);
    parse(CloudConfig::parse(text, Path::new("folder/cloud.toml")), text);
    FILE.with_borrow_mut(|file| {
        // The file is read from its beginning, and the text may be shorter than the last one.
        let written = file.reopen().and_then(|mut file| file.write_all(data));
        written
            .and_then(|()| file.as_file().set_len(data.len() as u64))
            .expect("a writable folder");
        for role in [None, Some(NodeRole::Gateway), Some(NodeRole::Cloud)] {
            if let Ok(report) = check(file.path(), role) {
                assert!(!report.summary.is_empty());
            }
        }
    });
}

fn parse<T: Tables>(parsed: Result<Config<T>, ConfigError>, text: &str) {
    match parsed {
        Ok(config) => {
            let unchanged = changes(&config, &config.clone());
            assert!(unchanged.is_ok_and(|lines| lines.is_empty()));
        }
        Err(ConfigError::Invalid(problem)) => {
            let lines = text.matches('\n').count() + 1;
            assert!((1..=lines).contains(&problem.line), "{problem}");
            assert!(problem.column > 0 && !problem.reason.is_empty(), "{problem}");
        }
        Err(error) => panic!("{error}"),
    }
}

thread_local! {
    static FILE: RefCell<NamedTempFile> = RefCell::new(scratch());
}

/// A file in memory, if the system has a folder for that.
fn scratch() -> NamedTempFile {
    let folder = Path::new("/dev/shm");
    let file = if fs::metadata(folder).is_ok() {
        NamedTempFile::new_in(folder)
    } else {
        NamedTempFile::new()
    };
    file.expect("a writable folder")
}

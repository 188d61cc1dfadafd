//! What the daemon says of its certificate files when it starts.

#![allow(clippy::unwrap_used)] // also in the helpers

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use polyrail_identity::{Authority, IssueRequest, NodeRole};
use polyrail_model::Identity;

#[test]
fn exposed_key_is_logged_and_stops_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    let name = Identity::new("c").unwrap();
    let role = NodeRole::Cloud;
    let request = IssueRequest { name, role, days: 397, out: dir.to_owned(), force: false };
    let key = authority.issue(&request).unwrap().key_file;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let config = dir.join("cloud.toml");
    let tls = "[tls]\ncertificate = \"c.crt\"\nkey = \"c.key\"\nauthority = \"ca.crt\"\n";
    fs::write(&config, format!("listen = [\"127.0.0.1:4433\"]\n{tls}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail-cloud"));
    let output = command.arg("--config").arg(&config).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let key = key.display();
    let exposed = format!("{key} is mode 0640: run chmod 600 {key}");
    for (mark, words) in [("ERROR", format!("tls.key: {exposed}")), ("polyrail-cloud: ", exposed)] {
        let said = |line: &str| line.contains(mark) && line.contains(&words);
        assert!(text.lines().any(said), "{words:?} is not in:\n{text}");
    }
}

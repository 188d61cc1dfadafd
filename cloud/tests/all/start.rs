//! The log about certificate files when the daemon starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use polyrail_identity::{Authority, IssueRequest, NodeRole};
use polyrail_model::Identity;

/// The log of a cloud that cannot start, with a certificate of this role.
fn log_of_failed_start(dir: &Path, role: NodeRole, key_mode: u32) -> String {
    let authority = Authority::create(dir, "Test", false).unwrap();
    let name = Identity::new("c").unwrap();
    let request = IssueRequest { name, role, days: 397, out: dir.to_owned(), force: false };
    let key = authority.issue(&request).unwrap().key_file;
    fs::set_permissions(&key, fs::Permissions::from_mode(key_mode)).unwrap();
    let config = dir.join("cloud.toml");
    let tls = "[tls]\ncertificate = \"c.crt\"\nkey = \"c.key\"\nauthority = \"ca.crt\"\n";
    let admin = "[admin]\nsocket = \"missing/s\"\n";
    fs::write(&config, format!("listen = [\"127.0.0.1:4433\"]\n{tls}{admin}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail-cloud"));
    let output = command.arg("--config").arg(&config).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn exposed_key_is_logged_and_stops_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let text = log_of_failed_start(folder.path(), NodeRole::Cloud, 0o640);
    let key = folder.path().join("c.key");
    let exposed = format!("{0} is mode 0640: run chmod 600 {0}", key.display());
    for (mark, words) in [("ERROR", format!("tls.key: {exposed}")), ("polyrail-cloud: ", exposed)] {
        let has = |line: &str| line.contains(mark) && line.contains(&words);
        assert!(text.lines().any(has), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn certificate_of_the_other_role_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let text = log_of_failed_start(folder.path(), NodeRole::Gateway, 0o600);
    let words = "tls.certificate: the certificate (name \"c\") is not one of a cloud";
    assert!(text.lines().any(|line| line.contains("ERROR") && line.contains(words)), "{text}");
}

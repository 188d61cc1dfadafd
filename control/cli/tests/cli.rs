//! The command `polyrail` as an operator runs it: its output and its exit codes.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `polyrail` in a folder: exit code, standard output and standard error together.
fn polyrail(dir: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_polyrail"))
        .args(arguments)
        .current_dir(dir)
        .output()
        .expect("polyrail runs");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("its output is text");
    (output.status.code().expect("it was not killed"), text)
}

fn fine(dir: &Path, arguments: &[&str]) -> String {
    let (code, text) = polyrail(dir, arguments);
    assert_eq!(code, 0, "{arguments:?}: {text}");
    text
}

fn fails(dir: &Path, arguments: &[&str], reason: &str) {
    let (code, text) = polyrail(dir, arguments);
    assert_eq!(code, 1, "{arguments:?}: {text}");
    assert!(text.contains(reason), "{arguments:?}: {text:?} lacks {reason:?}");
}

#[test]
fn operator_issues_checks_and_revokes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fine(dir, &["pki", "init", "--dir", "pki", "--name", "Test rail"]);
    fails(dir, &["pki", "init", "--dir", "pki"], "pki/ca.crt exists already; --force replaces it");
    let issue = ["pki", "issue", "--dir", "pki", "--out", "out", "--role"];
    fine(dir, &[&issue[..], &["gateway", "train-7"]].concat());
    fine(dir, &[&issue[..], &["cloud", "cloud", "--days", "30"]].concat());
    fails(dir, &[&issue[..], &["cloud", "cloud"]].concat(), "exists already");
    let shown = fine(
        dir,
        &["pki", "show", "out/train-7.crt", "out/cloud.crt", "--authority", "pki/ca.crt"],
    );
    for text in ["identity     train-7", "role         gateway", "396 days left", "29 days left"] {
        assert!(shown.contains(text), "{shown}");
    }
    assert_eq!(shown.matches("by the authority").count(), 2, "{shown}");

    let revoked = fine(dir, &["pki", "revoke", "--dir", "pki", "out/train-7.crt"]);
    let serial = revoked.split([' ', ';']).nth(1).unwrap();
    assert!(fine(dir, &["pki", "revoke", "--dir", "pki", serial]).contains("was revoked before"));
    let show = ["pki", "show", "--crl", "pki/revoked.crl", "out/train-7.crt", "out/cloud.crt"];
    let shown = fine(dir, &show);
    assert!(shown.contains("revoked      since 2") && shown.contains("revoked      no"), "{shown}");
    assert!(fine(dir, &["pki", "show", "pki/revoked.crl"]).contains(serial));
    fails(dir, &["pki", "revoke", "--dir", "pki", "beef"], "no certificate with the serial beef");
    fails(dir, &["pki", "revoke", "--dir", "pki", "train"], "neither a file nor a serial number");

    fs::write(dir.join("garbage"), "garbage").unwrap();
    fails(
        dir,
        &["pki", "show", "garbage", "out/cloud.crt"],
        "there is no certificate (CERTIFICATE) in it",
    );
    fails(dir, &["pki", "show", "none"], "No such file");
    fs::set_permissions(dir.join("pki/ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let wide = [&issue[..], &["gateway", "x"]].concat();
    fails(dir, &wide, "pki/ca.key is mode 0644: run chmod 600 pki/ca.key");
}

#[test]
fn both_examples_pass_with_their_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for name in ["gateway.toml", "cloud.toml"] {
        let text = fs::read_to_string(packaging.join(name)).unwrap();
        fs::write(dir.join(name), text.replace("/run/polyrail/", "run/")).unwrap();
    }
    fails(dir, &["check", "gateway.toml"], "tls.certificate: cannot read train-7.crt");
    fine(dir, &["pki", "init", "--dir", "."]);
    fine(dir, &["pki", "issue", "--dir", ".", "--role", "gateway", "train-7"]);
    fine(dir, &["pki", "issue", "--dir", ".", "--role", "cloud", "cloud"]);
    let (code, found) = polyrail(dir, &["check", "gateway.toml"]);
    assert!(found.contains("run is missing, so the daemon cannot start"), "{found}");
    assert!(code == 1 && found.ends_with("gateway.toml: FAILED: 1 error\n"), "{found}");
    fs::create_dir(dir.join("run")).unwrap();
    let found = fine(dir, &["check", "gateway.toml"]);
    assert!(found.contains("gateway.toml: OK: a gateway to the cloud \"cloud\" over a, b"));
    let found = fine(dir, &["check", "cloud.toml", "--as", "cloud"]);
    assert!(found.ends_with("cloud.toml: OK: a cloud that listens on [::]:4433\n"), "{found}");
    fails(dir, &["check", "cloud.toml", "--as", "gateway"], ": access: unknown field `access`");

    let text = fs::read_to_string(dir.join("cloud.toml")).unwrap();
    fs::write(dir.join("bad.toml"), text.replace("timeout = \"10s\"", "timeout = 10")).unwrap();
    fails(dir, &["check", "bad.toml"], ": dial.timeout: invalid type: integer `10`");
    fails(dir, &["check", "bad.toml"], "read as a cloud's configuration");
    fails(dir, &["check", "bad.toml"], "bad.toml: FAILED: 1 error\n");
    fails(dir, &["check", "none.toml"], "cannot read the configuration none.toml");
}

#[test]
fn doctor_names_remedies() {
    let (code, text) = polyrail(Path::new("/"), &["doctor"]);
    assert_eq!(text.contains("BAD "), code == 1, "{text}");
    assert_eq!(text.matches("BAD ").count(), text.matches("Remedy: ").count(), "{text}");
    assert!(text.contains("tcp_slow_start_after_idle"), "{text}");
}

#[test]
fn invalid_command_line_has_its_own_exit_code() {
    for arguments in [&["pki", "show"][..], &["chek"], &["check", "x", "--as", "train"], &[]] {
        assert_eq!(polyrail(Path::new("/"), arguments).0, 2, "{arguments:?}");
    }
    let name = ["pki", "issue", "--dir", ".", "--role", "cloud", "Bad Name"];
    assert_eq!(polyrail(Path::new("/"), &name).0, 2);
}

#[test]
fn full_output_is_an_error_without_panic() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_polyrail"))
        .arg("doctor")
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("No space left on device"), "{text}");
}

//! Keys and certificates of the lab, issued with the operator's command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::programs::Programs;

/// A folder with an authority and the certificates it issued.
#[derive(Clone, Debug)]
pub struct Keys {
    folder: PathBuf,
    command: PathBuf,
}

impl Keys {
    /// Creates an authority in `folder`.
    pub fn create(programs: &Programs, folder: &Path) -> Result<Keys> {
        let keys = Keys { folder: folder.to_path_buf(), command: programs.path("polyrail") };
        keys.run("init", &[])?;
        Ok(keys)
    }

    /// Issues a certificate to a gateway.
    pub fn issue_gateway(&self, name: &str) -> Result<()> {
        self.run("issue", &[name, "--role", "gateway"])
    }

    /// Issues a certificate to a cloud.
    pub fn issue_cloud(&self, name: &str) -> Result<()> {
        self.run("issue", &[name, "--role", "cloud"])
    }

    /// Issues a certificate with a new key, and replaces an older one.
    pub fn reissue(&self, name: &str, role: &str) -> Result<()> {
        self.run("issue", &[name, "--role", role, "--force"])
    }

    /// Revokes the certificate of a node, and writes `revoked.crl`.
    pub fn revoke(&self, name: &str) -> Result<()> {
        let certificate = self.folder.join(format!("{name}.crt"));
        self.run("revoke", &[&certificate.display().to_string()])
    }

    /// The folder that holds `ca.crt` and, for each node, `NAME.crt` and `NAME.key`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Result<()> {
        let output = Command::new(&self.command)
            .args(["pki", verb])
            .args(arguments)
            .arg("--dir")
            .arg(&self.folder)
            .output()
            .with_context(|| format!("{}", self.command.display()))?;
        if !output.status.success() {
            bail!("polyrail pki {verb}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

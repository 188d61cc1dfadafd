//! A download by curl, which stands for the passenger's browser, timed and hashed.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;
use serde::Deserialize;

use crate::addresses::Family;
use crate::web::{WebFile, sha256_of};

/// The parameters of a download.
#[derive(Clone, Debug)]
pub struct Download {
    url: String,
    target: PathBuf,
    arguments: Vec<String>,
    resolver: Option<PathBuf>,
    limit: Duration,
}

/// A running download. Dropping it kills curl.
#[derive(Debug)]
pub struct Running {
    child: Child,
    target: PathBuf,
    limit: Duration,
    started: Instant,
}

/// The measurements of curl.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// From start to the last byte, s.
    #[serde(rename = "time_total")]
    pub total_s: f64,
    /// Bytes of the body.
    #[serde(rename = "size_download")]
    pub bytes: u64,
    /// The HTTP status; 0 without an answer.
    pub http_code: u16,
    /// The server's address as curl saw it.
    pub remote_ip: String,
    /// curl's exit code; 0 is success.
    pub exitcode: i32,
    /// curl's error message.
    pub errormsg: Option<String>,
}

impl Report {
    /// The goodput over the whole download, Mbit/s.
    pub fn mbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.total_s / 1e6
    }
}

impl Download {
    /// A download of `http://HOST/FILE` into `target`; `host` may carry a port.
    pub fn new(host: &str, file: &str, target: &Path) -> Download {
        Download {
            url: format!("http://{host}/{file}"),
            target: target.to_path_buf(),
            arguments: Vec::new(),
            resolver: None,
            limit: Duration::from_secs(120),
        }
    }

    /// Resolves names to one address family only.
    pub fn family(self, family: Family) -> Download {
        self.arg(&format!("-{}", family.digit()))
    }

    /// Uses a SOCKS5 proxy that also resolves the name (`socks5h`).
    pub fn socks5_with_names(self, proxy: std::net::SocketAddr) -> Download {
        self.arg("--proxy").arg(&format!("socks5h://{proxy}"))
    }

    /// Uses a SOCKS5 proxy. curl resolves the name itself.
    pub fn socks5(self, proxy: std::net::SocketAddr) -> Download {
        self.arg("--proxy").arg(&format!("socks5://{proxy}"))
    }

    /// Binds to an interface or address.
    pub fn interface(self, interface: &str) -> Download {
        self.arg("--interface").arg(interface)
    }

    /// Mounts this file as `/etc/resolv.conf`.
    pub fn resolver(mut self, file: &Path) -> Download {
        self.resolver = Some(file.to_path_buf());
        self
    }

    /// Adds an argument of curl.
    pub fn arg(mut self, argument: &str) -> Download {
        self.arguments.push(argument.into());
        self
    }

    /// Downloads and waits.
    pub fn run(&self, namespace: &Namespace) -> Result<Report> {
        self.start(namespace)?.finish()
    }

    /// Downloads, waits, and checks length and hash.
    pub fn verify(&self, namespace: &Namespace, file: &WebFile) -> Result<Report> {
        self.start(namespace)?.verify(file)
    }

    /// Starts curl inside a namespace.
    pub fn start(&self, namespace: &Namespace) -> Result<Running> {
        let mut command = match &self.resolver {
            Some(file) => namespace.command_with_resolver("curl", file)?,
            None => namespace.command("curl"),
        };
        let child = command
            .args(["-q", "--silent", "--noproxy", ""])
            .args(["--max-time", &self.limit.as_secs().to_string(), "--write-out", "%{json}"])
            .arg("--output")
            .arg(&self.target)
            .args(&self.arguments)
            .arg(&self.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting curl: is it installed?")?;
        let (target, limit) = (self.target.clone(), self.limit);
        Ok(Running { child, target, limit, started: Instant::now() })
    }
}

impl Running {
    /// Bytes on disk so far.
    pub fn bytes(&self) -> u64 {
        std::fs::metadata(&self.target).map_or(0, |file| file.len())
    }

    /// Whether curl has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The output file.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits until at least `bytes` are on disk.
    pub fn wait_for_bytes(&mut self, bytes: u64) -> Result<()> {
        while self.bytes() < bytes {
            ensure!(!self.ended(), "curl ended with {} bytes, short of {bytes}", self.bytes());
            ensure!(self.started.elapsed() < self.limit, "only {} bytes received", self.bytes());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits for curl, whether it succeeds or not.
    pub fn report(mut self) -> Result<Report> {
        let mut output = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            std::io::Read::read_to_string(&mut pipe, &mut output).context("curl's report")?;
        }
        self.child.wait()?;
        serde_json::from_str(&output).with_context(|| format!("curl's report: {output}"))
    }

    /// Waits for curl to succeed.
    pub fn finish(self) -> Result<Report> {
        let report = self.report()?;
        if report.exitcode != 0 || report.http_code != 200 {
            let words = report.errormsg.as_deref().unwrap_or("");
            bail!(
                "curl failed with {} (HTTP {}) after {} bytes and {:.1} s: {words}",
                report.exitcode,
                report.http_code,
                report.bytes,
                report.total_s
            );
        }
        Ok(report)
    }

    /// Waits for curl to succeed and checks length and hash.
    pub fn verify(self, file: &WebFile) -> Result<Report> {
        let target = self.target.clone();
        let report = self.finish()?;
        ensure!(report.bytes == file.size, "received {} of {} bytes", report.bytes, file.size);
        let hash = sha256_of(&target)?;
        ensure!(hash == file.sha256, "SHA-256 {hash}, expected {}", file.sha256);
        Ok(report)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only when curl has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

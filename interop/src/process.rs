//! A child process that cannot outlive the harness, with its log in the scratch folder.
//!
//! The kernel kills it when the thread that started it ends. Dropping a [`Process`] kills it too.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_emulator::namespace::Namespace;

/// The polling interval of waits.
const POLL: Duration = Duration::from_millis(5);

/// A program to start, its arguments and its log file.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    output: Option<PathBuf>,
    home: Option<PathBuf>,
    resolver: Option<PathBuf>,
}

impl Program {
    /// A program whose output is appended to `log`.
    pub fn new(name: &str, path: impl Into<PathBuf>, log: PathBuf) -> Program {
        Program {
            name: name.into(),
            path: path.into(),
            arguments: Vec::new(),
            log,
            output: None,
            home: None,
            resolver: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Program {
        self.arguments.push(argument.into());
        self
    }

    /// Adds several arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Program {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Mounts this file as `/etc/resolv.conf` for the program.
    pub fn resolver(mut self, file: &Path) -> Program {
        self.resolver = Some(file.to_path_buf());
        self
    }

    /// Writes its standard output to this file, and only its errors to the log.
    pub fn output(mut self, file: &Path) -> Program {
        self.output = Some(file.to_path_buf());
        self
    }

    /// Sets its `HOME`.
    pub fn home(mut self, folder: &Path) -> Program {
        self.home = Some(folder.to_path_buf());
        self
    }

    /// Starts it inside a namespace; it dies with the calling thread at the latest.
    pub fn start(&self, namespace: &Namespace) -> Result<Process> {
        let errors = File::options().create(true).append(true).open(&self.log)?;
        let output = match &self.output {
            Some(file) => File::create(file)?,
            None => errors.try_clone()?,
        };
        let mut command = match &self.resolver {
            Some(file) => namespace.command_with_resolver(&self.path, file)?,
            None => namespace.command(&self.path),
        };
        let child = command
            .args(&self.arguments)
            .envs(self.home.iter().map(|folder| ("HOME", folder)))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {} ({})", self.name, self.path.display()))?;
        Ok(Process { name: self.name.clone(), child, log: self.log.clone(), ended: None })
    }
}

/// A running child process. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The exit status once it has ended.
    pub fn exit(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            bail!("{} has already ended", self.name);
        }
        let id = i32::try_from(self.child.id()).context("process id")?;
        kill(Pid::from_raw(id), signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} still runs after {limit:?}; its log:\n{}", self.name, self.log());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until its log contains `words`.
    pub fn wait_for_log(&mut self, words: &str, limit: Duration) -> Result<()> {
        self.wait_until(&format!("`{words}` in its log"), limit, |process| {
            process.log().contains(words)
        })
    }

    /// Waits until a condition holds while the process lives.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&Process) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.exit()?;
            if holds(self) {
                return Ok(());
            }
            if let Some(status) = ended {
                bail!("{} ended ({status}) before {what}; its log:\n{}", self.name, self.log());
            }
            if Instant::now() >= deadline {
                bail!("{}: no {what} within {limit:?}; its log:\n{}", self.name, self.log());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            // Both fail only when it has already ended.
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

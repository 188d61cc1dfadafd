//! The demonstration downloads over both carriers and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{alone, beside_others};

/// Marks every process of a demonstration in its environment.
const MARK: &str = "POLYRAIL_DEMO_MARK";
const LIMIT: Duration = Duration::from_secs(90);

/// A running demonstration. Dropping it kills it.
struct Demo {
    child: Child,
    mark: String,
}

impl Demo {
    fn start(name: &str, mode: &str) -> Result<Demo> {
        let mark = format!("{name}-{}", std::process::id());
        let child = Command::new(env!("CARGO_BIN_EXE_polyrail-lab"))
            .args(["demo", "--mode", mode])
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Demo { child, mark })
    }

    /// Its output up to a line with `words`, or all of it.
    fn output_until(&mut self, words: Option<&str>) -> Result<String> {
        let started = Instant::now();
        let pipe = self.child.stdout.as_mut().context("no output")?;
        let mut text = String::new();
        for line in BufReader::new(pipe).lines() {
            let line = line?;
            text.push_str(&line);
            text.push('\n');
            if words.is_some_and(|words| line.contains(words)) {
                return Ok(text);
            }
            ensure!(started.elapsed() < LIMIT, "still running:\n{text}");
        }
        match words {
            Some(words) => bail!("it ended without `{words}`:\n{text}"),
            None => Ok(text),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// Waits until no process with its mark is left.
    fn expect_nothing_left(mut self) -> Result<()> {
        self.child.wait()?;
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut left = marked(&self.mark)?;
        while !left.is_empty() {
            ensure!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
            left = marked(&self.mark)?;
        }
        Ok(())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Both fail only when it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command lines of running processes with this mark.
fn marked(mark: &str) -> Result<Vec<String>> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        // Processes may end meanwhile.
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()) {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    Ok(found)
}

/// Files that a demonstration could leave behind.
fn traces() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["/run/netns", "/mnt", "/tmp"] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        names.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    names.retain(|name| !name.starts_with("/tmp") || name.contains("polyrail"));
    names.sort();
    names
}

#[test]
fn the_demo_downloads_both_files_and_shows_each_carrier() -> Result<()> {
    shown("auto", "quic")
}

#[test]
fn the_demo_runs_in_mode_tls_as_well() -> Result<()> {
    shown("tls", "tls")
}

/// Runs the demonstration in `mode`. Its tables must show that the carriers used `way`: all of
/// them, or at least one in mode `auto`.
fn shown(mode: &str, way: &str) -> Result<()> {
    beside_others(|| {
        let mut demo = Demo::start(mode, mode)?;
        let output = demo.output_until(None)?;
        ensure!(demo.child.wait()?.success(), "the demo failed:\n{output}");
        for words in [
            "alpha",
            "beta",
            "goes dark",
            "is back",
            "right SHA-256",
            "share",
            "RTT",
            "curl -4",
            "curl -6",
            "Both files are whole",
        ] {
            ensure!(output.contains(words), "no `{words}` in:\n{output}");
        }
        let ways: Vec<&str> = output.lines().filter_map(way_of).collect();
        ensure!(ways.len() == 4, "{ways:?} in two tables of two carriers:\n{output}");
        ensure!(ways.contains(&way), "no carrier used {way}:\n{output}");
        let all = ways.iter().all(|seen| *seen == way);
        ensure!(all || mode == "auto", "not all carriers used {way}:\n{output}");
        demo.expect_nothing_left()
    })
}

/// The transport of a carrier in its line of a table.
fn way_of(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_carrier = words.next().is_some_and(|name| ["alpha", "beta"].contains(&name));
    words.next().filter(|way| is_carrier && ["quic", "tls"].contains(way))
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() -> Result<()> {
    alone(|| {
        for signal in [Signal::SIGINT, Signal::SIGKILL] {
            let before = traces();
            let mut demo = Demo::start(signal.as_str(), "auto")?;
            demo.output_until(Some("goes dark"))?;
            ensure!(marked(&demo.mark)?.len() > 4, "no daemons are marked: the check sees nothing");
            demo.signal(signal)?;
            demo.expect_nothing_left()?;
            let after = traces();
            ensure!(before == after, "{signal}: {before:?} became {after:?}");
        }
        Ok(())
    })
}

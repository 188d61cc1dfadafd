//! A headless Chromium that opens a page, prints its document and takes a picture of it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A Chromium that has been started.
pub struct Chromium {
    child: Child,
    /// Its profile, and the files of its output.
    folder: tempfile::TempDir,
    picture: PathBuf,
    size: (u32, u32),
}

impl Chromium {
    /// Opens a page in a window of this size, and draws it to a file.
    pub fn open(page: &Path, size: (u32, u32), dark: bool, picture: PathBuf) -> Self {
        let folder = tempfile::tempdir().expect("a test's folder is usable");
        let file = |name| File::create(folder.path().join(name)).expect("the folder is usable");
        let _ = fs::remove_file(&picture);
        let child = Command::new("chromium")
            // Root has no sandbox of its own, and the page is the test's own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-breakpad", "--dump-dom"])
            .args(["--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"])
            // For the page that holds the tested one in a frame, and acts on it.
            .arg("--allow-file-access-from-files")
            .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
            .arg(format!("--window-size={},{}", size.0, size.1))
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(format!("file://{}", page.display()))
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(file("document"))
            .stderr(file("log"))
            .process_group(0)
            .spawn()
            .expect("chromium runs: `make setup` installs it");
        Self { child, folder, picture, size }
    }

    /// Waits for its end, at most [`TIMEOUT`]. Returns the document after the page's script; the
    /// page must have caused no message on the console.
    pub fn document(mut self) -> String {
        let status = self.wait();
        let text = |name| {
            let bytes = fs::read(self.folder.path().join(name)).expect("it was created");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (document, log) = (text("document"), text("log"));
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {log}");
        let messages: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(messages.is_empty(), "messages on the console: {messages:#?}");
        let picture = fs::read(&self.picture).expect("it drew a picture");
        let number = |at: usize| picture[at..at + 4].iter().fold(0, |n, b| n << 8 | u32::from(*b));
        // Width and height are the first fields of a PNG's first chunk.
        assert_eq!((number(16), number(20)), self.size, "{}", self.picture.display());
        document
    }

    fn wait(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Chromium {
    /// Kills it and all its processes, also when a test fails.
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Some 2 s are usual.
const TIMEOUT: Duration = Duration::from_secs(60);

//! A headless Chromium with several pages, driven over its debugging pipe (Chrome DevTools
//! Protocol: JSON messages that end with a zero byte).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A running Chromium.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: BufReader<ChildStdout>,
    number: u64,
    /// Errors and messages on the consoles of all pages.
    pub complaints: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// An open page.
#[derive(Clone)]
pub struct Page(Value);

impl Browser {
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a test's folder is usable");
        // Chromium reads requests from descriptor 3 and writes messages to descriptor 4. Root has
        // no sandbox of its own, and the pages are the test's own.
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-breakpad", "--hide-scrollbars"])
            // For a page that holds the tested one in a frame, and acts on it.
            .arg("--allow-file-access-from-files")
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("chromium runs: `make setup` installs it");
        let requests = child.stdin.take().expect("it is piped");
        let messages = BufReader::new(child.stdout.take().expect("it is piped"));
        let (number, complaints) = (0, Vec::new());
        Self { child, requests, messages, number, complaints, _profile: profile }
    }

    /// Opens a page of this size.
    pub fn open(&mut self, address: &str, (width, height): (u32, u32), scheme: &str) -> Page {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call(None, "Target.attachToTarget", attach)["sessionId"].clone();
        let page = Page(session);
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        let media = json!({
            "features": [{ "name": "prefers-color-scheme", "value": scheme }],
        });
        for (method, parameters) in [
            ("Runtime.enable", json!({})),
            ("Log.enable", json!({})),
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", media),
            ("Page.navigate", json!({ "url": address })),
        ] {
            self.call(Some(&page), method, parameters);
        }
        page
    }

    /// The value of an expression.
    pub fn value(&mut self, page: &Page, expression: &str) -> Value {
        self.evaluate(page, expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The value of an expression, or Chromium's error: a page that is just loaded has no context
    /// for a moment.
    fn evaluate(&mut self, page: &Page, expression: &str) -> Result<Value, Value> {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        let result = self.try_call(Some(page), "Runtime.evaluate", parameters)?;
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        Ok(result["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, page: &Page, expression: &str) {
        let begin = Instant::now();
        loop {
            match self.evaluate(page, expression) {
                Ok(value) if value == true => return,
                Err(error) if error["code"] != NO_CONTEXT => panic!("{expression}: {error}"),
                _ => {}
            }
            if begin.elapsed() > TIMEOUT {
                let text = self.value(page, "document.body && document.body.innerText");
                panic!("{expression}: {text}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Draws the whole page to a file.
    pub fn draw(&mut self, page: &Page, file: &Path) -> Vec<u8> {
        let parameters = json!({ "captureBeyondViewport": true, "format": "png" });
        let drawn = self.call(Some(page), "Page.captureScreenshot", parameters);
        let bytes = base64(drawn["data"].as_str().expect("a picture"));
        fs::write(file, &bytes).expect("the target folder is usable");
        bytes
    }

    fn call(&mut self, page: Option<&Page>, method: &str, parameters: Value) -> Value {
        let result = self.try_call(page, method, parameters);
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Sends a request, and returns its result or Chromium's error.
    fn try_call(
        &mut self,
        page: Option<&Page>,
        method: &str,
        parameters: Value,
    ) -> Result<Value, Value> {
        self.number += 1;
        let number = self.number;
        let mut request = json!({ "id": number, "method": method, "params": parameters });
        if let Some(Page(session)) = page {
            request["sessionId"] = session.clone();
        }
        let text = request.to_string() + "\0";
        self.requests.write_all(text.as_bytes()).expect("chromium takes requests");
        loop {
            let mut message = Vec::new();
            self.messages.read_until(0, &mut message).expect("chromium answers");
            message.pop();
            let mut message: Value = serde_json::from_slice(&message).expect("chromium runs");
            if message["id"] == number {
                return match message.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(message["result"].take()),
                };
            }
            let is_complaint =
                ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
            if is_complaint.iter().any(|method| message["method"] == *method) {
                self.complaints.push(message["params"].take());
            }
        }
    }
}

impl Drop for Browser {
    /// Kills it and all its processes, also when a test fails.
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|digit| *digit != b'=').map(value).collect();
    let mut bytes = Vec::new();
    for group in digits.chunks(4) {
        let number = group.iter().fold(0_u32, |number, digit| number << 6 | u32::from(*digit));
        let number = number << (6 * (4 - group.len()));
        bytes.extend_from_slice(&number.to_be_bytes()[1..group.len()]);
    }
    bytes
}

/// Chromium's error for a page that is just loaded.
const NO_CONTEXT: i64 = -32_000;
/// Some 6 s are usual.
const TIMEOUT: Duration = Duration::from_secs(60);

//! A client of a daemon's admin socket that answers within milliseconds, for measurements.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// All paths of a daemon.
pub fn paths(socket: &Path) -> Result<Vec<Value>> {
    let answer = request(socket, "GET", "/v1/paths", "")?;
    answer["paths"].as_array().cloned().with_context(|| format!("no list of paths: {answer}"))
}

/// The path of one carrier.
pub fn path(socket: &Path, carrier: &str) -> Result<Value> {
    request(socket, "GET", &format!("/v1/paths/{carrier}"), "")
}

/// Enables or disables a carrier.
pub fn enable(socket: &Path, carrier: &str, enabled: bool) -> Result<()> {
    change(socket, carrier, &format!("{{\"enabled\":{enabled}}}"))
}

/// Changes a carrier.
pub fn change(socket: &Path, carrier: &str, change: &str) -> Result<()> {
    request(socket, "PUT", &format!("/v1/paths/{carrier}"), change).map(|_| ())
}

/// Users' bytes received over a path, copies included.
pub fn received_bytes(path: &Value) -> Result<u64> {
    path["counters"]["received_bytes"].as_u64().context("received_bytes")
}

/// The answer to GET.
pub fn get(socket: &Path, place: &str) -> Result<Value> {
    request(socket, "GET", place, "")
}

/// The answer to POST.
pub fn post(socket: &Path, place: &str, body: &str) -> Result<Value> {
    request(socket, "POST", place, body)
}

fn request(socket: &Path, method: &str, place: &str, body: &str) -> Result<Value> {
    let request = format!(
        "{method} {place} HTTP/1.1\r\nHost: polyrail\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).context("the admin socket")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the admin socket's answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let is_ok = head.split_whitespace().nth(1).is_some_and(|status| status.starts_with('2'));
    ensure!(is_ok, "the daemon answers: {answer}");
    serde_json::from_str(body).with_context(|| format!("the daemon answers: {answer}"))
}

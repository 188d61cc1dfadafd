//! The gateway's admin socket, as far as a measurement turns a path off and on, or looks at it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);

/// Lets a carrier be used, or not.
pub(super) fn enable(socket: &Path, carrier: &str, enabled: bool) -> Result<()> {
    let body = format!("{{\"enabled\":{enabled}}}");
    request(socket, "PUT", carrier, &body).map(|_| ())
}

/// A path as it is now.
pub(super) fn path(socket: &Path, carrier: &str) -> Result<Value> {
    let answer = request(socket, "GET", carrier, "")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    serde_json::from_str(body).with_context(|| format!("the gateway answers: {answer}"))
}

fn request(socket: &Path, method: &str, carrier: &str, body: &str) -> Result<String> {
    let request = format!(
        "{method} /v1/paths/{carrier} HTTP/1.1\r\nHost: polyrail\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).context("the admin socket")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the admin socket's answer")?;
    let is_ok = answer.split_whitespace().nth(1).is_some_and(|status| status.starts_with('2'));
    ensure!(is_ok, "the gateway answers: {answer}");
    Ok(answer)
}

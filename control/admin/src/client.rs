//! The client of the admin socket, for the command `polyrail`.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::StreamExt;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::{AdminError, Drain, DrainState, Reloaded, SpeedtestOrder, SpeedtestState};

/// A client of a daemon's admin socket; it opens a connection per request.
#[derive(Debug)]
pub struct AdminClient {
    socket: PathBuf,
    runtime: Runtime,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("no daemon answers at {0}: is it running, and does its configuration have [admin]?")]
    NotRunning(String),
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(AdminError),
    /// The connection failed, or the answer is invalid.
    #[error("{0}")]
    Failed(String),
}

/// Timeout of an answer, longer than the daemon waits for its data plane.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// The maximum size of an answer, in bytes.
const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// The sockets to try, in this order.
pub const USUAL_SOCKETS: [&str; 2] = ["/run/polyrail/gateway.sock", "/run/polyrail/cloud.sock"];

impl AdminClient {
    /// A client of `socket`, or of the first of [`USUAL_SOCKETS`] that exists.
    ///
    /// # Errors
    /// The system cannot create a runtime.
    pub fn new(socket: Option<&Path>) -> io::Result<Self> {
        let there = |socket: &&Path| socket.symlink_metadata().is_ok();
        let usual = USUAL_SOCKETS.map(Path::new);
        let socket = socket.or_else(|| usual.into_iter().find(there)).unwrap_or(usual[0]);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// Asks for a resource.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, address: &str) -> Result<AdminResponse<T>, ClientError> {
        self.ask(Method::GET, address, None)
    }

    /// Changes a resource.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put<T: DeserializeOwned>(
        &self,
        address: &str,
        change: &impl Serialize,
    ) -> Result<AdminResponse<T>, ClientError> {
        let body = serde_json::to_string(change).map_err(invalid_answer)?;
        self.ask(Method::PUT, address, Some(body))
    }

    /// Reloads the daemon's configuration.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reload(&self) -> Result<AdminResponse<Reloaded>, ClientError> {
        self.ask(Method::POST, "/v1/reload", None)
    }

    /// Drains the daemon.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn drain(&self, drain: Drain) -> Result<AdminResponse<DrainState>, ClientError> {
        let body = serde_json::to_string(&drain).map_err(invalid_answer)?;
        self.ask(Method::POST, "/v1/drain", Some(body))
    }

    /// Starts a speed test.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn start_speedtest(
        &self,
        order: &SpeedtestOrder,
    ) -> Result<AdminResponse<SpeedtestState>, ClientError> {
        let body = serde_json::to_string(order).map_err(invalid_answer)?;
        self.ask(Method::POST, "/v1/speedtest", Some(body))
    }

    /// Passes events to `take`, line by line, until the stream ends or `take` returns false.
    ///
    /// # Errors
    /// See [`ClientError`], or an error of `take`.
    pub fn events<E: From<ClientError>>(
        &self,
        since: u64,
        follow: bool,
        mut take: impl FnMut(&str) -> Result<bool, E>,
    ) -> Result<(), E> {
        let target = format!("/v1/events?since={since}&follow={follow}");
        self.runtime.block_on(async {
            let (code, mut body) = self.send(Method::GET, &target, None).await?;
            if code != StatusCode::OK {
                return Err(refusal(&self.whole(body).await?).into());
            }
            let mut rest = Vec::new();
            while let Some(part) = body.next().await {
                let ended = |_| self.failed("the stream of events ended: the daemon has stopped");
                rest.extend_from_slice(&part.map_err(ended)?);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    if !take(String::from_utf8_lossy(&line).trim_end())? {
                        return Ok(());
                    }
                }
                if rest.len() > ANSWER_MAX {
                    return Err(invalid_answer("an endless line").into());
                }
            }
            Ok(())
        })
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<String>,
    ) -> Result<AdminResponse<T>, ClientError> {
        let (code, body) = self.runtime.block_on(async {
            let (code, body) = self.send(method, target, body).await?;
            let late = |_| self.failed("no answer in time");
            Ok((code, timeout(ANSWER_WAIT, self.whole(body)).await.map_err(late)??))
        })?;
        if code != StatusCode::OK {
            return Err(refusal(&body));
        }
        let value = serde_json::from_slice(&body).map_err(invalid_answer)?;
        Ok(AdminResponse { value, text: String::from_utf8_lossy(&body).into_owned() })
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Parts), ClientError> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning(self.socket.display().to_string())
            }
            io::ErrorKind::PermissionDenied => {
                self.failed("not for this user: run as root or as the daemon's user")
            }
            _ => self.failed(error),
        })?;
        let late = |_| self.failed("no answer in time");
        let exchange = async {
            let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
            let (mut sender, connection) = shaken.map_err(|error| self.failed(error))?;
            tokio::spawn(connection);
            let request = Request::builder().method(method).uri(target).header("host", "polyrail");
            let request = request.body(body.map_or_else(Body::empty, Body::from));
            let request = request.map_err(invalid_answer)?;
            sender.send_request(request).await.map_err(|error| self.failed(error))
        };
        let response = timeout(ANSWER_WAIT, exchange).await.map_err(late)??;
        let code = response.status();
        Ok((code, Body::new(response.into_body()).into_data_stream()))
    }

    async fn whole(&self, mut body: Parts) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        while let Some(part) = body.next().await {
            let part: Bytes = part.map_err(|error| self.failed(error))?;
            if bytes.len() + part.len() > ANSWER_MAX {
                return Err(invalid_answer("it is too large"));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    fn failed(&self, reason: impl Display) -> ClientError {
        ClientError::Failed(format!("{}: {reason}", self.socket.display()))
    }
}

type Parts = axum::body::BodyDataStream;

/// A parsed answer and its text.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminResponse<T> {
    /// The parsed value.
    pub value: T,
    /// The JSON text.
    pub text: String,
}

fn refusal(body: &[u8]) -> ClientError {
    #[derive(Deserialize)]
    struct Refused {
        error: AdminError,
    }
    match serde_json::from_slice::<Refused>(body) {
        Ok(Refused { error }) => ClientError::Refused(error),
        Err(error) => invalid_answer(error),
    }
}

fn invalid_answer(reason: impl Display) -> ClientError {
    ClientError::Failed(format!("invalid answer: {reason}"))
}

/// The address of a path.
pub fn path_address(name: &str) -> String {
    format!("/v1/paths/{}", escaped(name))
}

/// An address with those parameters that have a value.
pub fn query<'a>(
    address: &str,
    parameters: impl IntoIterator<Item = (&'a str, Option<String>)>,
) -> String {
    let given = parameters.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let given: Vec<String> =
        given.map(|(key, value)| format!("{key}={}", escaped(&value))).collect();
    if given.is_empty() { address.to_owned() } else { format!("{address}?{}", given.join("&")) }
}

/// A text with its reserved characters escaped (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                escaped.push(byte.into());
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_a_value_are_left_out_and_others_are_escaped() {
        let parameters = [("a", None), ("b", Some("x&y=z".to_owned())), ("c", Some("1".into()))];
        assert_eq!(query("/v1/flows", parameters), "/v1/flows?b=x%26y%3Dz&c=1");
        assert_eq!(query("/v1/flows", [("a", None)]), "/v1/flows");
    }
}

//! Where the shared database is, and the connection to it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::poll_fn;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::SharedError;

/// The server of a shared database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `postgres://USER@HOST:PORT/DATABASE`.
    pub url: String,
    /// A file with the user's password, if the URL has none.
    pub password_file: Option<PathBuf>,
    /// The certificates that the server's one must descend from. Without it the connection is not
    /// encrypted.
    pub ca: Option<PathBuf>,
}

impl Server {
    /// Checks the URL: without the certificates the server must be on this machine.
    ///
    /// # Errors
    /// [`SharedError::Url`].
    pub fn check(&self) -> Result<(), SharedError> {
        self.config().map(drop)
    }

    fn config(&self) -> Result<Config, SharedError> {
        let invalid = |error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            SharedError::Url(cause.unwrap_or_else(|| error.to_string()))
        };
        let mut config: Config = self.url.parse().map_err(invalid)?;
        config
            .connect_timeout(CONNECT)
            .keepalives_idle(KEEPALIVE)
            .tcp_user_timeout(CONNECT)
            .application_name("polyrail")
            .ssl_mode(if self.ca.is_some() { SslMode::Require } else { SslMode::Disable });
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        if self.ca.is_none() && !is_local {
            return Err(SharedError::Url(NEEDS_TLS.to_owned()));
        }
        Ok(config)
    }

    /// Connects. The connection calls `notified` for each notification of others, and when it ends;
    /// it lives in a task of the current runtime until the second value is dropped.
    ///
    /// # Errors
    /// The server cannot be reached or refuses, or a file cannot be read.
    pub(crate) async fn connect(
        &self,
        notified: Arc<Notify>,
    ) -> Result<(Client, Task), SharedError> {
        let mut config = self.config()?;
        if let Some(path) = &self.password_file {
            config.password(read(path)?.trim_ascii_end());
        }
        let connected = async {
            Ok::<_, SharedError>(match &self.ca {
                Some(path) => {
                    let tls = MakeRustlsConnect::new(tls(path)?);
                    let (client, connection) = config.connect(tls).await?;
                    (client, Task(tokio::spawn(serve(connection, notified))))
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    (client, Task(tokio::spawn(serve(connection, notified))))
                }
            })
        };
        timeout(CONNECT, connected).await.map_err(|_| SharedError::Timeout)?
    }
}

/// Whether nothing that is sent to a host leaves this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address: Option<IpAddr> = name.parse().ok();
            address.map_or(name == "localhost", |address| address.is_loopback())
        }
    }
}

/// A connection's task, which ends when this is dropped: else it would wait for the answer to a
/// statement that nobody waits for any more.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Moves the connection's messages until it ends.
async fn serve<S, T>(mut connection: Connection<S, T>, notified: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    while let Some(Ok(message)) = messages.next().await {
        if let AsyncMessage::Notification(_) = message {
            notified.notify_one();
        }
    }
    notified.notify_one();
}

fn tls(ca: &Path) -> Result<ClientConfig, SharedError> {
    let invalid = |error: &dyn std::fmt::Display| {
        SharedError::File(ca.to_owned(), format!("no certificates in PEM: {error}"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(ca)?) {
        let certificate = certificate.map_err(|error| invalid(&error))?;
        roots.add(certificate).map_err(|error| invalid(&error))?;
    }
    if roots.is_empty() {
        return Err(invalid(&"the file has none"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| invalid(&error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn read(path: &Path) -> Result<Vec<u8>, SharedError> {
    std::fs::read(path).map_err(|error| SharedError::File(path.to_owned(), error.to_string()))
}

/// How long a connection may take, and sent data may stay unacknowledged.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that is silent for this long is probed.
const KEEPALIVE: Duration = Duration::from_secs(30);
const NEEDS_TLS: &str = "the server is not on this machine, so it needs TLS and the authority of \
    its certificate (`ca`)";

#[test]
fn only_a_local_server_is_reached_without_tls() {
    let rows = [
        ("postgres://a@localhost/x", true),
        ("postgres://a@127.8.0.1:5433,[::1]/x", true),
        ("postgres://a@%2Frun%2Fpostgresql/x", true),
        ("postgres://a@localhost.example.net/x", false),
        ("postgres://a@localhost,db/x", false),
        ("postgres://localhost/x@db", false),
        ("postgres://a@localhost/x?host=db", false),
        ("postgres://a@localhost/x?hostaddr=10.0.0.1", false),
    ];
    for (url, is_local) in rows {
        let server = |ca| Server { url: url.to_owned(), password_file: None, ca };
        assert_eq!(server(None).check().is_ok(), is_local, "{url}");
        server(Some(PathBuf::from("ca"))).check().unwrap();
    }
}

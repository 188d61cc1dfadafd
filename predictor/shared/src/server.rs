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
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::SharedError;

/// The server of a shared database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `postgres://USER@HOST:PORT/DATABASE`. Of several hosts (`HOST:PORT,HOST:PORT`) the first
    /// that accepts writes is used.
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
        self.configs().map(drop)
    }

    /// Each host of the URL alone, so that one that does not answer takes no time from the others.
    fn configs(&self) -> Result<Vec<Config>, SharedError> {
        let invalid = |error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            SharedError::Url(cause.unwrap_or_else(|| error.to_string()))
        };
        let url: Config = self.url.parse().map_err(invalid)?;
        let (hosts, addresses) = (url.get_hosts(), url.get_hostaddrs());
        let is_local = hosts.iter().all(is_local) && addresses.iter().all(IpAddr::is_loopback);
        if self.ca.is_none() && !is_local {
            return Err(SharedError::Url(NEEDS_TLS.to_owned()));
        }
        let count = hosts.len().max(addresses.len()).max(1);
        Ok((0..count).map(|host| self.config(&url, host)).collect())
    }

    fn config(&self, url: &Config, host: usize) -> Config {
        let mut config = Config::new();
        config
            .connect_timeout(CONNECT)
            .keepalives_idle(KEEPALIVE)
            .tcp_user_timeout(CONNECT)
            .application_name("polyrail")
            .ssl_mode(if self.ca.is_some() { SslMode::Require } else { SslMode::Disable })
            // A standby refuses the connection.
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        match url.get_hosts().get(host) {
            Some(Host::Tcp(name)) => config.host(name),
            Some(Host::Unix(folder)) => config.host_path(folder),
            None => &mut config,
        };
        if let Some(address) = url.get_hostaddrs().get(host) {
            config.hostaddr(*address);
        }
        if let Some(port) = url.get_ports().get(host).or(url.get_ports().first()) {
            config.port(*port);
        }
        if let Some(user) = url.get_user() {
            config.user(user);
        }
        if let Some(password) = url.get_password() {
            config.password(password);
        }
        if let Some(name) = url.get_dbname() {
            config.dbname(name);
        }
        if let Some(options) = url.get_options() {
            config.options(options);
        }
        config
    }

    /// Connects to the first host that accepts writes. The connection calls `notified` for each
    /// notification of others, and when it ends; it lives in a task of the current runtime until
    /// the second value is dropped: a statement without an answer would keep it alive.
    ///
    /// # Errors
    /// No host can be reached and accepts writes, or a file cannot be read.
    pub(crate) async fn connect(
        &self,
        notified: Arc<Notify>,
    ) -> Result<(Client, JoinSet<()>), SharedError> {
        let mut configs = self.configs()?;
        if let Some(path) = &self.password_file {
            let password = read(path)?;
            for config in &mut configs {
                config.password(password.trim_ascii_end());
            }
        }
        let tls = self.ca.as_deref().map(tls).transpose()?.map(MakeRustlsConnect::new);
        let mut errors = Vec::new();
        for config in configs {
            match timeout(CONNECT, open(&config, tls.clone(), notified.clone())).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => errors.push(error.to_string()),
                Err(_) => errors.push(SharedError::Timeout.to_string()),
            }
        }
        Err(SharedError::Server(errors.join("; ")))
    }
}

async fn open(
    config: &Config,
    tls: Option<MakeRustlsConnect>,
    notified: Arc<Notify>,
) -> Result<(Client, JoinSet<()>), SharedError> {
    let mut task = JoinSet::new();
    let client = if let Some(tls) = tls {
        let (client, connection) = config.connect(tls).await?;
        task.spawn(serve(connection, notified));
        client
    } else {
        let (client, connection) = config.connect(NoTls).await?;
        task.spawn(serve(connection, notified));
        client
    };
    Ok((client, task))
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

/// How long a connection to a host may take, and sent data may stay unacknowledged.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that is silent for this long is probed.
const KEEPALIVE: Duration = Duration::from_secs(30);
const NEEDS_TLS: &str = "the server is not on this machine, so it needs TLS and the authority of \
    its certificate (`ca`)";

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! A PostgreSQL server in a scratch folder.
//!
//! It listens on a Unix socket in its folder, and ends with the thread that started it. As root it
//! runs as the user `postgres`, because PostgreSQL refuses root.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

use crate::{Server, migrate};

/// A running server with a database `polyrail`.
#[derive(Debug)]
pub struct Postgres {
    folder: tempfile::TempDir,
    /// The user whom it runs as, if not the own one.
    user: Option<User>,
    child: Option<Child>,
    port: u16,
    settings: Vec<String>,
}

impl Postgres {
    /// Creates and starts a server. `settings`: lines of `postgresql.conf`.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or does not start.
    pub fn start(settings: &[&str]) -> io::Result<Self> {
        let mut server = Self::empty(settings.iter().map(|&line| line.to_owned()).collect())?;
        let mut create = server.command("initdb");
        create.arg("-D").arg(server.data()).args(INITDB.split(' '));
        let created = create.output().and_then(succeeded);
        created
            .map_err(|error| failed(format!("PostgreSQL (`make setup` installs it): {error}")))?;
        server.resume()?;
        server.psql("owner", "postgres", "CREATE DATABASE polyrail")?;
        Ok(server)
    }

    /// A standby that streams this server's changes. `SELECT pg_promote()` promotes it.
    ///
    /// # Errors
    /// The server does not run, or the standby does not start.
    pub fn standby(&self) -> io::Result<Self> {
        let mut standby = Self::empty(self.settings.clone())?;
        let mut copy = standby.command("pg_basebackup");
        copy.args(["-R", "-c", "fast", "--no-sync", "-U", "owner", "-p", &self.port.to_string()]);
        copy.arg("-h").arg(self.folder.path()).arg("-D").arg(standby.data());
        copy.output().and_then(succeeded)?;
        standby.resume()?;
        Ok(standby)
    }

    fn empty(settings: Vec<String>) -> io::Result<Self> {
        let user = geteuid().is_root().then(|| User::from_name("postgres")).transpose()?;
        let user = user.map(|user| user.ok_or_else(|| failed("there is no user postgres")));
        let user = user.transpose()?;
        let folder = tempfile::Builder::new().prefix("polyrail-pg").tempdir()?;
        // A port that is free now; it listens there only if a setting says so.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Self { folder, user, child: None, port, settings };
        server.own(server.folder.path())?;
        Ok(server)
    }

    /// The same; `None` if PostgreSQL is not installed and `POLYRAIL_ALLOW_SKIP` permits that.
    ///
    /// # Errors
    /// The same.
    pub fn start_or_skip(settings: &[&str]) -> io::Result<Option<Self>> {
        let version = Command::new(program_path("initdb")).arg("--version").output();
        let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
        if version.is_err() && allowed.split(',').any(|name| name.trim() == "postgresql") {
            // Not captured by the test harness.
            writeln!(io::stdout(), "SKIP postgresql: PostgreSQL is not installed")?;
            return Ok(None);
        }
        Self::start(settings).map(Some)
    }

    /// Creates the schema, and users of the role of the clouds.
    ///
    /// # Errors
    /// The server refuses.
    pub fn prepare(&self, clouds: &[&str]) -> io::Result<()> {
        migrate(&self.server("owner"), None).map_err(failed)?;
        for cloud in clouds {
            let user = format!("CREATE ROLE \"{cloud}\" LOGIN IN ROLE polyrail_cloud PASSWORD 'x'");
            self.sql(&user)?;
        }
        Ok(())
    }

    /// Its database for a user; `owner` owns it.
    pub fn server(&self, user: &str) -> Server {
        let host = self.folder.path().display().to_string().replace('/', "%2F");
        let url = format!("postgres://{user}@{host}:{}/polyrail", self.port);
        Server { url, password_file: None, ca: None }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder, readable by the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Gives a file to the server, readable by it alone.
    ///
    /// # Errors
    /// Of the file system.
    pub fn own(&self, path: &Path) -> io::Result<()> {
        let mode = if path.is_dir() { 0o755 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let user = self.user.as_ref();
        user.map_or(Ok(()), |user| chown(path, Some(user.uid.into()), Some(user.gid.into())))
    }

    /// Runs SQL as the owner; returns the rows, with `|` between columns.
    ///
    /// # Errors
    /// The server refuses.
    pub fn sql(&self, sql: &str) -> io::Result<String> {
        self.sql_as("owner", sql)
    }

    /// The same as another user.
    ///
    /// # Errors
    /// The server refuses.
    pub fn sql_as(&self, user: &str, sql: &str) -> io::Result<String> {
        self.psql(user, "polyrail", sql)
    }

    fn psql(&self, user: &str, database: &str, sql: &str) -> io::Result<String> {
        let mut psql = self.command("psql");
        psql.args(["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-U", user, "-d", database]);
        psql.args(["-p", &self.port.to_string(), "-c", sql]).arg("-h").arg(self.folder.path());
        Ok(succeeded(psql.output()?)?.trim_end().to_owned())
    }

    /// Restarts with further lines of `postgresql.conf`.
    ///
    /// # Errors
    /// The server does not start.
    pub fn configure(&mut self, settings: &[&str]) -> io::Result<()> {
        self.stop();
        self.settings.extend(settings.iter().map(|&line| line.to_owned()));
        self.resume()
    }

    /// Stops the server at once, as a crash does.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGQUIT);
        let _ = child.wait();
    }

    /// Starts the server again.
    ///
    /// # Errors
    /// It does not start within half a minute.
    pub fn resume(&mut self) -> io::Result<()> {
        let log = std::fs::File::create(self.folder.path().join("log"))?;
        let mut start = self.command("postgres");
        start.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        start.args(["-p", &self.port.to_string()]);
        for setting in SETTINGS.iter().copied().chain(self.settings.iter().map(String::as_str)) {
            start.args(["-c", setting]);
        }
        self.child = Some(start.stdout(log.try_clone()?).stderr(log).spawn()?);
        let began = Instant::now();
        while let Err(error) = self.psql("owner", "postgres", "SELECT 1") {
            if began.elapsed() > START {
                let log = std::fs::read_to_string(self.folder.path().join("log"));
                return Err(failed(format!("{error}\n{}", log.unwrap_or_default())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A program of PostgreSQL that ends with this thread.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if let Some(user) = &self.user {
            let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
            command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        }
        command.arg(program_path(program)).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Debian keeps the server's programs out of the PATH.
fn program_path(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|one| one.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| OsStr::new(name).into())
}

fn succeeded(output: Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr)))
}

fn failed(reason: impl std::fmt::Display) -> io::Error {
    io::Error::other(reason.to_string())
}

const INITDB: &str = "-U owner --auth-local=trust --auth-host=scram-sha-256 -E UTF8 --no-locale \
    --no-sync --no-instructions";
const SETTINGS: [&str; 2] = ["listen_addresses=", "unix_socket_permissions=0777"];
/// How long a start may take.
const START: Duration = Duration::from_secs(30);

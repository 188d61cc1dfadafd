//! The start and the end of a cloud: its workers, their threads, and their common parts.
//!
//! The main thread is the first worker: it alone handles signals and reports to the service
//! manager. Each of the others runs the same loop on a thread of its own. They begin one after
//! another, because the kernel numbers the sockets of one address in the order of their binding.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{JoinHandle, available_parallelism};
use std::time::Instant;

use anyhow::Context;
use mio::{Poll, Waker};
use polyrail_admin::{AdminHandle, AdminOptions, StartOptions};
use polyrail_config::{CloudConfig, CloudTables, SharedConfig};
use polyrail_daemon::start::{
    Signals, WORKER, linkdb_probe, linkdb_settings, no_signals, prepare_process, random,
    relay_settings, session_settings, signals, start_linkdb_for,
};
use polyrail_daemon::{Certificates, Daemon, Supervisor};
use polyrail_identity::TlsIdentity;
use polyrail_model::NodeRole;
use polyrail_relay::{Foresight, Relay, Shutdown};
use polyrail_session::{Endpoint, Settings};
use polyrail_shared::Server;

use crate::descriptors::Descriptors;
use crate::listeners::Seat;
use crate::post::Post;
use crate::reach;
use crate::shell::{Cloud, SIGNALS, WAKER};

/// The parts that all workers share, as copies.
#[derive(Clone)]
struct Common {
    config: CloudConfig,
    identity: TlsIdentity,
    settings: Settings,
    /// The process's limit of open descriptors.
    descriptors: u64,
}

/// The parts of one worker alone.
struct Parts {
    poll: Poll,
    waker: Arc<Waker>,
    seat: Seat,
    post: Post,
    control: AdminHandle<CloudTables>,
    linkdb: Option<Foresight>,
}

/// A worker, ready to run.
struct Worker {
    poll: Poll,
    relay: Relay,
    cloud: Cloud,
}

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// An error that the operator must correct before the daemon can start: certificates, addresses,
/// threads.
pub fn run(config: CloudConfig, start: StartOptions) -> anyhow::Result<()> {
    let poll = Poll::new().context("no epoll")?;
    let signals = signals(poll.registry(), SIGNALS)?;
    let descriptors = prepare_process();
    let identity = TlsIdentity::load(&config.common.tls.paths())?;
    let families = reach::families(config.dial.families());
    let reports = config.common.metrics.is_some();
    let common = session_settings(&config.common);
    let settings = Settings { families, reports, speedtests: true, ..common };
    let common = Common { config, identity, settings, descriptors };
    let mut parts = parts(&common, start, poll)?.into_iter();
    let first = parts.next().context("no worker")?;
    let mut first = Worker::new(&common, first, signals, Supervisor::from_environment())?;
    let mut threads = Vec::new();
    for (parts, number) in parts.zip(1..) {
        threads.push(spawn(number, common.clone(), parts)?);
    }
    let Common { config, identity, .. } = &common;
    tracing::info!(
        name = %identity.name(),
        listen = ?config.listen,
        mode = %config.common.mode,
        workers = 1 + threads.len(),
        ipv4 = families.v4,
        ipv6 = families.v6,
        descriptors,
        "polyrail-cloud started"
    );
    first.cloud.daemon.supervisor.ready(Instant::now());
    first.run().context("the event loop failed")?;
    for thread in threads {
        // A worker that panics aborts the process.
        let _ = thread.join();
    }
    tracing::info!("polyrail-cloud stopped");
    Ok(())
}

/// The parts of each worker; `poll` is that of the first.
fn parts(common: &Common, start: StartOptions, poll: Poll) -> anyhow::Result<Vec<Parts>> {
    let (config, name) = (&common.config, common.identity.name());
    let processors = || available_parallelism().map_or(1, |number| number.get().min(64));
    let count = if config.workers == 0 { processors() } else { config.workers };
    let mut polls = vec![poll];
    for _ in 1..count {
        polls.push(Poll::new().context("no epoll")?);
    }
    let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), WAKER).map(Arc::new));
    let wakers: Vec<Arc<Waker>> = wakers.collect::<Result<_, _>>()?;
    let linkdb = config.common.linkdb.as_ref().map(|linkdb| {
        let settings = linkdb_settings(linkdb, linkdb.shares());
        let node = (NodeRole::Cloud, name.as_str());
        start_linkdb_for(linkdb, settings, node, &wakers[0], &wakers[1..])
    });
    let linkdb = linkdb.transpose()?;
    share_linkdb(config, linkdb.as_ref().map(|(first, _)| first))?;
    let options = AdminOptions {
        config: config.clone(),
        start,
        waker: wakers[0].clone(),
        watch_links: false,
        usage: None,
        // A cloud has no telemetry sources.
        linkdb: linkdb.as_ref().map(|(linkdb, _)| linkdb_probe(linkdb, Vec::new)),
    };
    let control = polyrail_admin::start_with(options, &wakers[1..]);
    let (control, controls) = control.context("cannot start the control thread")?;
    let mut controls = std::iter::once(control).chain(controls);
    let mut linkdbs =
        linkdb.into_iter().flat_map(|(first, others)| std::iter::once(first).chain(others));
    let mut seats = Seat::of_all(count, config.listen.len()).into_iter();
    let mut posts = Post::of_all(&wakers).into_iter();
    let mut list = Vec::new();
    for (poll, waker) in polls.into_iter().zip(wakers) {
        let (Some(seat), Some(post), Some(control)) = (seats.next(), posts.next(), controls.next())
        else {
            break;
        };
        list.push(Parts { poll, waker, seat, post, control, linkdb: linkdbs.next() });
    }
    Ok(list)
}

/// Starts the thread of the database that this cloud shares with others, if there is one.
fn share_linkdb(config: &CloudConfig, linkdb: Option<&Foresight>) -> anyhow::Result<()> {
    let shared = config.common.linkdb.as_ref().and_then(|linkdb| linkdb.shared.as_ref());
    let Some((SharedConfig { url, password_file, ca }, linkdb)) = shared.zip(linkdb) else {
        return Ok(());
    };
    let (url, password_file, ca) = (url.clone(), password_file.clone(), ca.clone());
    let server = Server { url, password_file, ca };
    server.check().context("linkdb.shared.url")?;
    polyrail_shared::start(server, linkdb.feeder())
        .context("cannot start the thread of the shared LinkDB")
}

/// Starts a worker's thread, and waits until it is ready.
fn spawn(number: usize, common: Common, parts: Parts) -> anyhow::Result<JoinHandle<()>> {
    let (ready, is_ready) = sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("{WORKER}{number}"));
    let thread = thread.spawn(move || {
        let worker = no_signals()
            .and_then(|signals| Worker::new(&common, parts, signals, Supervisor::default()));
        let mut worker = match worker {
            Ok(worker) => worker,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let _ = ready.send(Ok(()));
        if let Err(error) = worker.run() {
            tracing::error!(%error, "the event loop of a worker failed: aborting");
            std::process::abort();
        }
    });
    let thread = thread.context("cannot start a worker's thread")?;
    is_ready.recv().context("a worker ended at its start")??;
    Ok(thread)
}

impl Worker {
    fn new(
        common: &Common,
        parts: Parts,
        signals: Signals,
        supervisor: Supervisor,
    ) -> anyhow::Result<Self> {
        let Common { config, identity, settings, descriptors } = common.clone();
        let Parts { poll, waker, seat, post, control, linkdb } = parts;
        let (now, workers) = (Instant::now(), seat.workers);
        let mut endpoint = Endpoint::cloud(now, settings.clone(), random()?);
        endpoint.number_sessions(1 + workers.own as u64, workers.count as u64);
        let registry = poll.registry().try_clone()?;
        let mut relay = Relay::new(registry, endpoint, relay_settings(&config.common));
        relay.set_workers(workers);
        let daemon = Daemon {
            config,
            settings,
            // Without descriptors dials wait, and the heaviest user sheds flows.
            flows_within: usize::MAX,
            identity,
            control,
            linkdb,
            shutdown: Shutdown::default(),
            certificates: Certificates::default(),
            supervisor,
            signals,
        };
        let within = Descriptors::within(descriptors / workers.count as u64);
        let cloud = Cloud::new(now, daemon, within, waker, poll.registry(), (&seat, post))?;
        Ok(Self { poll, relay, cloud })
    }

    fn run(&mut self) -> std::io::Result<()> {
        polyrail_relay::run(&mut self.poll, &mut self.relay, &mut self.cloud)
    }
}

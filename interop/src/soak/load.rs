//! The passengers' flows of a soak: exchanges whose bytes are checked, a call, and lasting flows.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::addresses::{Family, SERVER};
use crate::client;
use crate::datagrams::{self, RunningCall};
use crate::exchange::{self, Exchange, Verdicts};
use crate::services;
use crate::world::World;

/// Threads of consecutive exchanges.
const LOADERS: usize = 8;
/// The most bytes of an exchange, each way.
const SIZE_MAX: u64 = 400_000;
const PORT: u16 = 5_000;
const ECHO_PORT: u16 = 5_001;
/// Lasting flows: one through the proxy, the others intercepted.
const LASTING: usize = 3;
/// How long a connect and a read may take: longer than any trouble.
const CONNECT_PATIENCE: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(20);
/// A packet of the call that takes longer is late.
const LATE: Duration = Duration::from_millis(300);

/// What became of the flows.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) flows: usize,
    /// Flows that were open at a kill and failed.
    pub(super) excused: usize,
    /// Other flows that failed, in words.
    pub(super) failed: Vec<String>,
    /// Flows with a wrong byte.
    pub(super) wrong: Vec<String>,
    /// The share of lost or late packets of the call.
    pub(super) call_lost: f64,
}

#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    paused: AtomicBool,
    busy: AtomicUsize,
    outcome: Mutex<Outcome>,
    /// The times at which new and open flows may fail.
    kills: Mutex<Vec<(Instant, Option<Instant>)>>,
}

/// The running load.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    call: RunningCall,
}

impl Load {
    pub(super) fn start(world: &World, seed: u64) -> Result<Self> {
        let (shared, verdicts) = (Arc::<Shared>::default(), Verdicts::default());
        for address in SERVER.both(PORT) {
            verdicts.serve(&world.lab.server, address)?;
        }
        services::serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO_PORT))?;
        datagrams::serve_echo(&world.lab.server)?;
        let mut threads = Vec::new();
        for loader in 0..LOADERS {
            let (shared, verdicts) = (Arc::clone(&shared), verdicts.clone());
            let generator = Pcg64::seed_from_u64(seed ^ (loader as u64 + 1));
            let to = SERVER.at(Family::BOTH[loader % 2], PORT);
            threads.push(client::thread(&world.lab.passenger, move || {
                perform_until_over(&shared, &verdicts, generator, to);
            })?);
        }
        let to = SERVER.at(Family::V4, datagrams::ECHO_PORT);
        let socket = datagrams::connected(&world.lab.passenger, to)?;
        Ok(Self { shared, threads, call: RunningCall::start(&socket)? })
    }

    /// Waits until no exchange runs.
    pub(super) fn pause(&self) -> Result<()> {
        self.shared.paused.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while self.shared.busy.load(Ordering::SeqCst) > 0 {
            ensure!(began.elapsed() < 2 * PATIENCE, "flows hang");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn resume(&self) {
        self.shared.paused.store(false, Ordering::SeqCst);
    }

    /// Runs `kill`, which kills a daemon and waits until new flows work.
    pub(super) fn excuse(&self, kill: impl FnOnce() -> Result<()>) -> Result<()> {
        lock(&self.shared.kills).push((Instant::now(), None));
        let outcome = kill();
        if let Some((_, end)) = lock(&self.shared.kills).last_mut() {
            *end = Some(Instant::now());
        }
        outcome
    }

    /// Opens flows that must last until the end.
    pub(super) fn open_lasting(&self, world: &World) -> Result<Lasting> {
        let target = SERVER.at(Family::V4, ECHO_PORT);
        let mut streams = vec![client::socks5(&world.lab.passenger, world.proxy(), target)?.0];
        while streams.len() < LASTING {
            streams.push(client::connect(&world.lab.passenger, target)?);
        }
        let over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&over);
        let talk = std::thread::spawn(move || talk(&mut streams, &told));
        Ok(Lasting { over, talk })
    }

    /// Ends everything.
    pub(super) fn end(self) -> Result<Outcome> {
        self.shared.over.store(true, Ordering::SeqCst);
        self.resume();
        for thread in self.threads {
            thread.join().map_err(|_| anyhow!("a client panicked"))?;
        }
        let call = self.call.end()?;
        ensure!(call.corrupted == 0, "{} datagrams that nobody has sent", call.corrupted);
        let mut outcome = std::mem::take(&mut *lock(&self.shared.outcome));
        outcome.call_lost = call.bad(LATE) as f64 / call.round_trips.len().max(1) as f64;
        Ok(outcome)
    }
}

/// Flows on which a word passes now and then.
#[derive(Debug)]
pub(super) struct Lasting {
    over: Arc<AtomicBool>,
    talk: JoinHandle<Result<()>>,
}

impl Lasting {
    pub(super) fn end(self) -> Result<()> {
        self.over.store(true, Ordering::SeqCst);
        self.talk.join().map_err(|_| anyhow!("a client panicked"))?.context("a lasting flow")
    }
}

fn talk(streams: &mut [TcpStream], over: &AtomicBool) -> Result<()> {
    let mut count = 0_u64;
    while !over.load(Ordering::SeqCst) {
        for stream in &mut *streams {
            stream.write_all(&count.to_be_bytes())?;
            let mut heard = [0; 8];
            stream.read_exact(&mut heard).with_context(|| format!("word {count}"))?;
            ensure!(heard == count.to_be_bytes(), "the echo of {count} is {heard:?}");
        }
        count += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn perform_until_over(shared: &Shared, verdicts: &Verdicts, mut generator: Pcg64, to: SocketAddr) {
    while !shared.over.load(Ordering::SeqCst) {
        shared.busy.fetch_add(1, Ordering::SeqCst);
        if shared.paused.load(Ordering::SeqCst) {
            shared.busy.fetch_sub(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let exchange = Exchange::random(&mut generator, SIZE_MAX);
        let began = Instant::now();
        let result = perform(&exchange, to, verdicts);
        shared.note(began, result);
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(generator.random_range(0..200)));
    }
}

fn perform(exchange: &Exchange, to: SocketAddr, verdicts: &Verdicts) -> Result<()> {
    // Nothing answers while the gateway restarts.
    let stream = TcpStream::connect_timeout(&to, CONNECT_PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    exchange.perform(stream)?;
    verdicts.verdict(exchange, PATIENCE)
}

impl Shared {
    fn note(&self, began: Instant, result: Result<()>) {
        let mut outcome = lock(&self.outcome);
        outcome.flows += 1;
        let Err(error) = result else { return };
        let words = format!("{error:#}");
        let kills = lock(&self.kills);
        // The surviving daemon resets its flows a moment after the other one serves again.
        let overlaps =
            |&(_, end): &(Instant, Option<Instant>)| end.is_none_or(|end| began <= end + AFTERMATH);
        if exchange::is_wrong(&words) {
            outcome.wrong.push(words);
        } else if kills.iter().any(overlaps) {
            outcome.excused += 1;
        } else {
            outcome.failed.push(words);
        }
    }
}

/// How long after a restart flows of the old process may still be reset.
const AFTERMATH: Duration = Duration::from_secs(2);

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

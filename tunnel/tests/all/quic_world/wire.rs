//! The link between two ends: a relay of datagrams that drops, repeats, delays and reorders them
//! by a seed, pauses, cuts long ones, and changes the address that the cloud sees.

use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::loopback;

/// What the wire does to datagrams; chances in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    pub repeat: u64,
    /// How many are held back by `jitter`, so that others overtake them.
    pub late: u64,
    pub jitter: Duration,
    pub delay: Duration,
    /// Longer datagrams are lost.
    pub longest: usize,
    pub paused: bool,
    /// Bytes a second in each direction, and how many of them wait before the next is lost.
    pub rate: Option<(u64, u64)>,
}

impl Default for Faults {
    fn default() -> Self {
        let (delay, jitter) = (Duration::ZERO, Duration::from_millis(3));
        Self {
            loss: 0,
            repeat: 0,
            late: 0,
            jitter,
            delay,
            longest: 65_535,
            paused: false,
            rate: None,
        }
    }
}

/// A wire to one server for one client at a time, on a thread of its own.
pub struct Tap {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    faults: Mutex<Faults>,
    recording: AtomicBool,
    rebinding: AtomicBool,
    over: AtomicBool,
    /// What the client sent while recording.
    record: Mutex<Vec<Vec<u8>>>,
    server: Mutex<SocketAddr>,
    /// Datagrams towards the client and towards the server.
    passed: [AtomicU64; 2],
    longest_passed: AtomicU64,
}

/// A datagram on its way, soonest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying(std::cmp::Reverse<(Instant, u64)>, bool, Vec<u8>);

impl Tap {
    pub fn new(server: SocketAddr) -> Self {
        Self::with(server, Faults::default(), 1)
    }

    pub fn with(server: SocketAddr, faults: Faults, seed: u64) -> Self {
        let client_side = UdpSocket::bind(loopback()).unwrap();
        let address = client_side.local_addr().unwrap();
        let shared = Arc::new(Shared {
            faults: Mutex::new(faults),
            recording: AtomicBool::new(false),
            rebinding: AtomicBool::new(false),
            over: AtomicBool::new(false),
            record: Mutex::default(),
            server: Mutex::new(server),
            passed: Default::default(),
            longest_passed: AtomicU64::new(0),
        });
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || run(&shared, &client_side, seed)
        });
        Self { shared, address, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.faults.lock().unwrap());
    }

    /// Begins to keep what the client sends.
    pub fn record(&self) {
        self.shared.recording.store(true, Ordering::Relaxed);
    }

    /// Sends the recorded datagrams again, from another address.
    pub fn replay(&self, server: SocketAddr) {
        let socket = UdpSocket::bind(loopback()).unwrap();
        for datagram in self.shared.record.lock().unwrap().iter() {
            socket.send_to(datagram, server).unwrap();
        }
    }

    /// Goes on from another port, as a translator does that forgot the old one.
    pub fn rebind(&self) {
        self.shared.rebinding.store(true, Ordering::Relaxed);
    }

    /// Leads to another server from now on.
    pub fn redirect(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
        self.rebind();
    }

    /// Datagrams that passed so far, towards the client and towards the server.
    pub fn passed(&self) -> [u64; 2] {
        self.shared.passed.each_ref().map(|passed| passed.load(Ordering::Relaxed))
    }

    /// The longest datagram that passed so far.
    pub fn longest_passed(&self) -> u64 {
        self.shared.longest_passed.load(Ordering::Relaxed)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, client_side: &UdpSocket, seed: u64) {
    let open = || {
        let socket = UdpSocket::bind(loopback()).unwrap();
        socket.connect(*shared.server.lock().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let mut server_side = open();
    client_side.set_nonblocking(true).unwrap();
    let (mut client, mut random, mut count) = (None, seed, 0);
    let mut flying: BinaryHeap<Flying> = BinaryHeap::new();
    let mut buffer = [0; 65_536];
    // When the link of each direction has sent its queue.
    let mut free = [Instant::now(); 2];
    while !shared.over.load(Ordering::Relaxed) {
        if shared.rebinding.swap(false, Ordering::Relaxed) {
            server_side = open();
        }
        let faults = *shared.faults.lock().unwrap();
        let mut idle = true;
        for up in [true, false] {
            for _ in 0..256 {
                let length = if up {
                    let Ok((length, from)) = client_side.recv_from(&mut buffer) else { break };
                    client = Some(from);
                    length
                } else {
                    let Ok(length) = server_side.recv(&mut buffer) else { break };
                    length
                };
                idle = false;
                let datagram = &buffer[..length];
                if up && shared.recording.load(Ordering::Relaxed) {
                    shared.record.lock().unwrap().push(datagram.to_vec());
                }
                let mut chance = |thousandths| draw(&mut random) % 1_000 < thousandths;
                if faults.paused || length > faults.longest || chance(faults.loss) {
                    continue;
                }
                let copies = if chance(faults.repeat) { 2 } else { 1 };
                let late = if chance(faults.late) { faults.jitter } else { Duration::ZERO };
                let mut through = Instant::now();
                if let Some((rate, queue)) = faults.rate {
                    let begin = free[usize::from(up)].max(through);
                    let time = |bytes| Duration::from_secs_f64(bytes as f64 / rate as f64);
                    if begin - through > time(queue) {
                        continue;
                    }
                    // The headers of IP and UDP travel as well.
                    through = begin + time(length as u64 + 28);
                    free[usize::from(up)] = through;
                }
                let at = through + faults.delay + late;
                for _ in 0..copies {
                    count += 1;
                    let order = std::cmp::Reverse((at, count));
                    flying.push(Flying(order, up, datagram.to_vec()));
                }
            }
        }
        land(shared, &mut flying, [&server_side, client_side], client);
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Delivers the due datagrams.
fn land(
    shared: &Shared,
    flying: &mut BinaryHeap<Flying>,
    [server_side, client_side]: [&UdpSocket; 2],
    client: Option<SocketAddr>,
) {
    while flying.peek().is_some_and(|next| next.0.0.0 <= Instant::now()) {
        let Some(Flying(_, up, datagram)) = flying.pop() else { return };
        shared.passed[usize::from(up)].fetch_add(1, Ordering::Relaxed);
        shared.longest_passed.fetch_max(datagram.len() as u64, Ordering::Relaxed);
        if up {
            let _ = server_side.send(&datagram);
        } else if let Some(client) = client {
            let _ = client_side.send_to(&datagram, client);
        }
    }
}

/// The next number of a SplitMix64 sequence (Steele, Lea, Flood 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

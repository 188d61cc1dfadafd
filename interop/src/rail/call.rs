//! A call of the rail bench: both sides send a packet every 20 ms.
//!
//! Both sides run in one process, so that they share a clock. A delay counts from the moment at
//! which the packet was due, and so includes a late sender.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::rail::Call;
use polyrail_emulator::record::CallRun;

use super::flow::sleep_until;
use super::stage::{Door, Port, Stage};

/// A running call.
pub(crate) struct Calling {
    /// The delays of the packets that the server and the user receive.
    receivers: [JoinHandle<Result<Vec<Option<f32>>>>; 2],
    senders: [JoinHandle<()>; 2],
}

/// What a thread of a call needs.
#[derive(Clone, Copy)]
struct Plan {
    call: Call,
    epoch: Instant,
}

impl Calling {
    /// Starts both sides; `user` is the user's number.
    pub(super) fn start(stage: &Stage, user: usize, call: Call) -> Result<Self> {
        let server = stage.server_udp(Port::Call)?;
        let socket = on_door(&stage.door, move |door| door.udp(user, 0, Port::Call))?;
        Self::between(stage.epoch()?, call, socket, server)
    }

    /// Starts both sides with these sockets; the user's is connected to the server's.
    pub(crate) fn between(
        epoch: Instant,
        call: Call,
        socket: UdpSocket,
        server: UdpSocket,
    ) -> Result<Self> {
        let plan = Plan { call, epoch };
        let (heard, hears) = mpsc::channel();
        let (server_out, user_in) = (server.try_clone()?, socket.try_clone()?);
        Ok(Self {
            receivers: [
                std::thread::spawn(move || {
                    plan.receive(&server, |from| heard.send(from).unwrap_or(()))
                }),
                std::thread::spawn(move || plan.receive(&user_in, |_| ())),
            ],
            senders: [
                std::thread::spawn(move || plan.greet_and_send(&socket)),
                std::thread::spawn(move || plan.answer(&server_out, &hears)),
            ],
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.receivers.iter().all(JoinHandle::is_finished)
    }

    pub(crate) fn finish(self) -> Result<CallRun> {
        let panicked = |_| anyhow!("a thread of the call panicked");
        let [up, down] = self.receivers.map(|thread| thread.join().map_err(panicked)?);
        let (up, down) = (up.context("server of the call")?, down.context("user of the call")?);
        for sender in self.senders {
            sender.join().map_err(panicked)?;
        }
        Ok(CallRun { up, down })
    }
}

impl Plan {
    /// The user's packets. Greetings before them tell the server where to send.
    fn greet_and_send(&self, socket: &UdpSocket) {
        let begin = self.epoch + self.call.at;
        let mut greeting_at = begin - EARLY;
        while greeting_at < begin {
            sleep_until(greeting_at);
            greeting_at += Call::PACKET_EVERY;
            // As for the packets: a full queue or a missing route loses it.
            let _ = socket.send(&packet(GREETING));
        }
        self.send(0, |bytes| drop(socket.send(bytes)));
    }

    /// The server's packets, to the first address heard; those before count as lost.
    fn answer(&self, socket: &UdpSocket, hears: &Receiver<SocketAddr>) {
        let Ok(user) = hears.recv() else { return };
        let late = Instant::now().saturating_duration_since(self.epoch + self.call.at);
        let first = late.div_duration_f64(Call::PACKET_EVERY).ceil() as u32;
        self.send(first, |bytes| drop(socket.send_to(bytes, user)));
    }

    fn send(&self, first: u32, transmit: impl Fn(&[u8])) {
        for number in first..self.call.packets {
            sleep_until(self.epoch + self.call.sent_at(number));
            transmit(&packet(number));
        }
    }

    /// The delay of each packet.
    fn receive(&self, socket: &UdpSocket, heard: impl Fn(SocketAddr)) -> Result<Vec<Option<f32>>> {
        let mut delays = vec![None; self.call.packets as usize];
        let end = self.epoch + self.call.sent_at(self.call.packets) + LATE;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut buffer = [0; Call::PACKET + 1];
        while Instant::now() < end {
            // A timeout, or the news that an earlier packet was refused.
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let received_at = Instant::now();
            let number = buffer.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            ensure!(buffer[..length] == packet(number), "packet {number} has other bytes");
            heard(from);
            if number == GREETING {
                continue;
            }
            let delay = delays.get_mut(number as usize).context("a packet that nobody sent")?;
            ensure!(delay.is_none(), "packet {number} came twice");
            let due = self.epoch + self.call.sent_at(number);
            *delay = Some(received_at.saturating_duration_since(due).as_secs_f32() * 1e3);
        }
        Ok(delays)
    }
}

/// Runs `work` on a thread in the users' namespace.
fn on_door<T: Send + 'static>(
    door: &Door,
    work: impl FnOnce(&Door) -> Result<T> + Send + 'static,
) -> Result<T> {
    let own = door.clone();
    door.thread(move || work(&own))?.join().map_err(|_| anyhow!("a user's thread panicked"))?
}

fn packet(number: u32) -> [u8; Call::PACKET] {
    let mut packet = [number as u8; Call::PACKET];
    packet[..4].copy_from_slice(&number.to_be_bytes());
    packet
}

/// How long before the call the user greets.
const EARLY: Duration = Duration::from_millis(500);
/// How long after the call the last packets may come.
const LATE: Duration = Duration::from_secs(1);
/// The number of a greeting.
const GREETING: u32 = u32::MAX;

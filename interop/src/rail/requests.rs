//! Requests of the rail bench: a UDP datagram from a new port, and its answer, as of DNS.

use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use polyrail_emulator::rail::Message;

use super::flow::{Faults, left, sleep_until, words};
use super::stage::{Door, Port, Stage};

/// The server of a stage; serves until the process ends.
pub(super) fn serve(stage: &Stage, faults: &Faults) -> Result<()> {
    let (socket, faults) = (stage.server_udp(Port::Requests)?, faults.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; Message::UP + 1];
        loop {
            // An error is about an earlier datagram.
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            match number_of(&buffer[..length]) {
                Ok(number) => drop(socket.send_to(&number.to_be_bytes(), from)),
                Err(error) => faults.add(&error),
            }
        }
    });
    Ok(())
}

/// The requests of one user; the calling thread is in the users' namespace. Each has a thread of
/// its own, because an answer may take longer than the time to the next request.
pub(super) fn ask_all(
    door: &Door,
    user: usize,
    epoch: Instant,
    times: &[Duration],
    end: Instant,
) -> Result<Vec<Option<f64>>> {
    let mut asking: Vec<JoinHandle<Result<Option<f64>>>> = Vec::new();
    for (number, time) in (0_u32..).zip(times) {
        let at = epoch + *time;
        sleep_until(at);
        let socket = door.udp(user, number as usize, Port::Requests)?;
        asking.push(std::thread::spawn(move || ask(&socket, user, number, at, end)));
    }
    let answer =
        |thread: JoinHandle<_>| thread.join().map_err(|_| anyhow!("a request panicked"))?;
    asking.into_iter().map(answer).collect()
}

/// The seconds until the answer, with repetitions as a resolver makes them.
fn ask(
    socket: &UdpSocket,
    user: usize,
    number: u32,
    at: Instant,
    end: Instant,
) -> Result<Option<f64>> {
    let mut answer = [0; Message::DOWN + 1];
    while let Ok(left) = left(end) {
        // A missing route loses it.
        let _ = socket.send(&words(user as u64, number));
        let again = Instant::now() + left.min(REPEAT_AFTER);
        socket.set_read_timeout(Some(left.min(REPEAT_AFTER)))?;
        let received = socket.recv(&mut answer);
        if received.is_err() {
            // A refusal comes at once.
            sleep_until(again);
        }
        if let Ok(length) = received {
            ensure!(answer[..length] == number.to_be_bytes(), "an answer to another request");
            return Ok(Some(at.elapsed().as_secs_f64()));
        }
    }
    Ok(None)
}

/// The number of a request, whose bytes must be right.
fn number_of(request: &[u8]) -> Result<u32> {
    let (number, rest) = request.split_first_chunk().ok_or_else(|| anyhow!("a short request"))?;
    let number = u32::from_be_bytes(*number);
    let user = rest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    ensure!(request == words(user, number), "request {number} has other bytes");
    Ok(number)
}

/// The time after which a request is sent again.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

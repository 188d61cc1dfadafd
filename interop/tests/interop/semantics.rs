//! What TCP promises, kept across both legs.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::client::{self, Target};
use polyrail_interop::exchange::{self, Ending, Exchange, Verdicts};
use polyrail_interop::services::{self, BANNER};
use polyrail_interop::world::{Plan, World};

use crate::in_both_modes;

const BOUND: Duration = Duration::from_secs(15);
const PORT: u16 = 2525;

/// A connection of the passenger to the server's `PORT`, by every way there is.
fn every_way(world: &World) -> Result<Vec<std::net::TcpStream>> {
    let passenger = &world.lab.passenger;
    let mut ways = Vec::new();
    for family in Family::BOTH {
        let to = SERVER.at(family, PORT);
        ways.push(client::connect(passenger, to)?);
        let (stream, code) = client::socks5(passenger, world.proxy(), &Target::Address(to))?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        ways.push(stream);
    }
    Ok(ways)
}

#[test]
fn a_server_that_speaks_first_is_heard_without_a_word_from_the_client() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        for address in SERVER.both(PORT) {
            services::serve_banner(&world.lab.server, address)?;
        }
        for mut stream in every_way(world)? {
            let started = Instant::now();
            let mut banner = vec![0; BANNER.len()];
            stream.read_exact(&mut banner).context("the banner")?;
            ensure!(banner == BANNER.as_bytes(), "{:?}", String::from_utf8_lossy(&banner));
            println!("banner after {:?}", started.elapsed());
            stream.write_all(b"EHLO train\r\n")?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).context("the answer")?;
            ensure!(&answer == b"EHLO train\r\n", "{answer:?}");
        }
        Ok(())
    })
}

#[test]
fn each_direction_closes_by_itself() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        exchanges(world, &[Ending::ClientFirst, Ending::ServerFirst, Ending::Together])
    })
}

#[test]
fn a_reset_reaches_the_other_end_in_both_directions() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        exchanges(world, &[Ending::ClientResets, Ending::ServerResets])
    })
}

fn exchanges(world: &World, endings: &[Ending]) -> Result<()> {
    let verdicts = Verdicts::default();
    for address in SERVER.both(PORT) {
        verdicts.serve(&world.lab.server, address)?;
    }
    for (round, ending) in endings.iter().enumerate() {
        for (way, stream) in every_way(world)?.into_iter().enumerate() {
            let seed = (round * 100 + way) as u64;
            let exchange = Exchange { seed, up: 300_000, down: 400_000, ending: *ending };
            exchange.perform(stream)?;
            verdicts.verdict(&exchange, Duration::from_secs(10))?;
        }
    }
    Ok(())
}

#[test]
fn a_reset_comes_after_the_data_before_it() -> Result<()> {
    const SIZE: usize = 50_000;
    in_both_modes(&Plan::twins(), BOUND, |world| {
        for address in SERVER.both(PORT) {
            services::serve(&world.lab.server, address, |mut stream, _| {
                // Failures show at the client, which misses bytes.
                let _ = stream.write_all(&[7; SIZE]);
                std::thread::sleep(Duration::from_millis(500));
                let _ = exchange::reset(&stream);
            })?;
        }
        for mut stream in every_way(world)? {
            let mut received = 0;
            let mut chunk = [0; 4096];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => bail!("the reset came as an ordinary end after {received} bytes"),
                    Ok(length) => received += length,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                    Err(error) => bail!("{error} after {received} bytes"),
                }
            }
            ensure!(received == SIZE, "{received} of {SIZE} bytes came before the reset");
        }
        Ok(())
    })
}

#[test]
fn one_byte_at_a_time_crosses_without_delay() -> Result<()> {
    in_both_modes(&Plan::new().wire("alpha").wire("beta"), BOUND, |world| {
        services::serve_echo(&world.lab.server, SERVER.at(Family::V4, PORT))?;
        let mut stream = client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
        let mut byte = [0];
        for round in 0..200u8 {
            stream.write_all(&[round])?;
            stream.read_exact(&mut byte).with_context(|| format!("round {round}"))?;
            ensure!(byte == [round], "{byte:?} came back in round {round}");
        }
        stream.shutdown(Shutdown::Write)?;
        ensure!(stream.read(&mut byte)? == 0, "the echo server's end did not come back");
        Ok(())
    })
}

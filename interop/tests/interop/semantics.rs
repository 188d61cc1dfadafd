//! The semantics of TCP across both legs.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::client;
use polyrail_interop::exchange::{self, Ending, Exchange, Verdicts};
use polyrail_interop::services::{self, BANNER};
use polyrail_interop::world::{Plan, World};

use crate::in_both_modes;

const BOUND: Duration = Duration::from_secs(15);
const PORT: u16 = 2525;

/// Connections of the passenger to the server's `PORT`: intercepted and through SOCKS5.
fn all_connections(world: &World) -> Result<Vec<std::net::TcpStream>> {
    let passenger = &world.lab.passenger;
    let mut ways = Vec::new();
    for family in Family::BOTH {
        let to = SERVER.at(family, PORT);
        ways.push(client::connect(passenger, to)?);
        let (stream, code) = client::socks5(passenger, world.proxy(), to)?;
        ensure!(code == 0, "SOCKS5 reply {code}");
        ways.push(stream);
    }
    Ok(ways)
}

#[test]
fn greeting_of_a_server_arrives_before_the_client_sends() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        for address in SERVER.both(PORT) {
            services::serve_banner(&world.lab.server, address)?;
        }
        for mut stream in all_connections(world)? {
            let mut banner = vec![0; BANNER.len()];
            stream.read_exact(&mut banner).context("the banner")?;
            ensure!(banner == BANNER.as_bytes(), "{:?}", String::from_utf8_lossy(&banner));
            stream.write_all(b"EHLO train\r\n")?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).context("the answer")?;
            ensure!(&answer == b"EHLO train\r\n", "{answer:?}");
        }
        Ok(())
    })
}

#[test]
fn each_direction_closes_independently() -> Result<()> {
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
        for (way, stream) in all_connections(world)?.into_iter().enumerate() {
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
        for mut stream in all_connections(world)? {
            let mut received = 0;
            let mut chunk = [0; 4096];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => bail!("a FIN arrived in place of the reset after {received} bytes"),
                    Ok(length) => received += length,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                    Err(error) => bail!("{error} after {received} bytes"),
                }
            }
            ensure!(received == SIZE, "{received} of {SIZE} bytes arrived before the reset");
        }
        Ok(())
    })
}

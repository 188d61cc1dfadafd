//! Trials over the kernel's TCP: each flow has a link of its own in one emulator.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::control::Client;
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::scenario::{End, LinkScenario, Scenario};
use polyrail_emulator::tcp::TcpInfo;
use polyrail_emulator::trials::{FLOW_BEGINS, Played, SAMPLE_EVERY, Sample};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::Job;
use crate::bulk::Bulk;
use crate::carrier::{CONTROL_SOCKET, Emulator};
use crate::programs::Programs;
use crate::scratch;

const PORT: u16 = 5_001;
/// Bytes of one write.
const CHUNK: usize = 64 * 1_024;

/// A running flow.
struct Flow {
    server: TcpStream,
    client: Bulk,
}

/// Plays trials at the same time.
pub(super) fn play(batch: &[Job]) -> Result<Vec<Played>> {
    let folder = scratch::private_folder("64m")?;
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    for side in [&near, &far] {
        // A connection must not start with the metrics of an earlier one.
        side.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    }
    let scenario = scenario(batch)?;
    let emulator = Emulator::start(&Programs::find()?, &folder, [&near, &far], &scenario)?;
    let mut control = Client::connect(folder.join(CONTROL_SOCKET))?;
    let flows = batch.iter().enumerate().map(|(place, job)| {
        let begin = emulator.epoch + FLOW_BEGINS;
        Flow::connect([&near, &far], place, job.control, begin, begin + job.trial.length)
    });
    let flows = flows.collect::<Result<Vec<Flow>>>()?;
    let mut samples = vec![Vec::new(); batch.len()];
    let mut next = emulator.epoch + FLOW_BEGINS;
    while next < emulator.epoch + super::longest(batch) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let at = Instant::now() - emulator.epoch;
        let queues = queues(&mut control)?;
        for (place, samples) in samples.iter_mut().enumerate() {
            if at <= batch[place].trial.length {
                let queue = *queues.get(place).context("a link without statistics")?;
                samples.push(Sample { at_s: at.as_secs_f64(), queue, ..flows[place].sample()? });
            }
        }
        next += SAMPLE_EVERY;
    }
    Ok(batch.iter().zip(samples).map(|(job, samples)| job.played(&job.trial, samples)).collect())
}

fn scenario(batch: &[Job]) -> Result<Scenario> {
    let links = batch.iter().enumerate().map(|(place, job)| {
        let [near, far] = addresses(place);
        let end = |interface: String, address: Ipv4Addr| -> Result<End> {
            let addresses = vec![format!("{address}/30").parse()?];
            Ok(End { interface, addresses, namespace: None })
        };
        let [up, down] = job.trial.links.clone();
        Ok(LinkScenario {
            name: format!("link{place}"),
            mtu: 1_500,
            near: end(format!("near{place}"), near)?,
            far: end(format!("far{place}"), far)?,
            nat: false,
            up,
            down,
        })
    });
    let seed = batch.iter().fold(1_u64, |all, job| all.wrapping_mul(31).wrapping_add(job.seed));
    let links = links.collect::<Result<_>>()?;
    Ok(Scenario { seed, duration: None, near: None, far: None, links })
}

/// The addresses of client and server of a link.
fn addresses(place: usize) -> [Ipv4Addr; 2] {
    let third = u8::try_from(place).unwrap_or(u8::MAX);
    [1, 2].map(|host| Ipv4Addr::new(10, 80, third, host))
}

/// Bytes queued before each downlink.
fn queues(control: &mut Client) -> Result<Vec<u64>> {
    let stats = control.command("stats")?;
    let links = stats.get("links").and_then(Value::as_array).context("no links")?;
    let queued = |link: &Value| link["down"]["queued"]["bytes"].as_u64().context("no queue");
    links.iter().map(queued).collect()
}

impl Flow {
    /// Connects over the link at `place`; the server writes from `begin` to `end`.
    fn connect(
        [near, far]: [&Namespace; 2],
        place: usize,
        control: &str,
        begin: Instant,
        end: Instant,
    ) -> Result<Self> {
        let [client, server] = addresses(place);
        let listener = far.run(|| listen(server, control))??;
        let client = near.run(|| -> Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((client, 0)).into())?;
            socket.connect(&SocketAddr::from((server, PORT)).into())?;
            Ok(socket.into())
        })??;
        let server: TcpStream = listener.accept()?.0.into();
        let mut writer = server.try_clone()?;
        std::thread::spawn(move || {
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
            let chunk = vec![0; CHUNK];
            while Instant::now() < end && writer.write_all(&chunk).is_ok() {}
        });
        Ok(Self { server, client: Bulk::read(client)? })
    }

    /// A sample without its time and its queue.
    fn sample(&self) -> Result<Sample> {
        let info = TcpInfo::read(self.server.as_fd()).context("TCP_INFO")?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Sample {
            delivered: self.client.bytes(),
            rtt_ms: ms(info.rtt),
            window: info.window,
            backoff: info.backoff,
            rto_ms: ms(info.timeout),
            resent: info.resent,
            ..Sample::default()
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Wakes the writer; fails only if the connection is gone.
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn listen(address: Ipv4Addr, control: &str) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket
        .set_tcp_congestion(control.as_bytes())
        .with_context(|| format!("TCP cannot use {control} here: run `modprobe tcp_{control}`"))?;
    socket.bind(&SocketAddr::from((address, PORT)).into())?;
    socket.listen(1)?;
    Ok(socket)
}

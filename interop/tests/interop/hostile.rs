//! Misconfigured and hostile peers of the cloud. A healthy flow continues next to each.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_interop::addresses::{CLOUD, CLOUD_PORT, Family};
use polyrail_interop::client;
use polyrail_interop::configuration::{Configuration, GATEWAY_NAME, strings};
use polyrail_interop::intruder::{self, ALPN, Tls};
use polyrail_interop::keys::Keys;
use polyrail_interop::lab::Side;
use polyrail_interop::world::{Plan, World, start_daemon};
use polyrail_session::wire::{self, Decoder, Frame, Greeting, Terms, VERSION};

use crate::scenario;

const BOUND: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(5);

/// Words of one line of the cloud's log, and the attack that must cause the line.
type Attack = (&'static [&'static str], fn(&World) -> Result<()>);

const ATTACKS: [Attack; 8] = [
    (&["WARN", "not issued by the authority"], certificate_of_another_authority),
    (&["WARN", "no certificate"], |world| refused(dial(world, None, ALPN))),
    (&["WARN", "not one of a gateway"], certificate_for_the_other_role),
    (&["WARN", "does not speak polyrail/1"], |world| {
        refused(dial(world, Some((world.keys.folder(), GATEWAY_NAME)), "h2"))
    }),
    (&["WARN", "does not speak TLS"], |world| {
        let mut stream = client::connect(&world.lab.gateway, cloud())?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: cloud\r\n\r\n")?;
        closes(&mut stream)
    }),
    (&["WARN", "version"], |world| {
        let mut tls = intruder(world)?;
        tls.write_all(&[0xff; 600])?;
        closes(&mut tls)
    }),
    (&["WARN", "16380"], oversized_frame),
    (&["WARN", "thief", "the session is bound to another certificate"], stolen_join),
];

#[test]
fn attacks_on_the_cloud_are_logged_and_a_healthy_flow_continues() -> Result<()> {
    // To the worker of another gateway a stolen session is an unknown one.
    scenario(&Plan::twins().cloud("workers", 1), BOUND, |world| {
        let file = world.web.add(6_000_000, 20)?;
        let mut healthy = world.download(&file).start(&world.lab.passenger)?;
        healthy.wait_for_bytes(100_000)?;
        for (words, attack) in ATTACKS {
            let before = world.cloud.log().len();
            attack(world).with_context(|| format!("the attack of {words:?}"))?;
            world.cloud.wait_until(&format!("{words:?} in one line"), SOON, |cloud| {
                let log = cloud.log();
                let mut lines = log[before..].lines();
                lines.any(|line| words.iter().all(|word| line.contains(word)))
            })?;
        }
        healthy.verify(&file).context("the healthy flow")?;
        Ok(())
    })
}

fn certificate_of_another_authority(world: &World) -> Result<()> {
    let foreign = Keys::create(&world.programs, &world.lab.folder().join("foreign"))?;
    foreign.issue_gateway("stranger")?;
    refused(dial(world, Some((foreign.folder(), "stranger")), ALPN))
}

fn certificate_for_the_other_role(world: &World) -> Result<()> {
    world.keys.issue_cloud("other-cloud")?;
    refused(dial(world, Some((world.keys.folder(), "other-cloud")), ALPN))
}

fn oversized_frame(world: &World) -> Result<()> {
    let mut tls = intruder(world)?;
    let mut bytes = Vec::new();
    wire::encode(&hello(8), &mut bytes);
    bytes.extend_from_slice(&[VERSION, 0x06, 0xff, 0xff]);
    bytes.extend_from_slice(&[0; 0xffff]);
    // The cloud may close before all is written.
    let _ = tls.write_all(&bytes);
    closes(&mut tls)
}

/// A JOIN to another gateway's session with the right proof, which only the owner can compute.
fn stolen_join(world: &World) -> Result<()> {
    let mut owner = intruder(world)?;
    let mut bytes = Vec::new();
    wire::encode(&hello(9), &mut bytes);
    owner.write_all(&bytes)?;
    let (mut session, mut key) = (None, [0; 32]);
    until(&mut owner, |frame| match frame {
        Frame::Welcome { session: id, .. } => {
            session = Some(*id);
            true
        }
        _ => false,
    })?;
    owner.conn.export_keying_material(&mut key, b"EXPORTER-polyrail-join", None)?;
    let session = session.context("no session")?;
    world.keys.issue_gateway("thief")?;
    let mut thief = dial(world, Some((world.keys.folder(), "thief")), ALPN)?;
    let proof = proof(&key, &session.0, 2);
    let mut bytes = Vec::new();
    wire::encode(&Frame::Join { session, proof, greeting: greeting(2) }, &mut bytes);
    thief.write_all(&bytes)?;
    let mut reason = String::new();
    until(&mut thief, |frame| match frame {
        Frame::Reject { reason: words, .. } => {
            reason.clone_from(words);
            true
        }
        Frame::Welcome { .. } => true,
        _ => false,
    })?;
    ensure!(!reason.is_empty(), "the thief was welcomed");
    Ok(())
}

#[test]
fn gateway_refuses_a_cloud_with_another_name() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let file = world.web.add(3_000_000, 21)?;
        let healthy = world.download(&file).start(&world.lab.passenger)?;
        let mut configuration = Configuration::gateway(world.keys.folder(), &["alpha".to_string()]);
        configuration.set("cloud.name", "cloud-2");
        configuration.remove("intercept");
        configuration.remove("dns");
        configuration.set("socks5.listen", strings(["127.0.0.1:1081"]));
        configuration.write(&world.lab.folder().join("mistaken.toml"))?;
        let mut mistaken = start_daemon(&world.lab, &world.programs, Side::Gateway, "mistaken")?;
        mistaken.wait_for_log("expected was", SOON)?;
        healthy.verify(&file).context("the healthy flow")?;
        Ok(())
    })
}

fn cloud() -> std::net::SocketAddr {
    CLOUD.at(Family::V4, CLOUD_PORT)
}

/// A connection of a second gateway of the same operator, made by the test.
fn intruder(world: &World) -> Result<Tls> {
    world.keys.reissue("train-2", "gateway")?;
    dial(world, Some((world.keys.folder(), "train-2")), ALPN)
}

/// A TLS connection to the cloud with a certificate from a folder, after its handshake.
fn dial(world: &World, identity: Option<(&Path, &str)>, alpn: &str) -> Result<Tls> {
    intruder::dial(&world.lab.gateway, cloud(), world.keys.folder(), identity, alpn, SOON)
}

/// In TLS 1.3 the handshake may be complete for the client before the cloud has checked it.
fn refused(attempt: Result<Tls>) -> Result<()> {
    match attempt {
        Ok(mut tls) => closes(&mut tls),
        Err(error) => {
            println!("the client sees: {error}");
            Ok(())
        }
    }
}

/// Checks that the peer closes the connection within the read timeout.
fn closes(stream: &mut impl Read) -> Result<()> {
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                bail!("the cloud keeps the connection")
            }
            Err(_) => return Ok(()),
        }
    }
}

/// Reads frames until `wanted` accepts one.
fn until(tls: &mut Tls, mut wanted: impl FnMut(&Frame<'_>) -> bool) -> Result<()> {
    let mut decoder = Decoder::default();
    let mut chunk = [0; 4096];
    let mut found = false;
    while !found {
        let length = tls.read(&mut chunk).context("the cloud's frames")?;
        ensure!(length > 0, "the cloud closed instead of answering");
        decoder.feed(&chunk[..length], |frame| found = found || wanted(&frame))?;
    }
    Ok(())
}

/// The first path of a gateway instance; each attack has an instance of its own.
fn hello(instance: u8) -> Frame<'static> {
    let terms = Terms { window: 65_536, credit: 16 << 20 };
    let instance = polyrail_model::InstanceId([instance; 16]);
    Frame::Hello { instance, greeting: greeting(1), terms }
}

fn greeting(counter: u64) -> Greeting {
    Greeting {
        counter,
        rank: polyrail_model::PathRank::Primary,
        metered: false,
        carrier: "own".into(),
    }
}

/// The proof of a JOIN as defined in docs/protocol.md.
fn proof(key: &[u8; 32], session: &[u8; 16], counter: u64) -> [u8; 32] {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    let mut message = b"polyrail join 1".to_vec();
    message.extend_from_slice(session);
    message.extend_from_slice(&counter.to_be_bytes());
    let mut proof = [0; 32];
    proof.copy_from_slice(ring::hmac::sign(&key, &message).as_ref());
    proof
}

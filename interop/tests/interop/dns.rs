//! Name resolution for passengers, whatever resolver they use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{
    Family, RESOLVER, RESOLVER_AT_HOME, SERVER, SERVER_NAME, SERVER_NAME_V6,
};
use polyrail_interop::dns;
use polyrail_interop::world::Plan;

use crate::scenario;

const BOUND: Duration = Duration::from_secs(15);

#[test]
fn dns_is_answered_over_udp_and_tcp_whatever_resolver_the_client_uses() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let passenger = &world.lab.passenger;
        // A public resolver that does not exist, and one as set on a device at home.
        for resolver in [RESOLVER, RESOLVER_AT_HOME] {
            for family in Family::BOTH {
                let to = resolver.at(family, 53);
                let over_udp = passenger.run(|| dns::ask_udp(to, SERVER_NAME, family))?;
                let over_udp = over_udp.with_context(|| format!("UDP, {to}"))?;
                ensure!(over_udp == [SERVER.of(family)], "{over_udp:?} from {to}");
                let names = [SERVER_NAME, SERVER_NAME_V6];
                let over_tcp = passenger.run(|| dns::ask_tcp(to, &names, Family::V6))?;
                let over_tcp = over_tcp.with_context(|| format!("TCP, {to}"))?;
                ensure!(over_tcp == [[SERVER.of(Family::V6)], [SERVER.of(Family::V6)]]);
            }
        }
        let unknown = passenger.run(|| {
            dns::ask_udp(RESOLVER.at(Family::V4, 53), "nobody.polyrail.test", Family::V4)
        })?;
        ensure!(unknown.is_err(), "an unknown name has addresses: {unknown:?}");
        let (udp, tcp) =
            (world.asked.udp.load(Ordering::Relaxed), world.asked.tcp.load(Ordering::Relaxed));
        ensure!(udp == 0 && tcp > 0, "{udp} queries over UDP, {tcp} over TCP");
        Ok(())
    })
}

//! Ends live tunnels and sessions whose peer's certificate is revoked or has expired.
//!
//! A certificate is checked in each handshake, but a tunnel may outlive it. So this check runs
//! every [`CHECK_EVERY`] and after each reload. A session ends if it has no path of a valid peer:
//! its flows are reset at once, also in a session that lingers without a path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_identity::TlsIdentity;
use polyrail_relay::{Relay, TunnelView};
use polyrail_session::SessionKey;

/// The peers' certificates of live sessions.
#[derive(Debug, Default)]
pub struct Certificates {
    /// By session, the best certificate of the paths at the last check with a path.
    last: BTreeMap<SessionKey, Certificate>,
    due: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Certificate {
    serial: String,
    /// Since 1970; `None` before the end of a handshake with early data.
    expires: Option<Duration>,
}

/// What decides whether a certificate still counts.
pub(crate) struct Rules<'a> {
    /// Has the revocation lists.
    pub(crate) identity: &'a TlsIdentity,
    /// How long a tunnel may outlive its certificate's validity.
    pub(crate) grace: Duration,
    /// The time since 1970.
    pub(crate) since_epoch: Duration,
}

impl Rules<'_> {
    /// Why a certificate does not count any more.
    fn fault(&self, certificate: &Certificate) -> Option<&'static str> {
        let is_over = |end: Duration| self.since_epoch > end + self.grace;
        if self.identity.is_revoked(&certificate.serial) {
            Some("is revoked")
        } else if certificate.expires.is_some_and(is_over) {
            Some("has expired")
        } else {
            None
        }
    }
}

impl Certificates {
    /// When the next check is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Whether a check is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Checks all tunnels and sessions.
    pub(crate) fn enforce(&mut self, now: Instant, relay: &mut Relay, rules: &Rules<'_>) {
        self.due = Some(now + CHECK_EVERY);
        let sessions = relay.endpoint_ref().status().sessions;
        self.last.retain(|known, _| sessions.iter().any(|session| session.session == *known));
        for session in &sessions {
            let paths = session.paths.iter().filter_map(|path| relay.tunnel(path.tunnel));
            let best = paths
                .filter_map(|view| of(&view))
                .max_by_key(|one| (rules.fault(one).is_none(), one.expires));
            self.last.extend(best.map(|certificate| (session.session, certificate)));
        }
        for tunnel in relay.tunnel_keys() {
            let Some(view) = relay.tunnel(tunnel) else { continue };
            let Some(fault) = of(&view).and_then(|certificate| rules.fault(&certificate)) else {
                continue;
            };
            let peer = view.peer.map(ToString::to_string);
            tracing::warn!(
                peer,
                carrier = view.carrier,
                serial = view.serial,
                "closing a tunnel: the peer's certificate {fault}"
            );
            let session = sessions
                .iter()
                .find(|session| session.paths.iter().any(|path| path.tunnel == tunnel));
            // The end of a session closes its tunnels after its last frames.
            if session.is_none_or(|session| !self.ends(session.session, rules)) {
                relay.close_tunnel(now, tunnel);
            }
        }
        for session in sessions.iter().map(|session| session.session) {
            if self.ends(session, rules) {
                relay.endpoint().end(now, session);
                self.last.remove(&session);
            }
        }
    }

    fn ends(&self, session: SessionKey, rules: &Rules<'_>) -> bool {
        self.last.get(&session).is_some_and(|certificate| rules.fault(certificate).is_some())
    }
}

fn of(view: &TunnelView<'_>) -> Option<Certificate> {
    Some(Certificate { serial: view.serial?.to_owned(), expires: view.expires })
}

/// How often live tunnels are checked.
const CHECK_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use polyrail_identity::{Authority, IdentityPaths, IssueRequest, NodeRole};
    use polyrail_model::{Destination, Identity, UserId};
    use polyrail_relay::{Label, RelayEvent};
    use polyrail_session::{Event, FlowKey};

    use super::*;
    use crate::fake;
    use crate::side::Side;

    /// An identity whose authority has revoked this serial number.
    fn identity(dir: &std::path::Path, revoked: &str) -> TlsIdentity {
        let authority = Authority::create(dir, "test", false).unwrap();
        let (name, role) = (Identity::new("cloud").unwrap(), NodeRole::Cloud);
        let request = IssueRequest { name, role, days: 10, out: dir.to_owned(), force: false };
        let issued = authority.issue(&request).unwrap();
        authority.revoke(&revoked.parse().unwrap(), true).unwrap();
        let paths = IdentityPaths {
            certificate: issued.certificate_file,
            key: issued.key_file,
            authority: dir.join("ca.crt"),
            revocations: Some(dir.join("revoked.crl")),
        };
        TlsIdentity::load(&paths).unwrap()
    }

    /// A session with two paths and one flow. The gateway's certificate of the second path has the
    /// serial number 02 and expires a day later.
    fn session(gateway: &mut Side, cloud: &mut Side) -> FlowKey {
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        for (carrier, secret) in [("a", 1), ("b", 2)] {
            let (near, mut far) = fake::pair(&train, &ground, [secret; 32]).unwrap();
            if carrier == "b" {
                far.certify("02", Duration::from_secs(86_400));
            }
            let label = Label { carrier: carrier.to_owned(), ..Label::default() };
            gateway.relay.add_tunnel(Box::new(near), label).unwrap();
            cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        }
        let to = Destination::Address(SocketAddr::from(([192, 0, 2, 1], 80)));
        let flow = gateway.relay.endpoint().open(Instant::now(), UserId(1), to).unwrap();
        let start = Instant::now();
        while (state(gateway), state(cloud)) != ((2, 1), (2, 1)) {
            assert!(start.elapsed() < Duration::from_secs(30), "two paths are up");
            gateway.turn();
            cloud.turn();
        }
        flow
    }

    /// The numbers of paths and flows.
    fn state(side: &Side) -> (usize, usize) {
        let sessions = side.relay.endpoint_ref().status().sessions;
        sessions.first().map_or((0, 0), |session| (session.paths.len(), session.flows))
    }

    #[test]
    fn revoked_certificate_ends_its_own_path_only() {
        let folder = tempfile::tempdir().unwrap();
        let identity = identity(folder.path(), "02");
        let (mut gateway, mut cloud) = (Side::gateway(), Side::cloud());
        session(&mut gateway, &mut cloud);
        let since_epoch = Duration::ZERO;
        let rules = Rules { identity: &identity, grace: Duration::ZERO, since_epoch };
        let mut certificates = Certificates::default();
        for _ in 0..3 {
            certificates.enforce(Instant::now(), &mut cloud.relay, &rules);
            for _ in 0..20 {
                cloud.turn();
                gateway.turn();
            }
        }
        assert_eq!((state(&gateway), state(&cloud)), ((1, 1), (1, 1)));
    }

    #[test]
    fn expiry_ends_tunnels_and_flows_after_the_grace() {
        let folder = tempfile::tempdir().unwrap();
        let identity = identity(folder.path(), "ff");
        let (mut gateway, mut cloud) = (Side::gateway(), Side::cloud());
        let flow = session(&mut gateway, &mut cloud);
        let start = Instant::now();
        let expiries = cloud.relay.tunnel_keys().into_iter();
        let expires = expiries.filter_map(|key| cloud.relay.tunnel(key)?.expires).max().unwrap();
        let grace = Duration::from_secs(600);
        let mut certificates = Certificates::default();
        let mut check = |cloud: &mut Side, since_epoch| {
            let rules = Rules { identity: &identity, grace, since_epoch };
            certificates.enforce(Instant::now(), &mut cloud.relay, &rules);
        };
        check(&mut cloud, expires + grace);
        cloud.turn();
        assert_eq!(state(&cloud).1, 1, "within the grace of the later certificate");
        check(&mut cloud, expires + grace + Duration::from_secs(1));
        let mut events = Vec::new();
        while cloud.relay.tunnel_count() + gateway.relay.tunnel_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "{events:?}");
            cloud.turn();
            events.extend(gateway.turn());
        }
        assert!(cloud.relay.endpoint_ref().status().sessions.is_empty(), "it does not linger");
        let reset = |event: &RelayEvent| match event {
            RelayEvent::Session(Event::Reset { flow, .. }) => Some(*flow),
            _ => None,
        };
        assert_eq!(events.iter().find_map(reset), Some(flow), "{events:?}");
        let ended = |event: &RelayEvent| match event {
            RelayEvent::Session(Event::SessionEnded { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        let reason = events.iter().find_map(ended).unwrap();
        assert_eq!(reason, "the cloud no longer accepts the gateway's certificate");
    }
}

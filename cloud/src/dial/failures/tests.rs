//! Tests of `failures`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_model::{FlowId, HostName, UserId};
use polyrail_session::SessionKey;

use super::*;
use crate::access::AccessList;
use crate::resolve::ResolveError;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of these failures, a line each.
fn logged(destination: &Destination, errors: &[DialError]) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let (mut now, mut failures) = (Instant::now(), Failures::default());
        let gateway = Identity::new("train-7").unwrap();
        let flow = FlowKey { session: SessionKey(1), flow: FlowId(5) };
        for error in errors {
            // One a second, which the limit of lines permits.
            now += Duration::from_secs(1);
            failures.log(now, Some(&gateway), (flow, UserId(42)), destination, error);
        }
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_failure_names_its_destination_and_its_reason() {
    let address: SocketAddr = "203.0.113.9:443".parse().unwrap();
    let denial = AccessList::new(&[], &[], &[443]).check(address).unwrap_err();
    let denied = denial.to_string();
    let rows = [
        (DialError::Refused(address), "203.0.113.9:443 refuses connections", "Refused"),
        (DialError::TimedOut(Duration::from_secs(10)), "no answer in 10s", "TimedOut"),
        (DialError::Overload("full".into()), "the cloud is at its limit: full", "Overload"),
        (
            DialError::Unreachable(address, "no route".into()),
            "203.0.113.9:443 is unreachable: no route",
            "Unreachable",
        ),
        (
            DialError::Quota("too many wait"),
            "the user's quota of dials is used up: too many wait",
            "Quota",
        ),
        (DialError::NoFamily, "the cloud reaches no address family of", "Unreachable"),
        (DialError::Forbidden(denial), denied.as_str(), "Forbidden"),
        (
            DialError::Name(ResolveError::NotFound("no such name".into())),
            "the name has no address (no such name)",
            "NameNotFound",
        ),
        (
            DialError::Name(ResolveError::Temporary("try again".into())),
            "the name servers do not answer (try again)",
            "Unreachable",
        ),
        (
            DialError::Name(ResolveError::Overload),
            "more than 8192 requests wait for the resolver",
            "Overload",
        ),
    ];
    let errors: Vec<DialError> = rows.iter().map(|(error, ..)| error.clone()).collect();
    let by_name = Destination::Name(HostName::new("example.org").unwrap(), 443);
    for destination in [by_name, Destination::Address(address)] {
        let lines = logged(&destination, &errors);
        assert_eq!(lines.len(), rows.len());
        for (line, (_, text, told)) in lines.iter().zip(&rows) {
            assert!(line.contains(" WARN "), "{line}");
            assert!(line.contains(&format!("cannot reach {destination}: {text}")), "{line}");
            assert!(line.contains("train-7") && line.contains("user=000000000000002a"), "{line}");
            assert!(line.contains(&format!("told={told}")), "{line}");
        }
    }
}

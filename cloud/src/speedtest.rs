//! The cloud's end of gateways' speed tests: flows to a reserved name, served from memory.
//!
//! A gateway is untrusted. It gets no more than a flow to a server of its own would give it:
//! bytes over its own paths, under their congestion control. Time, bytes, flows and requests are
//! bounded. Nothing is resolved or dialled.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_daemon::speedtest::{
    REQUEST_MAX, Received, Reception, Request, SECONDS_MAX, Service, USER, fill,
};
use polyrail_model::{Bucket, Identity, UserId};
use polyrail_session::{Endpoint, FlowKey, ResetReason, SessionKey};

/// The flows of speed tests.
#[derive(Debug, Default)]
pub(crate) struct Speedtests {
    flows: BTreeMap<FlowKey, Served>,
    /// The requests that each gateway may make; full budgets are not kept.
    budgets: BTreeMap<Identity, Bucket>,
}

/// One flow.
#[derive(Debug)]
struct Served {
    gateway: Identity,
    work: Work,
    /// When it is reset at the latest.
    until: Instant,
}

#[derive(Debug)]
enum Work {
    /// Receives the request.
    Request(Vec<u8>),
    /// Returns at most this many bytes more.
    Echo {
        left: usize,
    },
    /// Sends this many bytes more.
    Source {
        left: u64,
    },
    Sink(Sink),
    /// All is sent.
    Over,
}

/// Received bytes.
#[derive(Debug)]
struct Sink {
    reception: Reception,
    time: Duration,
    bytes_max: u64,
}

impl Speedtests {
    /// Serves a new flow to the reserved name. Only the gateway itself may open one.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        (flow, user): (FlowKey, UserId),
        gateway: &Identity,
    ) {
        if user != USER {
            return endpoint.reset(now, flow, ResetReason::NameNotFound);
        }
        if self.of(flow.session).count() >= FLOWS_OF_SESSION || self.flows.len() >= FLOWS_MAX {
            return endpoint.reset(now, flow, ResetReason::Quota);
        }
        let (work, until) = (Work::Request(Vec::new()), now + REQUEST_WAIT);
        self.flows.insert(flow, Served { gateway: gateway.clone(), work, until });
        endpoint.dialed(now, flow);
        self.serve(now, endpoint, flow);
    }

    /// The flows of a session.
    fn of(&self, session: SessionKey) -> impl Iterator<Item = (FlowKey, &Served)> {
        let all = self.flows.iter().map(|(flow, served)| (*flow, served));
        all.filter(move |(flow, _)| flow.session == session)
    }

    /// Handles an event of a flow; returns false if it is none of a speed test.
    pub(crate) fn serve(&mut self, now: Instant, endpoint: &mut Endpoint, flow: FlowKey) -> bool {
        let Some(served) = self.flows.get_mut(&flow) else { return false };
        if let Work::Request(request) = &mut served.work {
            let bytes = endpoint.readable(flow).concat();
            let end = bytes.iter().position(|byte| *byte == b'\n');
            request.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            endpoint.consume(now, flow, end.map_or(bytes.len(), |end| end + 1));
            if request.len() > REQUEST_MAX || (end.is_some() && Request::parse(request).is_none()) {
                self.end(now, endpoint, flow, ResetReason::Protocol);
                return true;
            }
            let Some(request) = end.and_then(|_| Request::parse(request)) else { return true };
            if let Err(reason) = self.begin(now, endpoint, flow, &request) {
                self.end(now, endpoint, flow, reason);
                return true;
            }
        }
        if let Some(served) = self.flows.get_mut(&flow) {
            served.work.advance(now, endpoint, flow);
        }
        true
    }

    /// Begins the requested service.
    fn begin(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        flow: FlowKey,
        request: &Request,
    ) -> Result<(), ResetReason> {
        if !endpoint.confine(flow, &request.carriers) {
            return Err(ResetReason::Unreachable);
        }
        let (time, bytes) = (Duration::from_secs(request.seconds), request.seconds * BYTES_PER_S);
        let (work, until) = match request.service {
            Service::Echo => (Work::Echo { left: ECHO_BYTES }, now + ECHO_MAX),
            Service::Source => (Work::Source { left: bytes }, now + time + GRACE),
            Service::Sink => {
                let sink = Sink { reception: Reception::default(), time, bytes_max: bytes };
                (Work::Sink(sink), now + time + GRACE)
            }
        };
        let Some(served) = self.flows.get_mut(&flow) else { return Err(ResetReason::Internal) };
        if !take(&mut self.budgets, now, &served.gateway) {
            return Err(ResetReason::Quota);
        }
        let is_load = work.is_load();
        (served.work, served.until) = (work, until);
        // The end of the step before may still be on its way.
        let same = |(other, served): (FlowKey, &Served)| {
            let is_same = other != flow && !matches!(served.work, Work::Request(_));
            (is_same && served.work.is_load() == is_load).then_some(other)
        };
        let older: Vec<FlowKey> = self.of(flow.session).filter_map(same).collect();
        older.into_iter().for_each(|old| self.end(now, endpoint, old, ResetReason::Quota));
        Ok(())
    }

    fn end(&mut self, now: Instant, endpoint: &mut Endpoint, flow: FlowKey, reason: ResetReason) {
        self.flows.remove(&flow);
        endpoint.reset(now, flow, reason);
    }

    /// A flow has ended.
    pub(crate) fn on_gone(&mut self, flow: FlowKey) {
        self.flows.remove(&flow);
    }

    /// A session has ended.
    pub(crate) fn forget(&mut self, session: SessionKey) {
        self.flows.retain(|flow, _| flow.session != session);
    }

    /// Ends flows and sinks whose time is over.
    pub(crate) fn on_turn(&mut self, now: Instant, endpoint: &mut Endpoint) {
        if self.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        for flow in self.flows.keys().copied().collect::<Vec<_>>() {
            let Some(served) = self.flows.get_mut(&flow) else { continue };
            if served.until <= now {
                self.end(now, endpoint, flow, ResetReason::TimedOut);
            } else if served.work.due_at().is_some_and(|at| at <= now) {
                served.work.advance(now, endpoint, flow);
            }
        }
    }

    /// When [`Speedtests::on_turn`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = |served: &Served| served.work.due_at().into_iter().chain([served.until]).min();
        self.flows.values().filter_map(due).min()
    }
}

impl Work {
    /// Whether it fills a path.
    fn is_load(&self) -> bool {
        matches!(self, Self::Source { .. } | Self::Sink(_))
    }

    /// When a sink has received for long enough.
    fn due_at(&self) -> Option<Instant> {
        match self {
            Self::Sink(sink) => sink.reception.begun.map(|begun| begun + sink.time),
            _ => None,
        }
    }

    /// Moves the bytes that can be moved.
    fn advance(&mut self, now: Instant, endpoint: &mut Endpoint, flow: FlowKey) {
        match self {
            Self::Echo { left } => {
                let bytes = endpoint.readable(flow).concat();
                let taken = endpoint.write(now, flow, &bytes[..bytes.len().min(*left)]);
                *left -= taken;
                endpoint.consume(now, flow, taken);
                if endpoint.finished(flow) {
                    endpoint.finish(now, flow);
                }
            }
            Self::Source { left } => {
                *left -= fill(now, endpoint, flow, *left);
                if *left == 0 {
                    endpoint.finish(now, flow);
                    *self = Self::Over;
                }
            }
            Self::Sink(sink) => {
                if let Some(received) = sink.receive(now, endpoint, flow) {
                    // The send buffer is empty: it takes the line.
                    endpoint.write(now, flow, received.line().as_bytes());
                    endpoint.finish(now, flow);
                    *self = Self::Over;
                }
            }
            // The rest of a sink's bytes.
            Self::Request(_) | Self::Over => {
                let count = endpoint.readable(flow).iter().map(|part| part.len()).sum();
                endpoint.consume(now, flow, count);
            }
        }
    }
}

impl Sink {
    /// Receives; returns the result once it is complete.
    fn receive(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        flow: FlowKey,
    ) -> Option<Received> {
        let count = endpoint.readable(flow).iter().map(|part| part.len()).sum();
        endpoint.consume(now, flow, count);
        let had_begun = self.reception.begun.is_some();
        self.reception.add(now, count as u64);
        let received = self.reception.received(now).filter(|_| had_begun)?;
        let is_complete = Duration::from_micros(received.time_us) >= self.time
            || received.bytes >= self.bytes_max
            || endpoint.finished(flow);
        is_complete.then_some(received)
    }
}

/// Takes a request from a gateway's budget.
fn take(budgets: &mut BTreeMap<Identity, Bucket>, now: Instant, gateway: &Identity) -> bool {
    budgets.retain(|_, bucket| !bucket.is_full(now));
    let new = || Bucket::new(now, REQUESTS_PER_S, REQUESTS_AT_ONCE);
    budgets.entry(gateway.clone()).or_insert_with(new).take(now, 1)
}

/// The flows of a session: an echo and a load, and those whose end is on its way.
const FLOWS_OF_SESSION: usize = 4;
/// The flows of all sessions.
const FLOWS_MAX: usize = 256;
/// Requests of a gateway at once: twice those of 17 carriers and their bond, three of each.
const REQUESTS_AT_ONCE: f64 = 108.0;
/// Then one in 5 s.
const REQUESTS_PER_S: f64 = 0.2;
/// The most bytes of an echo; a gateway sends ten a second.
const ECHO_BYTES: usize = 16 * 1024;
/// The most bytes of a measurement for each of its seconds: 1 Gbit/s.
const BYTES_PER_S: u64 = 125_000_000;
/// How long a request may take to arrive.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How much longer than requested a load may take. Its gateway ends it.
const GRACE: Duration = Duration::from_secs(10);
/// How long an echo may last: both directions and the time between.
const ECHO_MAX: Duration = Duration::from_secs(2 * (SECONDS_MAX + 15));

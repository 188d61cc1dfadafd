//! The measurement of one carrier, or of several together: round trips without load, then a
//! download, then an upload.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_admin::{PathState, SpeedtestRow, SpeedtestStep, SpeedtestStepKind};
use polyrail_daemon::speedtest::{self, Request, Service};
use polyrail_session::{Endpoint, FlowKey, ResetReason, SessionKey};

use super::echo::Echo;
use super::load::{Direction, Download, Load};

#[derive(Debug)]
pub(super) struct Measurement {
    session: SessionKey,
    seconds: u64,
    echo: Echo,
    /// When the round trips without load are given up.
    idle_until: Instant,
    load: Option<Load>,
    /// The cloud has ended one of its flows: the reason.
    ended: Option<String>,
    before: Counters,
    row: SpeedtestRow,
}

/// Counters at the beginning.
#[derive(Debug)]
struct Counters {
    traffic: BTreeMap<String, [u64; 2]>,
    packets: [u64; 2],
}

impl Measurement {
    /// Begins a measurement in the current session.
    ///
    /// # Errors
    /// The reason why no flow can be opened, in words.
    pub(super) fn begin(
        now: Instant,
        endpoint: &mut Endpoint,
        session: SessionKey,
        (seconds, carriers): (u64, &[String]),
        paths: &[PathState],
    ) -> Result<Self, String> {
        let before = Counters::of(endpoint, session, carriers, paths);
        let flow = open(now, endpoint, Service::Echo, (seconds, carriers))?;
        let mut echo = Echo::new(now, flow);
        echo.send(now, endpoint);
        Ok(Self {
            session,
            seconds,
            echo,
            idle_until: now + IDLE_MAX,
            load: None,
            ended: None,
            before,
            row: SpeedtestRow::new(carriers),
        })
    }

    fn carriers(&self) -> Vec<String> {
        self.row.carriers.iter().map(|one| one.carrier.clone()).collect()
    }

    /// The step under way.
    pub(super) fn step(&self) -> SpeedtestStep {
        let step = match self.load.as_ref().map(|load| &load.direction) {
            None => SpeedtestStepKind::Idle,
            Some(Direction::Download(_)) => SpeedtestStepKind::Download,
            Some(Direction::Upload(_)) => SpeedtestStepKind::Upload,
        };
        SpeedtestStep { carriers: self.carriers(), step }
    }

    fn has(&self, flow: FlowKey) -> bool {
        self.echo.flow == flow || self.load.as_ref().is_some_and(|load| load.flow == flow)
    }

    /// Handles an event of a flow; returns false if it is another flow.
    pub(super) fn on_flow(&mut self, now: Instant, endpoint: &mut Endpoint, flow: FlowKey) -> bool {
        if self.echo.flow == flow {
            self.echo.receive(now, endpoint);
        }
        if let Some(load) = self.load.as_mut().filter(|load| load.flow == flow) {
            load.advance(now, endpoint);
        }
        self.has(flow)
    }

    /// Handles the end of a flow; returns false if it is another flow.
    pub(super) fn on_gone(&mut self, flow: FlowKey, reason: &str) -> bool {
        let is_ours = self.has(flow);
        if is_ours {
            self.ended.get_or_insert_with(|| format!("the cloud ended the test: {reason}"));
        }
        is_ours
    }

    /// Advances the measurement; returns whether it is over.
    pub(super) fn on_turn(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        self.echo.send(now, endpoint);
        let Some(load) = &mut self.load else { return self.end_idle(now, endpoint) };
        load.advance(now, endpoint);
        let Some((rate, error)) = load.outcome(now, self.ended.as_deref()) else {
            return false;
        };
        endpoint.reset(now, load.flow, ResetReason::Idle);
        let was_download = matches!(load.direction, Direction::Download(_));
        self.load = None;
        let rtt = self.echo.take_median();
        if was_download {
            (self.row.download_bits_per_s, self.row.rtt_download_us) = (rate, rtt);
        } else {
            (self.row.upload_bits_per_s, self.row.rtt_upload_us) = (rate, rtt);
        }
        self.row.error = self.row.error.take().or(error);
        if was_download && self.ended.is_none() {
            return self.begin_load(now, endpoint, Service::Sink);
        }
        true
    }

    /// Ends the step without load once there are enough round trips.
    fn end_idle(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        if self.ended.is_none() && now < self.idle_until && self.echo.count() < IDLE_TRIPS {
            return false;
        }
        self.row.rtt_idle_us = self.echo.take_median();
        if self.row.rtt_idle_us.is_none() || self.ended.is_some() {
            let dark = || format!("no answer within {} s", IDLE_MAX.as_secs());
            self.row.error = Some(self.ended.take().unwrap_or_else(dark));
            return true;
        }
        self.begin_load(now, endpoint, Service::Source)
    }

    /// Begins a direction; returns whether the measurement is over.
    fn begin_load(&mut self, now: Instant, endpoint: &mut Endpoint, service: Service) -> bool {
        match open(now, endpoint, service, (self.seconds, &self.carriers())) {
            Ok(flow) => {
                let direction = match service {
                    Service::Sink => Direction::Upload(Vec::new()),
                    _ => Direction::Download(Download::default()),
                };
                let time = Duration::from_secs(self.seconds);
                let mut load = Load::new(now, flow, direction, time);
                load.advance(now, endpoint);
                self.load = Some(load);
                false
            }
            Err(error) => {
                self.row.error = Some(error);
                true
            }
        }
    }

    /// When [`Measurement::on_turn`] is due.
    pub(super) fn next_timeout(&self) -> Instant {
        let step = match &self.load {
            Some(load) => load.next_timeout(),
            None => self.idle_until,
        };
        self.echo.next_timeout().map_or(step, |echo| echo.min(step))
    }

    /// Ends its flows and returns the row.
    pub(super) fn finish(
        mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        paths: &[PathState],
    ) -> SpeedtestRow {
        let load = self.load.as_ref().map(|load| load.flow);
        for flow in load.into_iter().chain([self.echo.flow]) {
            endpoint.reset(now, flow, ResetReason::Idle);
        }
        let after = Counters::of(endpoint, self.session, &self.carriers(), paths);
        for one in &mut self.row.carriers {
            let of = |counters: &Counters| {
                counters.traffic.get(&one.carrier).copied().unwrap_or_default()
            };
            let (before, after) = (of(&self.before), of(&after));
            one.sent_bytes = after[0].saturating_sub(before[0]);
            one.received_bytes = after[1].saturating_sub(before[1]);
        }
        self.row.sent_packets = after.packets[0].saturating_sub(self.before.packets[0]);
        self.row.lost_packets = after.packets[1].saturating_sub(self.before.packets[1]);
        self.row
    }
}

impl Counters {
    fn of(
        endpoint: &Endpoint,
        session: SessionKey,
        carriers: &[String],
        paths: &[PathState],
    ) -> Self {
        let ours = paths.iter().filter(|path| carriers.contains(&path.carrier));
        let packets = ours.fold([0, 0], |[sent, lost], path| {
            [sent + path.counters.sent_packets, lost + path.counters.lost_packets]
        });
        Self { traffic: endpoint.confined_traffic(session), packets }
    }
}

/// Opens a flow over these carriers and sends its request.
fn open(
    now: Instant,
    endpoint: &mut Endpoint,
    service: Service,
    (seconds, carriers): (u64, &[String]),
) -> Result<FlowKey, String> {
    let opened = endpoint.open(now, speedtest::USER, speedtest::destination());
    let flow = opened.map_err(|error| error.to_string())?;
    if !endpoint.confine(flow, carriers) {
        endpoint.reset(now, flow, ResetReason::Idle);
        return Err("it has had no path to this cloud".to_owned());
    }
    let request = Request { service, seconds, carriers: carriers.to_vec() };
    endpoint.write(now, flow, request.line().as_bytes());
    Ok(flow)
}

/// The round trips without load, and how long they may take together.
const IDLE_TRIPS: usize = 5;
const IDLE_MAX: Duration = Duration::from_secs(4);

//! A gateway's report to its cloud, and its payload as `docs/protocol.md` specifies it.
//!
//! The session carries the payload as an opaque message. Decoding never panics, and a report has at
//! most [`REPORT_CARRIERS_MAX`] carriers with different names without control characters.

use std::collections::BTreeSet;

use polyrail_model::codec::{Cursor, FieldError, put_number, put_text};
use polyrail_model::{Channel, ForecastCounts, TunnelMode};

use crate::{PathPhase, PathState, RefusedCounts};

/// A gateway's counters since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayReport {
    /// How long it has been running, in seconds.
    pub uptime_s: u64,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Open flows.
    pub flows: u64,
    /// Users with open flows.
    pub users: u64,
    /// Flows opened since the session began.
    pub flows_opened: u64,
    /// Refusals.
    pub refused: RefusedCounts,
    /// Bytes reinjected since the session began.
    pub reinjected_bytes: u64,
    /// Datagrams since the session began: sent, copies sent, received, dropped before sending.
    pub datagrams: [u64; 4],
    /// Forecasts and what became of them.
    pub forecasts: ForecastCounts,
    /// Entries of its LinkDB.
    pub linkdb_entries: u64,
    /// The number of its carriers.
    pub carriers_configured: u64,
    /// Its carriers, as many as fit.
    pub carriers: Vec<CarrierReport>,
}

/// A carrier of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierReport {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: PathPhase,
    /// The mode of the connection in use.
    pub mode: Option<TunnelMode>,
    /// Smoothed round-trip time, in microseconds; 0 without a connection.
    pub srtt_us: u64,
    /// Delivery rate, in bits per second; 0 while unknown.
    pub rate_bits_per_s: u64,
    /// Congestion window, in bytes.
    pub window_bytes: u64,
    /// Users' bytes sent and received, copies included.
    pub bytes: [u64; 2],
    /// Packets sent and lost.
    pub packets: [u64; 2],
    /// Stalls, restarts, changes of mode, demotions and attempts.
    pub events: [u64; 5],
}

impl GatewayReport {
    /// The payload, at most [`REPORT_MAX`] bytes: carriers that do not fit are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, FORM);
        self.numbers().into_iter().for_each(|number| put_number(&mut out, number));
        let mut carriers = Vec::new();
        let mut count = 0;
        for carrier in self.carriers.iter().take(REPORT_CARRIERS_MAX) {
            let before = carriers.len();
            carrier.put(&mut carriers);
            // The number of carriers takes a byte.
            if out.len() + 1 + carriers.len() > REPORT_MAX {
                carriers.truncate(before);
                break;
            }
            count += 1;
        }
        put_number(&mut out, count);
        out.append(&mut carriers);
        out
    }

    /// Decodes a payload; none for a form of a later version.
    ///
    /// # Errors
    /// The payload is invalid.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>, FieldError> {
        let mut cursor = Cursor(payload);
        if cursor.number()? != FORM {
            return Ok(None);
        }
        let mut report = Self::read_numbers(&mut cursor)?;
        let count = usize::try_from(cursor.number()?).unwrap_or(usize::MAX);
        if count > REPORT_CARRIERS_MAX {
            return Err(FieldError::Invalid("number of carriers"));
        }
        let mut names = BTreeSet::new();
        for _ in 0..count {
            let carrier = CarrierReport::take(&mut cursor)?;
            if !names.insert(carrier.name.clone()) {
                return Err(FieldError::Invalid("a carrier twice"));
            }
            report.carriers.push(carrier);
        }
        if cursor.0.is_empty() {
            Ok(Some(report))
        } else {
            Err(FieldError::Invalid("bytes after the last field"))
        }
    }

    fn numbers(&self) -> [u64; 23] {
        let RefusedCounts { flows, quota, overload, queries } = self.refused;
        let [sent, copies, received, dropped] = self.datagrams;
        let ForecastCounts { alarms, correct, early, late, missed, false_alarms } = self.forecasts;
        [
            self.uptime_s,
            self.cpu_ms,
            self.memory_bytes,
            self.flows,
            self.users,
            self.flows_opened,
            flows,
            quota,
            overload,
            queries,
            self.reinjected_bytes,
            sent,
            copies,
            received,
            dropped,
            alarms,
            correct,
            early,
            late,
            missed,
            false_alarms,
            self.linkdb_entries,
            self.carriers_configured,
        ]
    }

    /// Reads what [`Self::numbers`] has written; fields of a literal are read in their order.
    fn read_numbers(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let mut next = || cursor.number();
        Ok(Self {
            uptime_s: next()?,
            cpu_ms: next()?,
            memory_bytes: next()?,
            flows: next()?,
            users: next()?,
            flows_opened: next()?,
            refused: RefusedCounts {
                flows: next()?,
                quota: next()?,
                overload: next()?,
                queries: next()?,
            },
            reinjected_bytes: next()?,
            datagrams: [next()?, next()?, next()?, next()?],
            forecasts: ForecastCounts {
                alarms: next()?,
                correct: next()?,
                early: next()?,
                late: next()?,
                missed: next()?,
                false_alarms: next()?,
            },
            linkdb_entries: next()?,
            carriers_configured: next()?,
            carriers: Vec::new(),
        })
    }
}

impl CarrierReport {
    /// The report of a gateway's path.
    pub(super) fn of(path: &PathState) -> Self {
        let (counters, link) = (&path.counters, path.link.as_ref());
        Self {
            name: path.carrier.clone(),
            state: path.state,
            mode: path.mode,
            srtt_us: link.map_or(0, |link| link.srtt_us),
            rate_bits_per_s: link.and_then(|link| link.delivery_rate_bits_per_s).unwrap_or(0),
            window_bytes: link.map_or(0, |link| link.window_bytes),
            bytes: [counters.sent_bytes, counters.received_bytes],
            packets: [counters.sent_packets, counters.lost_packets],
            events: [
                counters.stalls,
                counters.restarts,
                counters.mode_changes,
                counters.demotions,
                counters.attempts,
            ],
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_text(out, &self.name, NAME_MAX);
        let state = STATES.iter().position(|state| *state == self.state).unwrap_or_default();
        let mode = match self.mode {
            None => 0,
            Some(TunnelMode::Quic) => 1,
            Some(TunnelMode::Tls) => 2,
        };
        out.extend([state as u8, mode]);
        let measured = [self.srtt_us, self.rate_bits_per_s, self.window_bytes];
        let counted = self.bytes.iter().chain(&self.packets).chain(&self.events);
        measured.iter().chain(counted).for_each(|number| put_number(out, *number));
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let name = cursor.text(NAME_MAX)?.to_owned();
        if name.is_empty() || name.contains(char::is_control) {
            return Err(FieldError::Invalid("carrier name"));
        }
        let state = STATES.get(usize::from(cursor.byte()?)).copied();
        let state = state.ok_or(FieldError::Invalid("state of a carrier"))?;
        let mode = match cursor.byte()? {
            0 => None,
            1 => Some(TunnelMode::Quic),
            2 => Some(TunnelMode::Tls),
            _ => return Err(FieldError::Invalid("mode of a carrier")),
        };
        let mut next = || cursor.number();
        Ok(Self {
            name,
            state,
            mode,
            srtt_us: next()?,
            rate_bits_per_s: next()?,
            window_bytes: next()?,
            bytes: [next()?, next()?],
            packets: [next()?, next()?],
            events: [next()?, next()?, next()?, next()?, next()?],
        })
    }
}

/// The channel of the session's messages that carries reports, from a gateway to its cloud.
pub const REPORT: Channel = Channel(3);
/// The longest payload in bytes: that of a message of the session.
pub const REPORT_MAX: usize = 1_178;
/// The most carriers of a report: as many as a configuration has.
const REPORT_CARRIERS_MAX: usize = polyrail_config::CARRIERS_MAX;
/// The form of the payload; a later version may send another one.
const FORM: u64 = 1;
/// The longest name of a carrier in bytes, as in the session's greeting.
const NAME_MAX: usize = 32;
/// The states by their codes.
const STATES: [PathPhase; 7] = [
    PathPhase::Up,
    PathPhase::Stalled,
    PathPhase::Down,
    PathPhase::Disabled,
    PathPhase::NoInterface,
    PathPhase::Capped,
    PathPhase::Standby,
];

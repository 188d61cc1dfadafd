//! When carriers fall silent: data is out and nothing comes, for longer than a round trip explains.
//!
//! Silence is counted from the last thing that was heard of the carrier on any of its tunnels; a
//! fresh tunnel that carries ends it as well as the old one that wakes up. A carrier without data
//! out is not silent, whatever it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::LinkSample;
use polyrail_session::TunnelKey;

use crate::{Relay, TunnelView};

/// Watches the carriers of a gateway.
#[derive(Debug, Default)]
pub struct Silences {
    carriers: BTreeMap<String, Heard>,
}

#[derive(Debug)]
struct Heard {
    /// The last progress that was seen, else when it was looked at first.
    at: Instant,
    progressed: bool,
    silent: bool,
    /// The progress that was told last.
    told: Option<Instant>,
    /// What each tunnel had acknowledged and received.
    tunnels: BTreeMap<TunnelKey, (u64, u64)>,
}

/// A carrier has fallen silent, or is heard again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilenceChange {
    /// The carrier.
    pub carrier: String,
    /// Since when it is silent; none when it is heard again.
    pub since: Option<Instant>,
}

impl Silences {
    /// Looks at all tunnels; what has changed.
    pub fn look(&mut self, now: Instant, relay: &Relay) -> Vec<SilenceChange> {
        let keys = relay.tunnel_keys();
        let views = keys.into_iter().filter_map(|key| Some((key, relay.tunnel(key)?)));
        self.judge(now, views.filter(|(_, view)| !view.carrier.is_empty()))
    }

    /// The carriers of which something was heard, and when: each at most every 250 ms.
    pub fn take_heard(&mut self) -> Vec<(String, Instant)> {
        let mut heard = Vec::new();
        for (carrier, one) in &mut self.carriers {
            let news = one.told.is_none_or(|told| one.at >= told + TELL_EVERY);
            if news && one.progressed {
                one.told = Some(one.at);
                heard.push((carrier.clone(), one.at));
            }
        }
        heard
    }

    fn judge<'a>(
        &mut self,
        now: Instant,
        views: impl Iterator<Item = (TunnelKey, TunnelView<'a>)>,
    ) -> Vec<SilenceChange> {
        let mut alive: Vec<TunnelKey> = Vec::new();
        // Of each carrier that waits: since when, and when that is silence.
        let mut waiting: BTreeMap<String, (Instant, Duration)> = BTreeMap::new();
        for (key, view) in views {
            alive.push(key);
            if !self.carriers.contains_key(view.carrier) && self.carriers.len() >= CARRIERS_MAX {
                continue;
            }
            let heard = self.carriers.entry(view.carrier.to_owned()).or_insert_with(|| Heard {
                at: now,
                progressed: false,
                silent: false,
                told: None,
                tunnels: BTreeMap::new(),
            });
            let count = (view.acked.0, view.received_bytes);
            let last = heard.tunnels.insert(key, count);
            if last.is_some_and(|last| count.0 > last.0 || count.1 > last.1) {
                (heard.at, heard.progressed) = (now, true);
            }
            if let Some(since) = view.waiting_since {
                let patience = patience(view.sample);
                let known = waiting.entry(view.carrier.to_owned()).or_insert((since, patience));
                *known = (known.0.min(since), known.1.min(patience));
            }
        }
        let mut changes = Vec::new();
        for (carrier, heard) in &mut self.carriers {
            let since = match (heard.silent, waiting.get(carrier)) {
                (true, _) if heard.at == now => None,
                (false, Some((since, patience))) => {
                    let since = heard.at.max(*since);
                    if now.saturating_duration_since(since) < *patience {
                        continue;
                    }
                    Some(since)
                }
                _ => continue,
            };
            heard.silent = since.is_some();
            changes.push(SilenceChange { carrier: carrier.clone(), since });
        }
        self.carriers.retain(|_, heard| {
            heard.tunnels.retain(|key, _| alive.contains(key));
            !heard.tunnels.is_empty() || heard.silent
        });
        changes
    }
}

/// How long nothing may come until that is silence.
fn patience(sample: Option<&LinkSample>) -> Duration {
    let round = sample.map(|sample| sample.srtt + 4 * sample.rtt_var.min(sample.srtt));
    PATIENCE + round.unwrap_or(UNKNOWN)
}

/// How often it is told that something was heard.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Carriers that are watched.
const CARRIERS_MAX: usize = 64;
/// Silence beyond a round trip: the length that a handover may take that goes well (Wang et al.,
/// MobiCom 2019, 5.2: most take under 100 ms).
const PATIENCE: Duration = Duration::from_millis(100);
/// A round trip before the first sample.
const UNKNOWN: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, TunnelMode};

    use super::*;

    fn view(carrier: &str, begun: Instant, acked: u64, waiting: Option<Instant>) -> TunnelView<'_> {
        TunnelView {
            carrier,
            begun,
            mode: TunnelMode::Quic,
            up: true,
            early: false,
            peer: None,
            serial: None,
            address: None,
            local: None,
            sample: None,
            waiting_since: waiting,
            acked: Bytes(acked),
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    #[test]
    fn silence_begins_with_what_was_heard_last_and_ends_with_any_tunnel() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let (old, fresh) = (TunnelKey(1), TunnelKey(2));
        let mut silences = Silences::default();
        let mut look = |ms, views: Vec<(TunnelKey, TunnelView<'_>)>| {
            let changes = silences.judge(at(ms), views.into_iter());
            changes
                .into_iter()
                .map(|change| change.since.map(|since| since - begun))
                .collect::<Vec<_>>()
        };
        let ms = Duration::from_millis;
        let none: Vec<Option<Duration>> = Vec::new();
        assert_eq!(look(0, vec![(old, view("a", begun, 0, None))]), none);
        assert_eq!(look(100, vec![(old, view("a", begun, 9, Some(at(50))))]), none, "progress");
        assert_eq!(look(499, vec![(old, view("a", begun, 9, Some(at(100))))]), none);
        assert_eq!(look(500, vec![(old, view("a", begun, 9, Some(at(100))))]), [Some(ms(100))]);
        assert_eq!(look(900, vec![(old, view("a", begun, 9, Some(at(100))))]), none, "told once");
        // What was out is given up: that is no sound of the carrier.
        assert_eq!(look(950, vec![(old, view("a", begun, 9, None))]), none);
        assert_eq!(look(960, vec![]), none, "its tunnel is gone");
        assert_eq!(look(970, vec![(fresh, view("a", begun, 0, None))]), none);
        assert_eq!(look(990, vec![(fresh, view("a", begun, 7, None))]), [None]);
        assert_eq!(look(5_000, vec![(fresh, view("a", begun, 7, None))]), none, "nothing is out");
    }

    #[test]
    fn what_is_heard_is_told_every_now_and_then() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut silences = Silences::default();
        let mut look = |ms, acked| {
            silences.judge(at(ms), [(TunnelKey(1), view("a", begun, acked, None))].into_iter());
            silences.take_heard().into_iter().map(|(_, at)| at - begun).collect::<Vec<_>>()
        };
        let ms = Duration::from_millis;
        assert!(look(0, 7).is_empty(), "nothing came yet");
        assert_eq!(look(20, 8), [ms(20)]);
        assert!(look(269, 9).is_empty(), "too soon");
        assert_eq!(look(290, 10), [ms(290)]);
        assert!(look(900, 10).is_empty(), "nothing came");
    }

    #[test]
    fn each_carrier_is_watched_by_itself() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut silences = Silences::default();
        let views = |acked| {
            let b = view("b", begun, acked, Some(begun));
            vec![(TunnelKey(1), view("a", begun, 1, Some(begun))), (TunnelKey(2), b)].into_iter()
        };
        for step in 0..10_u64 {
            let changes = silences.judge(at(100 * step), views(step));
            let told: Vec<String> = changes.into_iter().map(|change| change.carrier).collect();
            assert_eq!(told, if step == 4 { vec!["a".to_owned()] } else { Vec::new() });
        }
    }
}

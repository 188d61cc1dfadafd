//! What the data plane had no room for yet. What is newer on the same subject takes the place of
//! what waits; at most [`UNSAID_MAX`] wait, and of more what comes is dropped.

use std::collections::BTreeMap;

use super::{Output, SessionNumber};

/// Outputs that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    waiting: BTreeMap<u64, Output>,
    /// Where what waits on a subject stands.
    subjects: BTreeMap<Subject, u64>,
    next: u64,
}

/// Of what the newest alone counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Forecast(SessionNumber, String),
    Outlook(SessionNumber, String),
    FoundCell(String),
    Telemetry,
}

impl Unsaid {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts one last, or where the one before on its subject waits; false when there is no room.
    #[must_use]
    pub(super) fn put(&mut self, output: Output) -> bool {
        let subject = subject(&output);
        if let Some(place) = subject.as_ref().and_then(|subject| self.subjects.get(subject)) {
            self.waiting.insert(*place, output);
            return true;
        }
        if self.waiting.len() >= UNSAID_MAX {
            return false;
        }
        self.subjects.extend(subject.map(|subject| (subject, self.next)));
        self.waiting.insert(self.next, output);
        self.next += 1;
        true
    }

    /// Gives away the first until one comes back, which goes on waiting; how many were taken.
    pub(super) fn give(&mut self, mut to: impl FnMut(Output) -> Result<(), Output>) -> usize {
        let mut given = 0;
        while let Some((place, output)) = self.waiting.pop_first() {
            let subject = subject(&output);
            if let Err(output) = to(output) {
                self.waiting.insert(place, output);
                break;
            }
            if let Some(subject) = subject {
                self.subjects.remove(&subject);
            }
            given += 1;
        }
        given
    }
}

fn subject(output: &Output) -> Option<Subject> {
    match output {
        Output::Forecast { session, carrier, .. } => {
            Some(Subject::Forecast(*session, carrier.clone()))
        }
        Output::Outlook { session, carrier, .. } => {
            Some(Subject::Outlook(*session, carrier.clone()))
        }
        Output::FoundCell { carrier } => Some(Subject::FoundCell(carrier.clone())),
        Output::Telemetry { .. } => Some(Subject::Telemetry),
        // Each says something else.
        Output::Sync { .. } => None,
    }
}

/// A forecast and an outlook for each of some thousand carriers.
const UNSAID_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use polyrail_model::LinkOutlook;

    use super::*;

    fn outlook(session: u64, steps: usize) -> Output {
        let (session, carrier) = (SessionNumber(session), "a".to_owned());
        let step = polyrail_model::OutlookStep {
            from: std::time::Instant::now(),
            rate: polyrail_model::Bitrate::from_bps(1),
            delay: std::time::Duration::ZERO,
        };
        let outlook = LinkOutlook { steps: vec![step; steps] };
        Output::Outlook { session, carrier, outlook }
    }

    fn taken(unsaid: &mut Unsaid, room: usize) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        let given = unsaid.give(|output| match output {
            Output::Outlook { session, outlook, .. } if all.len() < room => {
                all.push((session.0, outlook.steps.len()));
                Ok(())
            }
            output => Err(output),
        });
        assert_eq!(given, all.len());
        all
    }

    #[test]
    fn what_finds_no_room_waits_in_its_order_and_the_newer_replaces_it() {
        let mut unsaid = Unsaid::default();
        assert!((1..=4).all(|session| unsaid.put(outlook(session, 1))));
        assert_eq!(taken(&mut unsaid, 2), [(1, 1), (2, 1)]);
        // The third came back and waits as before; of the first nothing waits any more.
        assert!(unsaid.put(outlook(1, 2)) && unsaid.put(outlook(3, 2)));
        assert_eq!(taken(&mut unsaid, 9), [(3, 2), (4, 1), (1, 2)]);
        assert!(unsaid.is_empty() && unsaid.subjects.is_empty());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut unsaid = Unsaid::default();
        assert!((0..UNSAID_MAX as u64).all(|session| unsaid.put(outlook(session, 1))));
        assert!(!unsaid.put(outlook(u64::MAX, 1)));
        assert!(unsaid.put(outlook(0, 3)), "the newer replaces");
        assert_eq!(taken(&mut unsaid, usize::MAX).len(), UNSAID_MAX);
    }
}

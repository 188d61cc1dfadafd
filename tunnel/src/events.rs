//! The events of a tunnel, until they are polled.

use std::collections::VecDeque;

use crate::TunnelEvent;

/// Events that wait to be polled, and which were polled.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pending: VecDeque<TunnelEvent>,
    pub(crate) early_polled: bool,
    pub(crate) up_polled: bool,
}

impl Events {
    /// Queues an event; `Closed` replaces all that were not polled.
    pub(crate) fn push(&mut self, event: TunnelEvent) {
        if matches!(event, TunnelEvent::Closed(_)) {
            self.pending.clear();
        }
        debug_assert!(self.pending.len() < 3, "each event comes once");
        self.pending.push_back(event);
    }

    pub(crate) fn poll(&mut self) -> Option<TunnelEvent> {
        let event = self.pending.pop_front()?;
        self.early_polled |= matches!(event, TunnelEvent::Early(_));
        self.up_polled |= matches!(event, TunnelEvent::Up(_));
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::Identity;

    use super::*;
    use crate::{CloseReason, Early};

    #[test]
    fn closed_replaces_events_that_were_not_polled() {
        let early = || {
            let peer = Identity::new("gateway").unwrap();
            TunnelEvent::Early(Early { peer, serial: String::new() })
        };
        let closed = TunnelEvent::Closed(CloseReason::Local);
        let mut events = Events::default();
        events.push(early());
        assert_eq!((events.early_polled, events.poll()), (false, Some(early())));
        events.push(early());
        events.push(closed.clone());
        assert_eq!((events.poll(), events.poll()), (Some(closed), None));
        assert!(events.early_polled && !events.up_polled);
    }
}

//! What a rule remembers of each flow.

use polyrail_model::FlowId;

/// A value a flow. Bounded: beyond [`FLOWS_MAX`] flows the one that was asked for longest ago is
/// forgotten. Nobody tells a rule that a flow has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerFlow<T> {
    /// In the order of their flows.
    entries: Vec<Entry<T>>,
    /// How often a value was asked for.
    uses: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    flow: FlowId,
    used: u64,
    value: T,
}

impl<T: Default> PerFlow<T> {
    /// The value of this flow, new if it has none.
    pub fn of(&mut self, flow: FlowId) -> &mut T {
        self.uses += 1;
        let place = match self.place(flow) {
            Ok(place) => place,
            Err(_) => {
                self.make_room();
                // Making room may have moved the place.
                let place = self.place(flow).unwrap_or_else(|place| place);
                self.entries.insert(place, Entry { flow, used: 0, value: T::default() });
                place
            }
        };
        let entry = &mut self.entries[place];
        entry.used = self.uses;
        &mut entry.value
    }

    /// The value of this flow, if it has one.
    pub fn get(&self, flow: FlowId) -> Option<&T> {
        self.place(flow).ok().map(|place| &self.entries[place].value)
    }

    fn place(&self, flow: FlowId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&flow, |entry| entry.flow)
    }

    fn make_room(&mut self) {
        if self.entries.len() < FLOWS_MAX {
            return;
        }
        let places = self.entries.iter().enumerate();
        if let Some((oldest, _)) = places.min_by_key(|(_, entry)| entry.used) {
            self.entries.remove(oldest);
        }
    }
}

/// The most flows that a rule remembers.
pub(crate) const FLOWS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_that_was_asked_for_longest_ago_is_forgotten() {
        let mut flows = PerFlow::<u64>::default();
        for flow in (0..FLOWS_MAX as u64).rev() {
            *flows.of(FlowId(flow)) = flow;
        }
        assert_eq!(*flows.of(FlowId(FLOWS_MAX as u64 - 1)), FLOWS_MAX as u64 - 1);
        *flows.of(FlowId(1 << 40)) = 7;
        assert_eq!(flows.entries.len(), FLOWS_MAX);
        assert_eq!(flows.get(FlowId(FLOWS_MAX as u64 - 2)), None);
        assert_eq!(flows.get(FlowId(FLOWS_MAX as u64 - 1)), Some(&(FLOWS_MAX as u64 - 1)));
        assert_eq!(flows.get(FlowId(0)), Some(&0));
        assert_eq!(flows.get(FlowId(1 << 40)), Some(&7));
    }
}

//! The state that a rule keeps for each flow.

use polyrail_model::FlowId;

/// One value per flow. Beyond [`FLOWS_MAX`] flows it forgets the least recently used half at once,
/// so that each eviction is cheap. Rules are not notified when a flow ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerFlow<T> {
    /// In the order of their flows.
    entries: Vec<FlowValue<T>>,
    /// Accesses so far.
    uses: u64,
    /// Scratch: the last access of each entry.
    order: Vec<u64>,
}

#[derive(Clone, Debug)]
struct FlowValue<T> {
    flow: FlowId,
    used: u64,
    value: T,
}

impl<T: Default> PerFlow<T> {
    /// The value of this flow, or a default.
    pub fn of(&mut self, flow: FlowId) -> &mut T {
        self.uses += 1;
        let place = match self.place(flow) {
            Ok(place) => place,
            Err(_) => {
                self.make_room();
                // Making room may have moved the place.
                let place = self.place(flow).unwrap_or_else(|place| place);
                self.entries.insert(place, FlowValue { flow, used: 0, value: T::default() });
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
        self.order.clear();
        self.order.extend(self.entries.iter().map(|entry| entry.used));
        let (_, &mut since, _) = self.order.select_nth_unstable(FORGOTTEN);
        self.entries.retain(|entry| entry.used >= since);
    }
}

/// The largest number of flows.
pub(crate) const FLOWS_MAX: usize = 4_096;

/// The number of flows forgotten at once.
const FORGOTTEN: usize = FLOWS_MAX / 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_flows_are_forgotten() {
        let last = FLOWS_MAX as u64 - 1;
        let mut flows = PerFlow::<u64>::default();
        for flow in (0..=last).rev() {
            *flows.of(FlowId(flow)) = flow;
        }
        assert_eq!(*flows.of(FlowId(last)), last);
        assert_eq!(flows.entries.len(), FLOWS_MAX);
        *flows.of(FlowId(1 << 40)) = 7;
        assert_eq!(flows.entries.len(), FLOWS_MAX / 2 + 1);
        let known = [(0, Some(0)), (last, Some(last)), (1 << 40, Some(7)), (last - 1, None)];
        for (flow, value) in known {
            assert_eq!(flows.get(FlowId(flow)).copied(), value, "{flow}");
        }
    }
}

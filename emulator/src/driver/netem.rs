//! netem, to come.
use crate::scenario::Scenario;
pub(super) fn obstacle(_: &Scenario) -> Option<String> {
    Some("the netem driver is not built yet".into())
}

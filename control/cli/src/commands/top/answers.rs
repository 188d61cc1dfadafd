//! The answers of a daemon at one time.

use std::time::Instant;

use anyhow::Context;
use polyrail_admin::client::{AdminClient, ClientError, query};
use polyrail_admin::{
    ErrorCode, FlowPage, FlowState, PAGE_MAX, PathState, Status, UserPage, UserState,
};
use polyrail_predictor::worker::WorkerState;
use serde::Deserialize;
use serde_json::Value;

use super::tab::Tab;

/// The answers of one poll.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) at: Instant,
    pub(super) status: Status,
    pub(super) paths: Vec<PathState>,
    /// Empty if another list is shown.
    pub(super) users: Vec<UserState>,
    /// Empty if another list is shown.
    pub(super) flows: Vec<FlowState>,
    /// `None` without LinkDB, or while it does not answer.
    pub(super) linkdb: Option<WorkerState>,
    /// The latest events, the newest last; empty if another list is shown.
    pub(super) events: Vec<Value>,
}

#[derive(Deserialize)]
struct Paths {
    paths: Vec<PathState>,
}

impl Answers {
    /// Asks a daemon. Of the lists it asks only for that of `tab`.
    pub(super) fn ask(client: &AdminClient, tab: Tab) -> anyhow::Result<Self> {
        let status = client.get("/v1/status")?.value;
        let Paths { paths } = client.get("/v1/paths")?.value;
        let linkdb = match client.get("/v1/linkdb") {
            Ok(answer) => Some(answer.value),
            Err(ClientError::Refused(error))
                if [ErrorCode::NotFound, ErrorCode::Busy].contains(&error.code()) =>
            {
                None
            }
            Err(error) => return Err(error.into()),
        };
        let (at, users, flows, events) = (Instant::now(), Vec::new(), Vec::new(), Vec::new());
        let mut answers = Self { at, status, paths, users, flows, linkdb, events };
        match tab {
            Tab::Users => answers.users = client.get::<UserPage>("/v1/users")?.value.users,
            Tab::Flows => answers.flows = flows_of(client)?,
            Tab::Events => answers.events = events_of(client)?,
        }
        Ok(answers)
    }
}

/// The first flows.
fn flows_of(client: &AdminClient) -> anyhow::Result<Vec<FlowState>> {
    let (mut flows, mut after) = (Vec::new(), None);
    for _ in 0..FLOW_PAGES_MAX {
        let page = [("limit", Some(PAGE_MAX.to_string())), ("after", after.take())];
        let FlowPage { flows: page, next } = client.get(&query("/v1/flows", page))?.value;
        flows.extend(page);
        after = next.map(|id| id.to_string());
        if after.is_none() {
            break;
        }
    }
    Ok(flows)
}

fn events_of(client: &AdminClient) -> anyhow::Result<Vec<Value>> {
    let mut events = Vec::new();
    client.events(0, false, |line| {
        events.push(serde_json::from_str(line).context("an event that is not JSON")?);
        anyhow::Ok(true)
    })?;
    Ok(events)
}

/// Pages of flows in one poll: each is a request to the data plane.
const FLOW_PAGES_MAX: usize = 4;

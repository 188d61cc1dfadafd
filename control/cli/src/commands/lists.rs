//! `polyrail flows | users`: lists of a running daemon, page by page.

use std::io::Write;

use clap::Args;
use polyrail_admin::client::{AdminClient, AdminResponse, query};
use polyrail_admin::{FlowPage, PAGE_MAX, UserPage};
use polyrail_model::{FlowKind, FlowName, UserId};

use super::admin::Connection;
use super::shown;

/// `polyrail flows`.
#[derive(Args)]
pub(crate) struct Flows {
    /// Flows of this user, as `polyrail users` shows it
    #[arg(long, value_name = "NUMBER")]
    user: Option<UserId>,
    /// Flows of this gateway (cloud)
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// Only tcp or udp
    #[arg(long)]
    kind: Option<FlowKind>,
    /// Flows that this carrier has carried
    #[arg(long, value_name = "NAME")]
    carrier: Option<String>,
    /// Flows of at least this age
    #[arg(long, value_name = "SECONDS")]
    min_age: Option<u64>,
    /// Flows with at least so many bytes, in both directions together
    #[arg(long, value_name = "BYTES")]
    min_bytes: Option<u64>,
    /// Flows after the one with this id
    #[arg(long, value_name = "ID")]
    after: Option<FlowName>,
    /// Show at most so many; with --json one page, of at most 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    connection: Connection,
}

/// `polyrail users`.
#[derive(Args)]
pub(crate) struct Users {
    /// Only this user
    #[arg(long, value_name = "NUMBER")]
    user: Option<UserId>,
    /// Users of this gateway (cloud)
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// Users with at least so many open flows
    #[arg(long, value_name = "NUMBER")]
    min_flows: Option<u64>,
    /// Show at most so many; with --json one page, of at most 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    connection: Connection,
}

/// Shows the flows.
pub(crate) fn flows(arguments: &Flows, out: &mut dyn Write) -> anyhow::Result<bool> {
    let Flows { user, gateway, kind, carrier, min_age, min_bytes, after, limit, connection } =
        arguments;
    let filters = [
        ("user", user.map(|user| user.to_string())),
        ("gateway", gateway.clone()),
        ("kind", kind.map(|kind| kind.as_str().to_owned())),
        ("carrier", carrier.clone()),
        ("min_age_s", min_age.map(|age| age.to_string())),
        ("min_bytes", min_bytes.map(|bytes| bytes.to_string())),
    ];
    let client = connection.client()?;
    let (mut flows, mut next) = (Vec::new(), *after);
    loop {
        let left = (limit - flows.len()).clamp(1, PAGE_MAX);
        let page = [("limit", Some(left.to_string())), ("after", next.map(|id| id.to_string()))];
        let answer: AdminResponse<FlowPage> =
            client.get(&query("/v1/flows", page.into_iter().chain(filters.clone())))?;
        if connection.json {
            return connection.show(&answer, out, |_, _| Ok(()));
        }
        flows.extend(answer.value.flows);
        next = answer.value.next;
        if next.is_none() || flows.len() >= *limit {
            break;
        }
    }
    shown::flows(&flows, out)?;
    if let Some(next) = next {
        writeln!(out, "there are more: --after {next}")?;
    }
    Ok(true)
}

/// Shows the users, those with the most flows first.
pub(crate) fn users(arguments: &Users, out: &mut dyn Write) -> anyhow::Result<bool> {
    let Users { user, gateway, min_flows, limit, connection } = arguments;
    let filters = [
        ("user", user.map(|user| user.to_string())),
        ("gateway", gateway.clone()),
        ("min_flows", min_flows.map(|flows| flows.to_string())),
    ];
    let client = connection.client()?;
    let (mut users, mut next) = (Vec::new(), None);
    loop {
        let answer = user_page(&client, limit - users.len(), next.take(), filters.clone())?;
        if connection.json {
            return connection.show(&answer, out, |_, _| Ok(()));
        }
        users.extend(answer.value.users);
        next = answer.value.next.map(|place| place.to_string());
        if next.is_none() || users.len() >= *limit {
            break;
        }
    }
    shown::users(&users, out)?;
    if next.is_some() {
        writeln!(out, "there are more: --limit")?;
    }
    Ok(true)
}

fn user_page(
    client: &AdminClient,
    left: usize,
    after: Option<String>,
    filters: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> anyhow::Result<AdminResponse<UserPage>> {
    let page = [("limit", Some(left.clamp(1, PAGE_MAX).to_string())), ("after", after)];
    Ok(client.get(&query("/v1/users", page.into_iter().chain(filters)))?)
}

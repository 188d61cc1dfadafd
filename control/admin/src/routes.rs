//! The HTTP routes of the admin interface; `docs/admin.md` lists them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post, put};
use futures_util::{StreamExt, stream};
use polyrail_config::Tables;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::connection::CLIENT_TIMEOUT;
use super::control::Control;
use super::{
    AdminError, DRAIN_S_MAX, Drain, DrainState, ErrorCode, FlowPage, FlowsQuery, PathChange,
    SPEEDTEST_CARRIERS_MAX, SPEEDTEST_S_MAX, Scheduler, SpeedtestOrder, SpeedtestState, UserPage,
    UsersQuery,
};

/// The maximum size of a request's body, in bytes.
pub(super) const BODY_MAX: usize = 16 * 1024;

/// The maximum number of concurrent readers of events.
pub(super) const READERS_MAX: usize = 16;

/// The address and the methods of each route. `docs/openapi.json` has the same.
pub(super) fn routes<C: Tables>() -> [(&'static str, MethodRouter<Arc<Control<C>>>); 11] {
    [
        ("/v1/status", get(status::<C>)),
        ("/v1/paths", get(paths::<C>)),
        ("/v1/paths/{name}", get(path::<C>).put(set_path::<C>)),
        ("/v1/flows", get(flows::<C>)),
        ("/v1/users", get(users::<C>)),
        ("/v1/scheduler", put(set_scheduler::<C>)),
        ("/v1/linkdb", get(linkdb::<C>)),
        ("/v1/drain", post(drain::<C>)),
        ("/v1/speedtest", get(speedtest::<C>).post(start_speedtest::<C>)),
        ("/v1/reload", post(reload::<C>)),
        ("/v1/events", get(events::<C>)),
    ]
}

/// All routes.
pub(super) fn router<C: Tables>(control: Arc<Control<C>>) -> Router {
    let router = Router::new();
    let add = |router: Router<_>, (address, methods)| router.route(address, methods);
    routes()
        .into_iter()
        .fold(router, add)
        .fallback(no_such_address)
        .method_not_allowed_fallback(not_that_method)
        .with_state(control)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// Whether to wait for new events after the buffered ones.
    #[serde(default = "yes")]
    follow: bool,
    /// Skip events up to this number.
    #[serde(default)]
    since: u64,
}

type JsonResult<T> = Result<Json<T>, AdminError>;
type Shared<C> = State<Arc<Control<C>>>;

/// A JSON text with a line end for terminals.
struct Json<T>(T);

async fn status<C: Tables>(State(control): Shared<C>) -> JsonResult<super::Status> {
    control.status().await.map(Json)
}

async fn paths<C: Tables>(State(control): Shared<C>) -> JsonResult<serde_json::Value> {
    let paths = control.paths().await?;
    Ok(Json(json!({ "paths": paths })))
}

async fn flows<C: Tables>(
    State(control): Shared<C>,
    query: Result<Query<FlowsQuery>, QueryRejection>,
) -> JsonResult<FlowPage> {
    let Query(query) = query.map_err(|error| bad_request(error.body_text()))?;
    control.flows(query).await.map(Json)
}

async fn users<C: Tables>(
    State(control): Shared<C>,
    query: Result<Query<UsersQuery>, QueryRejection>,
) -> JsonResult<UserPage> {
    let Query(query) = query.map_err(|error| bad_request(error.body_text()))?;
    control.users(query).await.map(Json)
}

async fn linkdb<C: Tables>(State(control): Shared<C>) -> JsonResult<serde_json::Value> {
    control.linkdb().await.map(Json)
}

async fn path<C: Tables>(
    State(control): Shared<C>,
    name: Result<Path<String>, PathRejection>,
) -> JsonResult<super::PathState> {
    let Path(name) = name.map_err(bad_request)?;
    control.path(&name).await.map(Json)
}

async fn set_path<C: Tables>(
    State(control): Shared<C>,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> JsonResult<super::PathState> {
    let Path(name) = name.map_err(bad_request)?;
    let change: PathChange = parse(&read(body).await?)?;
    if change.is_empty() {
        return Err(bad_request("nothing to change: give enabled, mode or restart"));
    }
    control.set_path(name, change).await.map(Json)
}

async fn set_scheduler<C: Tables>(State(control): Shared<C>, body: Body) -> JsonResult<Scheduler> {
    let scheduler: Scheduler = parse(&read(body).await?)?;
    control.set_scheduler(scheduler.chain.clone()).await?;
    Ok(Json(scheduler))
}

async fn drain<C: Tables>(State(control): Shared<C>, body: Body) -> JsonResult<DrainState> {
    let body = read(body).await?;
    let Drain { limit_s } = parse(if body.is_empty() { b"{}" } else { &body })?;
    if !(1..=DRAIN_S_MAX).contains(&limit_s) {
        return Err(bad_request(format!("limit_s is not between 1 and {DRAIN_S_MAX}")));
    }
    control.drain(Duration::from_secs(limit_s)).await.map(Json)
}

async fn speedtest<C: Tables>(State(control): Shared<C>) -> JsonResult<SpeedtestState> {
    control.speedtest(None).await.map(Json)
}

async fn start_speedtest<C: Tables>(
    State(control): Shared<C>,
    body: Body,
) -> JsonResult<SpeedtestState> {
    let body = read(body).await?;
    let order: SpeedtestOrder = parse(if body.is_empty() { b"{}" } else { &body })?;
    if !(1..=SPEEDTEST_S_MAX).contains(&order.seconds) {
        return Err(bad_request(format!("seconds is not between 1 and {SPEEDTEST_S_MAX}")));
    }
    if order.carriers.len() > SPEEDTEST_CARRIERS_MAX {
        return Err(bad_request(format!("more than {SPEEDTEST_CARRIERS_MAX} carriers")));
    }
    control.speedtest(Some(order)).await.map(Json)
}

async fn reload<C: Tables>(State(control): Shared<C>, body: Body) -> JsonResult<super::Reloaded> {
    if !read(body).await?.is_empty() {
        return Err(bad_request("a reload takes no body: it reads the configuration file"));
    }
    control.reload("the admin socket").await.map(Json)
}

async fn events<C: Tables>(
    State(control): Shared<C>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response<Body>, AdminError> {
    let Query(query) = query.map_err(|error| bad_request(error.body_text()))?;
    let permit = control.readers.clone().try_acquire_owned().map_err(|_| {
        let message = format!("there are {READERS_MAX} readers of events already");
        AdminError::new(ErrorCode::Busy, message)
    })?;
    let reader = control.stream.read(query.since, query.follow);
    let lines = stream::unfold((reader, permit), |(mut reader, permit)| async move {
        let lines = reader.next().await?;
        Some((Ok::<_, Infallible>(lines), (reader, permit)))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

async fn no_such_address() -> AdminError {
    let message = "unknown address; docs/admin.md lists all";
    AdminError::new(ErrorCode::NotFound, message)
}

async fn not_that_method() -> AdminError {
    AdminError::new(ErrorCode::MethodNotAllowed, "this address does not support the method")
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, AdminError> {
    // Serde would read a list as the fields in their order.
    let value: serde_json::Value = serde_json::from_slice(body).map_err(bad_request)?;
    if !value.is_object() {
        return Err(bad_request("expected a JSON object"));
    }
    serde_json::from_value(value).map_err(bad_request)
}

/// Reads the body of a request.
async fn read(body: Body) -> Result<Vec<u8>, AdminError> {
    let mut parts = body.into_data_stream();
    let all = async {
        let mut bytes = Vec::new();
        while let Some(part) = parts.next().await {
            let part = part.map_err(bad_request)?;
            if bytes.len() + part.len() > BODY_MAX {
                let message = format!("the body is over {BODY_MAX} bytes");
                return Err(AdminError::new(ErrorCode::TooLarge, message));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    };
    let late = |_| bad_request("the body did not arrive in time");
    timeout(CLIENT_TIMEOUT, all).await.map_err(late)?
}

fn bad_request(reason: impl ToString) -> AdminError {
    AdminError::new(ErrorCode::BadRequest, reason.to_string())
}

fn yes() -> bool {
    true
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response<Body> {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        match serde_json::to_string(&self.0) {
            Ok(text) => (kind, text + "\n").into_response(),
            Err(error) => AdminError::new(ErrorCode::Internal, error.to_string()).into_response(),
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.code().http_status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (status, kind, json!({ "error": self }).to_string() + "\n").into_response()
    }
}

//! The status page: one HTML file, and the JSON that it polls, on a loopback address.
//!
//! The listener has no other routes, so nothing can be changed through it. Any local process may
//! connect, so the answers name no passenger's address and no file. A web page of another site that
//! makes a browser resolve its own name to this host (DNS rebinding) is refused by its `Host`
//! header.

mod answer;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::get;
use polyrail_config::Tables;
use tokio::sync::Mutex;

use super::control::Control;

/// The page.
const PAGE: &str = include_str!("page.html");

/// The maximum number of connected browsers; further ones wait.
pub(super) const CONNECTIONS_MAX: usize = 16;

/// How long an answer serves all browsers, so that many of them cost the data plane no more than
/// one.
const FRESH: Duration = Duration::from_millis(800);

/// The page's routes.
pub(super) fn router<C: Tables>(control: Arc<Control<C>>) -> Router {
    let shared = Arc::new(Shared { control, latest: Mutex::default() });
    Router::new()
        .route("/", get(page))
        .route("/state", get(state::<C>))
        .with_state(shared)
        .layer(from_fn(guard))
}

struct Shared<C: Tables> {
    control: Arc<Control<C>>,
    latest: Mutex<Option<(Instant, String)>>,
}

async fn page() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE)
}

async fn state<C: Tables>(State(shared): State<Arc<Shared<C>>>) -> Response<Body> {
    let mut latest = shared.latest.lock().await;
    let fresh = latest.take().filter(|(at, _)| at.elapsed() < FRESH);
    let fresh = match fresh {
        Some(fresh) => Ok(fresh),
        None => answer::of(&shared.control).await.map(|text| (Instant::now(), text)),
    };
    match fresh {
        Ok(fresh) => {
            let text = latest.insert(fresh).1.clone();
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// Refuses requests for other hosts, and adds headers that keep a browser from doing more.
async fn guard(request: Request, next: Next) -> Response<Body> {
    if !is_local(request.headers()) {
        let reason = "This page is served to localhost and to loopback addresses only.\n";
        return (StatusCode::FORBIDDEN, reason).into_response();
    }
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether the request is for this host by its own name.
fn is_local(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let address = host.parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|one| one.is_loopback())
    })
}

const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

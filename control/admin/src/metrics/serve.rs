//! `GET /metrics`, and the gateway's reports to its cloud.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use polyrail_config::Tables;
use tokio::time::Instant;

use super::figures::{LinkDbFigures, Scrape};
use crate::control::Control;
use crate::{AdminCommand, AdminError, merge};

/// The routes of the metrics' listener.
pub(crate) fn router<C: Tables>(control: Arc<Control<C>>) -> Router {
    Router::new().route("/metrics", get(metrics::<C>)).fallback(no_such_page).with_state(control)
}

async fn metrics<C: Tables>(State(control): State<Arc<Control<C>>>) -> Response {
    match control.metrics_text().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        // Prometheus shows the status, and people read the text.
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn no_such_page() -> Response {
    (StatusCode::NOT_FOUND, "the metrics are at /metrics\n").into_response()
}

impl<C: Tables> Control<C> {
    /// The text of all metrics, at most [`FRESH`] old.
    async fn metrics_text(&self) -> Result<String, AdminError> {
        let mut latest = self.scraped.latest.lock().await;
        if let Some((at, text)) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let mut scrape = self.scrape().await?;
        let names = &self.scraped.names;
        scrape.limit(&mut names.lock().unwrap_or_else(PoisonError::into_inner));
        let text = scrape.into_text();
        *latest = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    async fn scrape(&self) -> Result<Scrape, AdminError> {
        let mut plane = merge::metrics(self.ask_all(AdminCommand::Metrics).await?);
        let linkdb: Option<LinkDbFigures> = match &self.linkdb {
            None => None,
            // A thread that does not answer has no figures.
            Some(_) => {
                let state = self.linkdb().await.ok();
                Some(state.and_then(|state| serde_json::from_value(state).ok()).unwrap_or_default())
            }
        };
        let status = self.status_with(std::mem::take(&mut plane.status));
        Ok(Scrape { status, plane, linkdb, unlisted: 0 })
    }

    /// The payload of this gateway's report; none if the cloud does not take it.
    async fn report_payload(&self) -> Option<Vec<u8>> {
        let wants = self.ask(AdminCommand::Metrics).await.is_ok_and(|plane| plane.wants_report);
        if wants { Some(self.scrape().await.ok()?.report().encode()) } else { None }
    }
}

/// Sends the gateway's report to its cloud every [`REPORT_EVERY`], for as long as the thread runs.
pub(crate) async fn report_to_cloud<C: Tables>(control: Arc<Control<C>>) {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        if let Some(payload) = control.report_payload().await {
            // A full queue drops it; the next one follows.
            let _ = control.hand_over(AdminCommand::Report(payload));
        }
    }
}

/// Scrapes within this time get the same text, so that no local program can load the data plane.
const FRESH: Duration = Duration::from_secs(1);
/// The interval of reports.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The media type of the text (OpenMetrics 1.0).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

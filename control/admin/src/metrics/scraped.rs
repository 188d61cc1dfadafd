//! What is kept between scrapes.

use std::sync::Mutex;

use tokio::time::Instant;

use super::listed::ListedNames;

/// The state between scrapes.
#[derive(Debug, Default)]
pub(crate) struct Scraped {
    /// The latest text, and when it was made. Locked while a new one is made, so that scrapes at
    /// the same time cost as much as one.
    pub(super) latest: tokio::sync::Mutex<Option<(Instant, String)>>,
    pub(super) names: Mutex<ListedNames>,
}

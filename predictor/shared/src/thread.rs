//! The thread between LinkDB's thread and the server.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::RecvError;
use std::time::Duration;

use polyrail_predictor::shared::{Answer, ENTRIES_MAX, News};
use polyrail_predictor::worker::Feeder;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::database::Database;
use crate::{Server, SharedError};

/// Starts the thread, which ends with LinkDB's. While the server is away it tries again, first
/// after a second, later every minute.
///
/// # Errors
/// The system cannot start a thread.
pub fn start(server: Server, linkdb: Feeder) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("linkdb-shared".to_owned());
    thread.spawn(move || {
        guard(&linkdb, || {
            let changed = Arc::new(Notify::new());
            let wake = changed.clone();
            linkdb.on_unshared(Box::new(move || wake.notify_one()));
            // An error here is the end of LinkDB's thread.
            let _ = runtime.block_on(serve(&server, &linkdb, &changed));
        });
    })?;
    Ok(())
}

/// Does the thread's work. A panic is logged, and is the state's error from then on.
fn guard(linkdb: &Feeder, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("{PANICKED}");
        let _ = linkdb.share(News { error: Some(PANICKED.to_owned()), ..News::default() });
    }
}

async fn serve(server: &Server, linkdb: &Feeder, wake: &Arc<Notify>) -> Result<(), RecvError> {
    let (mut wait, mut logged) = (RETRY, None);
    loop {
        let mut was_open = false;
        let error = match exchange(server, linkdb, wake, &mut was_open).await {
            Ok(ended) => return Err(ended),
            Err(error) => error.to_string(),
        };
        if was_open {
            wait = RETRY;
        }
        if logged.as_ref() != Some(&error) || was_open {
            tracing::warn!(error, "cannot use the shared LinkDB; entries wait");
            logged = Some(error.clone());
        }
        let until = Instant::now() + wait;
        while Instant::now() < until {
            // In short steps, because this also shows whether LinkDB's thread still runs.
            linkdb.share(News { error: Some(error.clone()), ..News::default() })?;
            sleep(RETRY).await;
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Exchanges entries until the server fails (the error), or LinkDB ends.
async fn exchange(
    server: &Server,
    linkdb: &Feeder,
    wake: &Arc<Notify>,
    was_open: &mut bool,
) -> Result<RecvError, SharedError> {
    let mut database = Database::open(server, wake.clone()).await?;
    let mut news = News { is_whole: true, marks: database.list().await?, ..News::default() };
    let mut rotate_at = Instant::now();
    loop {
        if Instant::now() >= rotate_at {
            rotate_at = Instant::now() + ROTATE_EVERY;
            if let Err(error) = database.rotate().await {
                tracing::warn!(%error, "cannot begin or drop partitions of the shared LinkDB");
            }
        }
        let answer = match linkdb.share(news) {
            Err(ended) => return Ok(ended),
            Ok(answer) => answer,
        };
        let Some(answer) = answer else {
            // The local database lost the news.
            sleep(RETRY_LOCAL).await;
            database.forget();
            news = News { is_whole: true, marks: database.list().await?, ..News::default() };
            continue;
        };
        if answer == Answer::default() {
            let _ = timeout(POLL_EVERY, wake.notified()).await;
        }
        news = turn(&mut database, answer).await?;
        // Not before: an append that always fails must not be tried and logged every second.
        if !std::mem::replace(was_open, true) {
            tracing::info!("the shared LinkDB is reachable");
        }
        let read: usize = news.spans.iter().map(|span| span.entries.len()).sum();
        if read.max(news.sent as usize) < ENTRIES_MAX / 2 {
            // So a busy fleet needs few transactions.
            sleep(COLLECT).await;
        }
    }
}

async fn turn(database: &mut Database, answer: Answer) -> Result<News, SharedError> {
    let Answer { offers, wants } = answer;
    let mut news = News::default();
    if !offers.is_empty() {
        news = database.append(offers).await?;
    }
    if !wants.is_empty() {
        news.spans = database.read(wants).await?;
    }
    news.marks.extend(database.list().await?);
    Ok(news)
}

/// How long news are collected.
const COLLECT: Duration = Duration::from_millis(100);
/// How often changes are listed without a notification.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// How often partitions are looked at.
const ROTATE_EVERY: Duration = Duration::from_secs(3_600);
/// The time to the first attempt after a failure; later it doubles.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How often the local database is tried.
const RETRY_LOCAL: Duration = Duration::from_secs(10);
const PANICKED: &str = "the shared LinkDB's thread panicked: entries wait until the cloud restarts";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_shown_in_the_state() {
        use polyrail_model::NodeRole;
        use polyrail_predictor::worker::{LinkDbSettings, Options, Worker};

        let folder = tempfile::tempdir().unwrap();
        let worker = Worker::start(Options {
            role: NodeRole::Cloud,
            name: "a".to_owned(),
            path: Some(folder.path().join("a")),
            settings: LinkDbSettings {
                events_max: 1_000,
                retention: Duration::from_secs(1_000),
                forecast: false,
                share: false,
            },
            seed: 1,
            notify: Box::new(|| {}),
        })
        .unwrap();
        guard(&worker.feeder(), || panic!("requested by the test"));
        let shared = worker.feeder().state().unwrap().shared.unwrap();
        assert_eq!(shared.error.as_deref(), Some(PANICKED));
        assert!(!shared.connected);
    }
}

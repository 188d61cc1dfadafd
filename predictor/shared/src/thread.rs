//! The thread between LinkDB's thread and the server.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::RecvError;
use std::time::Duration;

use polyrail_predictor::shared::{Answer, ENTRIES_MAX, Told};
use polyrail_predictor::worker::Feeder;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::database::{Database, Taken};
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
        let news = Arc::new(Notify::new());
        let wake = news.clone();
        linkdb.on_unshared(Box::new(move || wake.notify_one()));
        // An error here is the end of LinkDB's thread.
        let _ = runtime.block_on(serve(&server, &linkdb, &news));
    })?;
    Ok(())
}

async fn serve(server: &Server, linkdb: &Feeder, news: &Arc<Notify>) -> Result<(), RecvError> {
    let (mut wait, mut told) = (RETRY, None);
    loop {
        let mut was_open = false;
        let error = match exchange(server, linkdb, news, &mut was_open).await {
            Ok(ended) => return Err(ended),
            Err(error) => error.to_string(),
        };
        if was_open {
            wait = RETRY;
        }
        if told.as_ref() != Some(&error) || was_open {
            tracing::warn!(error, "cannot use the shared LinkDB; entries wait");
            told = Some(error.clone());
        }
        let until = Instant::now() + wait;
        while Instant::now() < until {
            // In short steps, because this also shows whether LinkDB's thread still runs.
            linkdb.share(Told { error: Some(error.clone()), ..Told::default() })?;
            sleep(RETRY).await;
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Exchanges entries until the server fails (the error), or LinkDB ends.
async fn exchange(
    server: &Server,
    linkdb: &Feeder,
    news: &Arc<Notify>,
    was_open: &mut bool,
) -> Result<RecvError, SharedError> {
    let mut database = Database::open(server, news.clone()).await?;
    let mut told = Told { is_whole: true, marks: database.list().await?, ..Told::default() };
    *was_open = true;
    tracing::info!("the shared LinkDB is reachable");
    let mut rotate_at = Instant::now();
    loop {
        if Instant::now() >= rotate_at {
            rotate_at = Instant::now() + ROTATE_EVERY;
            database.rotate().await?;
        }
        let answer = match linkdb.share(told) {
            Err(ended) => return Ok(ended),
            Ok(answer) => answer,
        };
        let Some(answer) = answer else {
            // The local database lost the news.
            sleep(RETRY_LOCAL).await;
            database.forget();
            told = Told { is_whole: true, marks: database.list().await?, ..Told::default() };
            continue;
        };
        if answer == Answer::default() {
            let _ = timeout(POLL_EVERY, news.notified()).await;
        }
        told = turn(&mut database, answer).await?;
        let read: usize = told.spans.iter().map(|span| span.entries.len()).sum();
        if read.max(told.sent as usize) < ENTRIES_MAX / 2 {
            // So a busy fleet needs few transactions.
            sleep(COLLECT).await;
        }
    }
}

async fn turn(database: &mut Database, answer: Answer) -> Result<Told, SharedError> {
    let Answer { offers, wants } = answer;
    let mut told = Told::default();
    if !offers.is_empty() {
        let Taken { marks, refused, added } = database.append(offers).await?;
        (told.marks, told.refused, told.sent) = (marks, refused, added);
    }
    if !wants.is_empty() {
        told.spans = database.read(wants).await?;
    }
    told.marks.extend(database.list().await?);
    Ok(told)
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

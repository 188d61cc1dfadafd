//! The statements of a cloud, each one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polyrail_predictor::entry::LogId;
use polyrail_predictor::shared::{ENTRIES_MAX, News, Span, Want};
use polyrail_predictor::wire::Mark;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::{Client, Row, Statement};

use crate::schema;
use crate::{Server, SharedError};

/// A connected database whose schema this program knows.
pub(crate) struct Database {
    client: Client,
    _task: JoinSet<()>,
    list: Statement,
    append: Statement,
    read: Statement,
    /// The numbers of the logs there.
    numbers: BTreeMap<LogId, i32>,
    /// Everything that older transactions have changed was listed.
    horizon: String,
}

impl Database {
    /// Connects, and listens to changes.
    pub(crate) async fn open(
        server: &Server,
        notified: Arc<Notify>,
    ) -> Result<Database, SharedError> {
        let (client, task) = server.connect(notified).await?;
        within(async {
            client.batch_execute(BEGIN).await?;
            schema::matches(schema::version(&client).await?)?;
            Ok(Database {
                list: client.prepare(LIST).await?,
                append: client.prepare(APPEND).await?,
                read: client.prepare(READ).await?,
                client,
                _task: task,
                numbers: BTreeMap::new(),
                horizon: NOTHING.to_owned(),
            })
        })
        .await
    }

    /// The marks of all logs that have changed since the last call, and perhaps of others; the
    /// first time of all logs.
    ///
    /// A transaction that ends later has a number at or above the horizon, so its changes are in a
    /// later list.
    pub(crate) async fn list(&mut self) -> Result<Vec<Mark>, SharedError> {
        let client = &self.client;
        let (horizon, rows) = within(async {
            // In this order, so that the horizon is not later than the list.
            let horizon = client.query_one(HORIZON, &[]).await?;
            Ok((horizon, client.query(&self.list, &[&self.horizon]).await?))
        })
        .await?;
        if horizon.try_get("read_only")? {
            return Err(SharedError::ReadOnly);
        }
        schema::matches(horizon.try_get("version")?)?;
        self.horizon = horizon.try_get("horizon")?;
        let mut marks = Vec::with_capacity(rows.len());
        for row in rows {
            let incarnation: i64 = row.try_get("incarnation")?;
            let incarnation = incarnation.cast_unsigned();
            let log = LogId { writer: row.try_get("writer")?, incarnation };
            self.numbers.insert(log.clone(), row.try_get("number")?);
            marks.push(mark(&row, log)?);
        }
        Ok(marks)
    }

    /// Appends spans in one transaction. The news have the marks of the logs that took entries.
    pub(crate) async fn append(&self, spans: Vec<Span>) -> Result<News, SharedError> {
        let of = |number: fn(&Span) -> u64| -> Vec<i64> {
            spans.iter().map(|span| number(span).cast_signed()).collect()
        };
        let writers: Vec<&str> = spans.iter().map(|span| span.log.writer.as_str()).collect();
        let incarnations = of(|span| span.log.incarnation);
        let (floors, firsts, ends) = (of(|one| one.floor), of(|one| one.first), of(|one| one.end));
        let counts: Vec<i32> = spans.iter().map(|span| span.entries.len() as i32).collect();
        let all = || spans.iter().flat_map(|span| &span.entries);
        let sequences: Vec<i64> = all().map(|(sequence, _)| sequence.cast_signed()).collect();
        let data: Vec<&[u8]> = all().map(|(_, data)| data.as_slice()).collect();
        let rows = within(async {
            Ok(self
                .client
                .query(
                    &self.append,
                    &[&writers, &incarnations, &floors, &firsts, &ends, &counts, &sequences, &data],
                )
                .await?)
        })
        .await?;
        let mut taken = News::default();
        let mut marks = BTreeMap::new();
        for row in rows {
            let (index, added): (i32, i32) = (row.try_get("index")?, row.try_get("added")?);
            taken.sent += u64::from(added.cast_unsigned());
            marks.insert(index, row);
        }
        for (index, span) in (1..).zip(spans) {
            match marks.get(&index) {
                Some(row) => taken.marks.push(mark(row, span.log)?),
                None => taken.refused.push(span.log),
            }
        }
        Ok(taken)
    }

    /// Reads entries, at most [`ENTRIES_MAX`] and a share of each log.
    pub(crate) async fn read(&self, wants: Vec<Want>) -> Result<Vec<Span>, SharedError> {
        let numbered = |want: Want| Some((*self.numbers.get(&want.log)?, want));
        let wants: Vec<(i32, Want)> = wants.into_iter().filter_map(numbered).collect();
        let numbers: Vec<i32> = wants.iter().map(|(number, _)| *number).collect();
        let of = |number: fn(&Want) -> u64| -> Vec<i64> {
            wants.iter().map(|(_, want)| number(want).cast_signed()).collect()
        };
        let (since, recent) = (of(|want| want.since), of(|want| want.recent));
        let each = ENTRIES_MAX / wants.len().max(1);
        let limit = each as i64;
        let rows = within(async {
            Ok(self.client.query(&self.read, &[&numbers, &since, &recent, &limit]).await?)
        })
        .await?;
        let mut spans: BTreeMap<i32, Span> = BTreeMap::new();
        let wanted: BTreeMap<i32, Want> = wants.into_iter().collect();
        for row in rows {
            let number: i32 = row.try_get("number")?;
            let Some(want) = wanted.get(&number) else { continue };
            let span = spans.entry(number).or_insert_with(|| Span {
                log: want.log.clone(),
                first: want.since,
                ..Span::default()
            });
            let reach = mark(&row, LogId::default())?;
            // A database that was restored has less than it stated.
            (span.floor, span.end) = (reach.floor, reach.next.max(span.first));
            if let Some(sequence) = row.try_get::<_, Option<i64>>("sequence")? {
                span.entries.push((sequence.cast_unsigned(), row.try_get("data")?));
            }
        }
        let cut = |mut span: Span| {
            if span.entries.len() >= each
                && let Some((last, _)) = span.entries.last()
            {
                span.end = last + 1;
            }
            span
        };
        Ok(spans.into_values().map(cut).collect())
    }

    /// Begins and drops partitions.
    pub(crate) async fn rotate(&self) -> Result<(), SharedError> {
        within(async { Ok(self.client.batch_execute("SELECT polyrail.rotate()").await?) }).await
    }

    /// The next list has all logs.
    pub(crate) fn forget(&mut self) {
        NOTHING.clone_into(&mut self.horizon);
    }
}

fn mark(row: &Row, log: LogId) -> Result<Mark, SharedError> {
    let (floor, next): (i64, i64) = (row.try_get("log_floor")?, row.try_get("log_next")?);
    Ok(Mark { log, floor: floor.cast_unsigned(), next: next.cast_unsigned() })
}

async fn within<T>(work: impl Future<Output = Result<T, SharedError>>) -> Result<T, SharedError> {
    timeout(ANSWER, work).await.map_err(|_| SharedError::Timeout)?
}

/// The horizon before the first list.
const NOTHING: &str = "0";
/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

/// The server ends a statement before this side gives up, and that of a client that is gone: so
/// nothing there goes on, or holds a lock, for nobody.
const BEGIN: &str = "SET statement_timeout = '50s'; SET lock_timeout = '5s';
    SET client_connection_check_interval = '2s'; LISTEN polyrail";

const HORIZON: &str = "SELECT version, pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
    current_setting('transaction_read_only')::bool AS read_only FROM polyrail.meta";

const LIST: &str = "SELECT number, writer, incarnation, floor AS log_floor, next AS log_next
    FROM polyrail.log WHERE changed >= $1::text::xid8";

const APPEND: &str = "SELECT index, log_floor, log_next, added
    FROM polyrail.append($1, $2, $3, $4, $5, $6, $7, $8)";

/// One statement, so that entries and marks are of the same moment. Without the inner limits the
/// server sorts all later entries of a log: 0.7 s instead of 0.05 s for 4,000 entries of a million.
const READ: &str = "SELECT l.number, l.floor AS log_floor, l.next AS log_next, e.sequence, e.data
    FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS want(log, since, recent)
    JOIN polyrail.log AS l ON l.number = want.log
    LEFT JOIN LATERAL (
        (SELECT sequence, data FROM polyrail.entry AS recent
            WHERE recent.log = want.log AND sequence >= want.recent AND part > 0
            ORDER BY sequence LIMIT $4)
        UNION ALL
        (SELECT sequence, data FROM polyrail.entry AS piece
            WHERE piece.log = want.log AND sequence >= want.since AND part = 0
            ORDER BY sequence LIMIT $4)
        ORDER BY sequence LIMIT $4
    ) AS e ON true
    ORDER BY l.number, e.sequence";

#[cfg(test)]
mod tests {
    use super::*;

    /// The server has a connection with a running statement, and the client gives up.
    #[test]
    fn dropped_database_leaves_no_connection() {
        use crate::scratch::Postgres;

        let Some(postgres) = Postgres::start_or_skip(&["fsync=off"]).unwrap() else { return };
        postgres.prepare(&["a"]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connections = || {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'a'";
            postgres.sql(count).unwrap()
        };
        runtime.block_on(async {
            let database = Database::open(&postgres.server("a"), Arc::default()).await.unwrap();
            let shown = database.client.query_one("SHOW statement_timeout", &[]).await.unwrap();
            assert_eq!(shown.get::<_, &str>(0), "50s");
            let work = database.client.batch_execute("SELECT pg_sleep(45)");
            timeout(Duration::from_millis(500), work).await.unwrap_err();
            drop(database);
            let began = tokio::time::Instant::now();
            while connections() != "0" {
                assert!(began.elapsed() < Duration::from_secs(20), "the statement goes on");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
}

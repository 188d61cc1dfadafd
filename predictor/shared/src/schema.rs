//! The versions of the schema.

use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio_postgres::GenericClient;

use crate::{Server, SharedError};

/// Creates the schema, or brings it to this program's version, as the owner of the database.
/// `retention_days`: how long entries are kept. Returns the version before; 0: there was none.
///
/// # Errors
/// The server refuses, or the schema is of a later version; nothing has changed.
pub fn migrate(server: &Server, retention_days: Option<u32>) -> Result<i32, SharedError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| SharedError::Server(error.to_string()))?;
    runtime.block_on(async {
        let (mut client, _task) = server.connect(Arc::new(Notify::new())).await?;
        let transaction = client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock(1886350451)", &[]).await?;
        let before = version(&transaction).await?;
        if before > VERSION {
            return Err(SharedError::Newer(before, VERSION));
        }
        transaction.batch_execute(ROLE).await?;
        for migration in &MIGRATIONS[usize::try_from(before).unwrap_or(0)..] {
            transaction.batch_execute(migration).await?;
        }
        transaction.execute("UPDATE polyrail.meta SET version = $1", &[&VERSION]).await?;
        if let Some(days) = retention_days.and_then(|days| i32::try_from(days).ok()) {
            let set = "UPDATE polyrail.meta SET retention_days = $1";
            transaction.execute(set, &[&days]).await?;
        }
        transaction.commit().await?;
        Ok(before)
    })
}

/// The version of the schema; 0 without one.
pub(crate) async fn version(client: &impl GenericClient) -> Result<i32, SharedError> {
    let there = "SELECT to_regclass('polyrail.meta') IS NOT NULL";
    if !client.query_one(there, &[]).await?.try_get(0)? {
        return Ok(0);
    }
    let version = client.query_one("SELECT version FROM polyrail.meta", &[]).await?;
    Ok(version.try_get(0)?)
}

/// Whether a version is this program's.
pub(crate) fn matches(version: i32) -> Result<(), SharedError> {
    match version {
        VERSION => Ok(()),
        later if later > VERSION => Err(SharedError::Newer(later, VERSION)),
        earlier => Err(SharedError::Older(earlier, VERSION)),
    }
}

/// The version that this program knows.
pub const VERSION: i32 = MIGRATIONS.len() as i32;
/// From no schema to version 1, from 1 to 2, and so on.
const MIGRATIONS: [&str; 1] = [include_str!("schema.sql")];
/// The role of the clouds. It belongs to the server, so another database may have created it.
const ROLE: &str = "DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'polyrail_cloud') THEN
        CREATE ROLE polyrail_cloud NOLOGIN;
    END IF;
END $$";

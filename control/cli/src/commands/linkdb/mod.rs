//! `polyrail linkdb`: inspects, exports, imports and evaluates a database of handovers.
//!
//! All commands except `status` open the file itself, which only one process can: stop the daemon
//! or copy its file first.
//!
//! Exports never overwrite a database and are readable by their owner only, because they contain
//! the positions of trains.

mod page;
mod picture;
mod plot;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use polyrail_config::EVENTS_MAX;
use polyrail_model::{NodeRole, RouteId, TripId};
use polyrail_predictor::entry::Entry;
use polyrail_predictor::exchange::{self, Coarsening, ExchangeError, Format};
use polyrail_predictor::forecast::evaluate::{EvaluateSettings, evaluate_against};
use polyrail_predictor::forecast::{Rule, SUPPORT};
use polyrail_predictor::store::{Limits, Store, StoreError, StoreStats};
use polyrail_predictor::views::Views;
use serde_json::json;

use super::admin::Connection;
use super::shown;

/// `polyrail linkdb`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show the LinkDB of a running daemon and its forecasts
    Status(Connection),
    /// Show statistics of a database
    Stats {
        #[command(flatten)]
        database: Database,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Export a database
    Export(Export),
    /// Import an export into a database, wholly or not at all
    Import(Import),
    /// Evaluate forecasts by cross-validation: forecast each trip from the others
    Evaluate(Evaluate),
    /// Draw a track with its cells, failures and forecasts, as SVG or as a page with a map
    Plot(Plot),
    /// Remove all entries of a writer, here and in all databases that synchronise with this one
    Purge {
        #[command(flatten)]
        database: Database,
        /// The name in the writer's certificate
        #[arg(long, value_name = "NAME")]
        writer: String,
    },
    /// Return unused space to the file system
    Compact {
        #[command(flatten)]
        database: Database,
        #[command(flatten)]
        bound: Bound,
    },
    /// The database in PostgreSQL that several clouds share
    #[command(subcommand)]
    Shared(shared::Command),
}

/// The database.
#[derive(Args)]
pub(crate) struct Database {
    /// The database file, `linkdb.path` of the configuration
    #[arg(long, value_name = "FILE", default_value = "/var/lib/polyrail/linkdb.redb")]
    db: PathBuf,
}

/// The limit of a database that is written.
#[derive(Args)]
pub(crate) struct Bound {
    /// Keep at most this many entries, as `linkdb.events_max` of the configuration: the writer with
    /// most loses its oldest trips [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(EVENTS_MAX))]
    events_max: Option<u64>,
}

/// `polyrail linkdb export`.
#[derive(Args)]
pub(crate) struct Export {
    #[command(flatten)]
    database: Database,
    /// csv: handovers only; ndjson: everything [default: by the file's extension, else ndjson]
    #[arg(long, value_parser = file_format())]
    format: Option<Format>,
    /// Round positions to this many metres; 0: exact positions, with tracks
    #[arg(long, value_name = "METRES", default_value_t = 100)]
    coarsen: u16,
    /// The file [default: standard output]
    file: Option<PathBuf>,
}

/// `polyrail linkdb import`.
#[derive(Args)]
pub(crate) struct Import {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    bound: Bound,
    /// The format [default: by the file's extension, else ndjson]
    #[arg(long, value_parser = file_format())]
    format: Option<Format>,
    /// The file [default: standard input]
    file: Option<PathBuf>,
}

/// `polyrail linkdb evaluate`.
#[derive(Args)]
pub(crate) struct Evaluate {
    #[command(flatten)]
    database: Database,
    /// The estimate of a failure's position: a quantile of the handover's position that few
    /// failures precede, mean of the failures (POLYCORN), or one deviation before the mean of all
    /// handovers
    #[arg(long, value_parser = rule(), default_value = "quantile")]
    rule: Rule,
    /// Evaluate at most this many trips, the latest
    #[arg(long, value_name = "NUMBER")]
    trips: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `polyrail linkdb plot`.
#[derive(Args)]
pub(crate) struct Plot {
    #[command(flatten)]
    database: Database,
    /// The track, as listed by `stats` [default: the track with the most cells]
    #[arg(long, value_name = "ROUTE")]
    route: Option<RouteId>,
    /// Draw the direction of decreasing positions
    #[arg(long)]
    down: bool,
    /// Write a page for a browser, with a map of the track and the rate map
    #[arg(long)]
    html: bool,
    /// The file [default: standard output]
    file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(command: Command, out: &mut dyn Write) -> Result<bool> {
    match command {
        Command::Status(connection) => {
            let answer = connection.client()?.get::<shown::LinkDbAnswer>("/v1/linkdb")?;
            connection.show(&answer, out, shown::linkdb)
        }
        Command::Stats { database, json } => stats(&database, json, out),
        Command::Export(arguments) => export(&arguments, out),
        Command::Import(arguments) => import(&arguments, out),
        Command::Evaluate(arguments) => judge(&arguments, out),
        Command::Plot(arguments) => plot::run(&arguments, out),
        Command::Purge { database, writer } => purge(&database, &writer, out),
        Command::Compact { database, bound } => compact(&database, &bound, out),
        Command::Shared(command) => shared::run(command, out),
    }
}

impl Database {
    /// Opens an existing database for reading.
    fn open(&self) -> Result<Store> {
        self.open_bounded(&Bound { events_max: None })
    }

    fn open_bounded(&self, bound: &Bound) -> Result<Store> {
        if !self.is_there() {
            bail!("there is no database at {}: name it with --db", self.db.display());
        }
        self.open_or_begin(bound)
    }

    /// Adds the name of the file that an error is about: the database's or that of the export.
    fn named(&self, error: ExchangeError, export: &str) -> anyhow::Error {
        let is_own = matches!(error, ExchangeError::Store(_));
        let name = if is_own { self.db.display().to_string() } else { export.to_owned() };
        anyhow::Error::new(error).context(name)
    }

    /// If a path is inaccessible, it may exist.
    fn is_there(&self) -> bool {
        self.db.try_exists().unwrap_or(true)
    }

    fn open_or_begin(&self, bound: &Bound) -> Result<Store> {
        // The daemon's configuration limits the number of handovers; without it nothing is evicted.
        let events_max = bound.events_max.unwrap_or(u64::MAX);
        let limits = Limits { events_max, ..Limits::default() };
        Store::open(&self.db, limits).map_err(|error| {
            let in_use = matches!(error, StoreError::InUse);
            let error = anyhow::Error::new(error).context(self.db.display().to_string());
            let remedy = "ask the daemon with `polyrail linkdb status`, or stop it first";
            if in_use { error.context(remedy) } else { error }
        })
    }
}

/// The cells, tracks and places of a database, with the rates from the train.
fn views(store: &Store) -> Result<Views> {
    Ok(Views::of_store(store, NodeRole::Gateway)?.0)
}

/// Counts of handovers.
#[derive(Default)]
struct Counts {
    handovers: u64,
    failures: u64,
    trips: BTreeSet<(u32, TripId)>,
}

fn stats(database: &Database, json: bool, out: &mut dyn Write) -> Result<bool> {
    let store = database.open()?;
    let stats = store.stats()?;
    let mut counts = Counts::default();
    store.visit(|writer, _, entry| {
        if let Entry::Handover(handover, _) = entry {
            counts.handovers += 1;
            counts.failures += u64::from(handover.outcome.is_failure());
            counts.trips.insert((writer.0, handover.trip));
        }
        Ok::<_, StoreError>(())
    })?;
    let Counts { handovers, failures, trips } = counts;
    let views = views(&store)?;
    let (sizes, trips) = (views.sizes(), trips.len());
    let mut routes: BTreeMap<RouteId, u64> = BTreeMap::new();
    let mut forecastable = 0;
    for (key, history) in views.cells().iter() {
        *routes.entry(key.route).or_default() += 1;
        forecastable += u64::from(history.trips_that_failed() >= SUPPORT);
    }
    let writers = store.writers();
    if json {
        let routes: Vec<_> = routes
            .iter()
            .map(|(route, cells)| json!({ "route": route.to_string(), "cells": cells }))
            .collect();
        let writers: Vec<_> = writers
            .iter()
            .map(|(entries, name)| json!({ "writer": name, "entries": entries }))
            .collect();
        let all = json!({
            "stats": stats, "views": sizes, "handovers": handovers, "failures": failures,
            "trips": trips, "forecastable_cells": forecastable, "routes": routes,
            "writers": writers,
        });
        writeln!(out, "{all}")?;
        return Ok(true);
    }
    let StoreStats { entries, file_bytes, .. } = stats;
    writeln!(out, "{handovers} handovers, {failures} of them failed, on {trips} trips")?;
    writeln!(out, "{} cells, {forecastable} with failures on two trips or more", sizes.cells)?;
    writeln!(out, "{} tracks, {} places with rates and delays", sizes.tracks, sizes.places)?;
    writeln!(out, "{entries} entries, {file_bytes} bytes")?;
    for (entries, name) in writers {
        let name = if name.is_empty() { "(imported)" } else { &name };
        writeln!(out, "writer {name}: {entries} entries")?;
    }
    for (route, cells) in routes {
        writeln!(out, "route {route}: {cells} cells")?;
    }
    Ok(true)
}

fn purge(database: &Database, writer: &str, out: &mut dyn Write) -> Result<bool> {
    let mut store = database.open()?;
    let (entries, logs) = store.purge(writer)?;
    if logs == 0 {
        let known: Vec<String> = store.writers().into_iter().map(|(_, name)| name).collect();
        bail!("the database has no log of {writer:?}; its writers are: {}", known.join(", "));
    }
    writeln!(out, "{entries} entries of {writer} removed from {logs} logs")?;
    Ok(true)
}

fn export(arguments: &Export, out: &mut dyn Write) -> Result<bool> {
    let store = arguments.database.open()?;
    let format = format_of(arguments.format, arguments.file.as_deref());
    let coarsening = Coarsening(arguments.coarsen);
    let Some(path) = &arguments.file else {
        let exported = exchange::export(&store, format, coarsening, out);
        exported.map_err(|error| arguments.database.named(error, "standard output"))?;
        return Ok(true);
    };
    let mut file = BufWriter::new(create(path)?);
    let exported = exchange::export(&store, format, coarsening, &mut file);
    let name = path.display().to_string();
    let exported = exported.map_err(|error| arguments.database.named(error, &name))?;
    file.flush().context(name)?;
    let exchange::Rows { handovers, tracks, rates, .. } = exported;
    eprintln!("{handovers} handovers, {tracks} pieces of tracks, {rates} entries with rates");
    Ok(true)
}

fn import(arguments: &Import, out: &mut dyn Write) -> Result<bool> {
    let format = format_of(arguments.format, arguments.file.as_deref());
    let (name, from): (String, Box<dyn Read>) = match &arguments.file {
        None => ("standard input".to_owned(), Box::new(io::stdin().lock())),
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| name.clone())?;
            (name, Box::new(BufReader::new(file)))
        }
    };
    let is_new = !arguments.database.is_there();
    let mut store = arguments.database.open_or_begin(&arguments.bound)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let imported = exchange::import(&mut store, format, from, now_ms);
    if imported.is_err() && is_new {
        drop(store);
        let db = &arguments.database.db;
        fs::remove_file(db).with_context(|| db.display().to_string())?;
    }
    let imported = imported.map_err(|error| {
        arguments.database.named(error, &format!("{name}: nothing was imported"))
    })?;
    let exchange::Rows { handovers, known, tracks, rates, skipped } = imported;
    writeln!(
        out,
        "{handovers} handovers are new and {known} entries were known; {tracks} pieces of tracks, \
         {rates} entries with rates; {skipped} lines skipped"
    )?;
    Ok(true)
}

fn compact(database: &Database, bound: &Bound, out: &mut dyn Write) -> Result<bool> {
    let mut store = database.open_bounded(bound)?;
    let before = store.stats()?;
    if bound.events_max.is_some() {
        store.enforce_limits()?;
    }
    store.compact()?;
    let after = store.stats()?;
    writeln!(out, "{} bytes before, {} after", before.file_bytes, after.file_bytes)?;
    let evicted = before.entries.saturating_sub(after.entries);
    if evicted > 0 {
        writeln!(out, "{evicted} entries evicted")?;
    }
    Ok(true)
}

fn judge(arguments: &Evaluate, out: &mut dyn Write) -> Result<bool> {
    let store = arguments.database.open()?;
    let mut records = Vec::new();
    store.visit(|_, _, entry| {
        if let Entry::Handover(handover, _) = entry {
            records.push(handover);
        }
        Ok::<_, StoreError>(())
    })?;
    let mut settings = EvaluateSettings { rule: arguments.rule, ..EvaluateSettings::default() };
    if let Some(trips) = arguments.trips {
        settings.trips_max = trips;
    }
    let report = evaluate_against(&records, &records, &settings);
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => writeln!(out, "{report}")?,
    }
    Ok(true)
}

/// A file for an export.
fn create(path: &Path) -> Result<File> {
    if is_database(path) {
        bail!("{} is a database: name another file to write to, this with --db", path.display());
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.with_context(|| path.display().to_string())
}

fn is_database(path: &Path) -> bool {
    let mut begin = [0; MAGIC.len()];
    // A pipe is not read from.
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok()
        && begin == MAGIC
}

fn format_of(wanted: Option<Format>, file: Option<&Path>) -> Format {
    let ends = |file: &Path| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    let by_name = if file.is_some_and(ends) { Format::Csv } else { Format::Ndjson };
    wanted.unwrap_or(by_name)
}

fn file_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(["csv", "ndjson"])
        .map(|name| if name == "csv" { Format::Csv } else { Format::Ndjson })
}

fn rule() -> impl TypedValueParser<Value = Rule> {
    PossibleValuesParser::new(["quantile", "mean", "naive"]).map(|name| match name.as_str() {
        "mean" => Rule::Mean,
        "naive" => Rule::Naive,
        _ => Rule::Quantile,
    })
}

/// The magic number of redb files (its design document, "Database header").
const MAGIC: [u8; 4] = *b"redb";

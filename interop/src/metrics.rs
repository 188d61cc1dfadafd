//! A client of a daemon's metrics, as Prometheus is one.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;

use crate::client;

/// Where the daemons of a lab answer scrapes, each in its own namespace.
pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// The values of one scrape by metric and labels, as in `polyrail_path_up{carrier="a"}`.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    values: BTreeMap<String, f64>,
    /// How long it took, from the request to the last byte.
    pub took: Duration,
}

impl Scrape {
    /// Scrapes the daemon in a namespace. Scrapes within a second have the same values.
    pub fn of(namespace: &Namespace) -> Result<Scrape> {
        let mut stream = client::connect(namespace, LISTEN)?;
        let begun = Instant::now();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let took = begun.elapsed();
        let (head, body) = text.split_once("\r\n\r\n").context("no body")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{text}");
        ensure!(head.contains("application/openmetrics-text"), "{head}");
        ensure!(body.ends_with("\n# EOF\n"), "the text is truncated");
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        let values = lines.map(|line| value(line).with_context(|| line.to_owned()));
        Ok(Scrape { values: values.collect::<Result<_>>()?, took })
    }

    /// The sum of a metric's series with all these labels, as `carrier="a"`; none if there is none.
    pub fn sum(&self, metric: &str, labels: &[&str]) -> Option<f64> {
        let of = |series: &str| {
            let (name, all) = series.split_once('{').unwrap_or((series, ""));
            name == metric && labels.iter().all(|label| all.contains(label))
        };
        let found = self.values.iter().filter(|(series, _)| of(series));
        found.map(|(_, value)| *value).reduce(|sum, value| sum + value)
    }

    /// The quantile of a histogram's values since an earlier scrape, at worst: the upper bound of
    /// its bucket. None without values or if it is beyond the last bound.
    pub fn quantile_since(&self, earlier: &Scrape, metric: &str, share: f64) -> Option<f64> {
        let name = format!("{metric}_bucket");
        let bound = |series: &str| -> Option<f64> {
            let labels = series.strip_prefix(&name)?.strip_prefix("{le=\"")?;
            labels.strip_suffix("\"}")?.parse().ok()
        };
        let since = |series: &str| {
            let values = [self, earlier].map(|scrape| scrape.values.get(series).copied());
            values[0].unwrap_or(0.0) - values[1].unwrap_or(0.0)
        };
        let buckets = self.values.keys().filter_map(|series| Some((bound(series)?, since(series))));
        let mut buckets: Vec<(f64, f64)> = buckets.collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = buckets.last()?.1;
        let found = buckets.iter().find(|(_, count)| *count >= share * all);
        found.filter(|_| all > 0.0).map(|(bound, _)| *bound).filter(|bound| bound.is_finite())
    }

    /// Whether any series has this label.
    pub fn has_label(&self, label: &str) -> bool {
        self.values.keys().any(|series| series.contains(label))
    }

    /// Scrapes until the values are as wanted.
    pub fn until(
        namespace: &Namespace,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Scrape) -> bool,
    ) -> Result<Scrape> {
        let deadline = Instant::now() + limit;
        loop {
            let scrape = Scrape::of(namespace)?;
            if wanted(&scrape) {
                return Ok(scrape);
            }
            if Instant::now() > deadline {
                bail!("not within {limit:?}: {what}; {:#?}", scrape.values);
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

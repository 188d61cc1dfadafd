//! One phone's run, a row a second.

use std::path::Path;

use anyhow::{Context, Result};

use super::line::Line;

/// One phone's run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The part before `_run` in the file's name: date and phone.
    pub phone: String,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    second: u32,
    loss: f64,
    /// Degrees north and east.
    point: [f64; 2],
    cell: String,
}

/// A handover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunHandover {
    /// When.
    pub second: u32,
    /// How far along the line.
    pub metres: f64,
    /// Packets were lost around it.
    pub failed: bool,
}

impl Run {
    /// All of a folder whose names begin with `wmn` and contain this, by name.
    ///
    /// # Errors
    /// A file cannot be read, or is no such recording.
    pub fn all(folder: &Path, name: &str) -> Result<Vec<Self>> {
        let shown = folder.display();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(|| format!("{shown}"))? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if file.starts_with("wmn") && file.contains(name) && file.ends_with(".csv") {
                files.push(path);
            }
        }
        files.sort();
        let read = |path: &std::path::PathBuf| {
            let text = std::fs::read_to_string(path)?;
            let run = Self::parse(&text).with_context(|| format!("{}", path.display()))?;
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let phone = file.split_once("_run").map_or("", |(phone, _)| phone).to_owned();
            Ok(Self { phone, ..run })
        };
        files.iter().map(read).collect()
    }

    /// Reads the lines of a recording; rows without a position are left out.
    ///
    /// # Errors
    /// A column is missing, or a number is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let heading: Vec<&str> = lines.next().context("no heading")?.split(',').collect();
        let column = |name: &str| {
            let place = heading.iter().position(|one| one.trim() == name);
            place.with_context(|| format!("no column {name}"))
        };
        let names = ["t_s", "loss", "lat", "lon", "cell_id"];
        let mut places = [0; 5];
        for (place, name) in places.iter_mut().zip(names) {
            *place = column(name)?;
        }
        let mut rows = Vec::new();
        for line in lines {
            let cells: Vec<&str> = line.split(',').collect();
            let text = |place: usize| cells.get(places[place]).map_or("", |cell| cell.trim());
            let number = |place: usize| -> Result<Option<f64>> {
                let text = text(place);
                let value: f64 = match text {
                    "" => return Ok(None),
                    text => text.parse().with_context(|| format!("{line:?}: {text:?}"))?,
                };
                Ok(Some(value).filter(|value| value.is_finite()))
            };
            let (Some(second), Some(north), Some(east)) = (number(0)?, number(2)?, number(3)?)
            else {
                continue;
            };
            rows.push(Row {
                second: second as u32,
                loss: number(1)?.unwrap_or_default(),
                point: [north, east],
                cell: text(4).to_owned(),
            });
        }
        Ok(Self { phone: String::new(), rows })
    }

    /// Where it went.
    pub fn points(&self) -> Vec<[f64; 2]> {
        self.rows.iter().map(|row| row.point).collect()
    }

    /// Its handovers; those within [`TOGETHER`] seconds of each other are one.
    pub fn events(&self, line: &Line) -> Vec<RunHandover> {
        let mut events: Vec<RunHandover> = Vec::new();
        let mut last = 0;
        for pair in self.rows.windows(2) {
            let (before, row) = (&pair[0], &pair[1]);
            if before.cell == row.cell {
                continue;
            }
            let around = |one: &&Row| one.second.abs_diff(row.second) <= AROUND;
            let failed = self.rows.iter().filter(around).any(|one| one.loss >= LOSS);
            match events.last_mut() {
                Some(event) if row.second - last <= TOGETHER => event.failed |= failed,
                _ => events.push(RunHandover {
                    second: row.second,
                    metres: line.along(row.point),
                    failed,
                }),
            }
            last = row.second;
        }
        events
    }
}

/// Loss in so many seconds around a handover is its own.
const AROUND: u32 = 2;
const TOGETHER: u32 = 2;
/// The share of packets.
const LOSS: f64 = 0.05;

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run of so many seconds eastwards with handovers and losses at these.
    pub fn recording(seconds: u32, handovers: &[u32], losses: &[u32]) -> String {
        let mut text =
            String::from("# a test\nt_s,rtt_ms,loss,lat,lon,speed_kmh,rsrp_dbm,cell_id\n");
        for second in 0..seconds {
            let cell = handovers.iter().filter(|at| **at <= second).count();
            let loss = if losses.contains(&second) { 0.5 } else { 0.0 };
            let east = 121.0 + f64::from(second) * 0.000_15;
            text += &format!("{second},30,{loss},25.0,{east},54,-90.5,c{cell}\n");
        }
        text
    }

    #[test]
    fn handovers_are_changes_of_the_cell_and_fail_with_loss() {
        let run = Run::parse(&recording(60, &[20, 22, 40], &[24])).unwrap();
        let line = Line::new(&run.points()).unwrap();
        let events = run.events(&line);
        let seen: Vec<(u32, bool)> =
            events.iter().map(|event| (event.second, event.failed)).collect();
        assert_eq!(seen, [(20, true), (40, false)]);
        assert!((events[1].metres - events[0].metres - 20.0 * 15.1).abs() < 5.0, "{events:?}");
    }

    #[test]
    fn invalid_recording_is_rejected() {
        let good = recording(3, &[], &[]);
        for (text, word) in [
            (String::new(), "no heading"),
            ("a,b\n1,2\n".into(), "no column"),
            (good.replace("25.0", "north"), "north"),
        ] {
            let error = format!("{:#}", Run::parse(&text).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        let gaps = good.replace("25.0", "") + "\n\u{0},,,\n";
        assert!(Run::parse(&gaps).is_err(), "no second");
        assert!(Run::parse(&good.replace("25.0", "NaN")).unwrap().rows.is_empty());
    }
}

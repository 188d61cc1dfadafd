//! The report of a summary in Markdown.

use polyrail_emulator::rail::Workload;
use polyrail_emulator::statistics::{mean, quantile};

use super::paired::{Paired, Ratio, finite};
use super::summary::{ContenderFigures, Outcome, SPEEDS, Summary};
use polyrail_emulator::usage::EDGES;

impl Summary {
    /// The report in Markdown.
    pub fn markdown(&self) -> String {
        let mut parts = vec![self.introduction()];
        if !self.sizes.is_empty() {
            parts.push(self.goodputs());
        }
        if !self.sizes.is_empty() && !self.is_endless() {
            parts.push(self.times());
        }
        if self.workload.has_messages() {
            parts.push(self.messages());
        }
        if self.has_call() {
            parts.push(self.calls());
        }
        parts.push(self.prices());
        if self.contenders.iter().any(|one| one.variation.iter().any(Option::is_some)) {
            parts.push(self.variations());
        }
        if self.contenders.iter().any(|one| one.bins.table().iter().any(|bin| bin.1 > 0)) {
            parts.push(self.shares());
        }
        parts.join("\n")
    }

    /// Whether the transfers never end.
    pub(super) fn is_endless(&self) -> bool {
        self.sizes.contains(&u64::MAX)
    }

    /// Whether the workload has a call.
    pub(super) fn has_call(&self) -> bool {
        self.call_bound.iter().flatten().any(|bound| !bound.is_empty())
    }

    fn introduction(&self) -> String {
        let course = self.trips.first();
        let (speed, failures, seconds) =
            course.map_or((0, 0.0, 0), |it| (it.speed_kmh, it.failures, it.seconds));
        let carriers = course.map_or(0, |it| it.carriers);
        let name = name_of(self.workload);
        let mut lines = vec![
            format!("# Rail bench: {name}, {speed} km/h, {failures} % of handovers fail\n"),
            format!("- Trips: {} of {seconds} s over {carriers} carriers", self.trips.len()),
        ];
        let seeds: Vec<String> = self.trips.iter().map(|trip| trip.seed.to_string()).collect();
        let seeds: Vec<String> = seeds.chunks(SEEDS_A_LINE).map(|part| part.join(", ")).collect();
        lines.push(format!("- Seeds: {}", seeds.join(",\n  ")));
        lines.push("- Contenders, and their runs that count:".to_owned());
        lines.extend(self.contenders.iter().map(|one| format!("  - `{}`: {}", one.name, one.runs)));
        lines.push(format!("- Starved runs, which do not count: {}", self.starved.len()));
        lines.extend(self.starved.iter().map(|why| format!("  - {why}")));
        if let Some(half) = self.half_width() {
            lines.push(format!("- Largest half-width of a ratio over all sizes: {half:.3}"));
        }
        lines.push(
            "\nMeans, quantiles and counts are over all runs that count. A ratio is over the trips \
             that\nboth sides have; behind it is the half-width of its 95 % interval, in the \
             column `all`\nalso the interval.\n"
                .to_owned(),
        );
        lines.join("\n")
    }

    fn goodputs(&self) -> String {
        let cells = |one: &ContenderFigures| {
            let mean_of =
                |size: &Vec<Outcome>| mean(&size.iter().map(|it| it.goodput).collect::<Vec<_>>());
            one.transfers.iter().map(|size| number(mean_of(size), 2)).collect()
        };
        let table = self.table(&self.head(&[], &[]), 0, cells);
        let of = |title: &str, skip: usize, other| {
            self.ratios(title, skip, |one| self.paired(&one.goodput, other))
        };
        let mut text = format!("## Goodput, Mbit/s\n\n{table}");
        text += &of("Goodput over that of the split bound", 0, &self.split.goodput);
        text += &of("Goodput over that of the fluid bound", 0, &self.fluid.goodput);
        if !self.is_endless() {
            text += &self.by_speed();
        }
        if let Some(first) = self.contenders.first() {
            text += &of(&format!("Goodput over that of `{}`", first.name), 1, &first.goodput);
        }
        if let Some(single) = self.better_single(|one| &one.goodput, true) {
            text += &of("Goodput over that of the better single carrier", 0, &single);
        }
        if let Some(ratio) = self.with_linkdb().and_then(|paired| paired.ratio(None)) {
            let (trips, ratio) = (ratio.trips, long(Some(ratio)));
            text += &format!(
                "\nWith LinkDB over without, {trips} pairs of a trip and a mode: {ratio}\n"
            );
        }
        text
    }

    /// The ratios of the largest transfers to the fluid bound, by the goodput of that bound.
    fn by_speed(&self) -> String {
        let Some(size) = self.sizes.last() else { return String::new() };
        let cells = |one: &ContenderFigures| {
            let paired = self.paired_by_speed(one);
            (0..=SPEEDS.len()).map(|bin| short(paired.ratio(Some(bin)))).collect()
        };
        let between = SPEEDS.windows(2).map(|edge| format!("{}-{}", edge[0], edge[1]));
        let first = [format!("<{}", SPEEDS[0])].into_iter();
        let last = format!(">{}", SPEEDS[SPEEDS.len() - 1]);
        let head: Vec<String> = first.chain(between).chain([last]).collect();
        let title = format!("The same for {}, by Mbit/s of the fluid bound", size_name(*size));
        format!("\n### {title}\n\n{}", self.table(&head, 0, cells))
    }

    fn times(&self) -> String {
        let mut text = "## Completion time, s\n".to_owned();
        let head = ["mean", "p95", "p95 / bound", "worst", "unfinished"].map(str::to_owned);
        for (place, size) in self.sizes.iter().enumerate() {
            let cells = |one: &ContenderFigures| {
                let times: Vec<f64> = one.transfers[place].iter().map(|it| it.time).collect();
                let unfinished = one.unfinished(place);
                let tail = self.tail(one, place).unwrap_or(f64::NAN);
                let figures = [mean(&times), quantile(&times, 0.95), tail, quantile(&times, 1.0)];
                let figures = figures.iter().map(|figure| number(*figure, 2));
                figures.chain([format!("{unfinished} of {}", times.len())]).collect()
            };
            text += &format!("\n### {}\n\n{}", size_name(*size), self.table(&head, 0, cells));
        }
        let of = |title: &str, skip: usize, other| {
            self.ratios(title, skip, |one| self.paired(&one.time, other))
        };
        text += &of("Time over that of the split bound", 0, &self.split.time);
        text += &of("Time over that of the fluid bound", 0, &self.fluid.time);
        if let Some(first) = self.contenders.first() {
            text += &of(&format!("Time over that of `{}`", first.name), 1, &first.time);
        }
        text
    }

    fn messages(&self) -> String {
        let cells = |one: &ContenderFigures| {
            let of = |other| short(self.paired_messages(&one.round_trip, other).ratio(None));
            let list = &one.round_trips;
            let figures =
                [mean(list), quantile(list, 0.5), quantile(list, 0.99), quantile(list, 1.0)];
            let mut cells: Vec<String> =
                figures.iter().map(|figure| number(figure * 1e3, 0)).collect();
            cells.extend([one.unanswered.to_string(), of(&self.message_bound)]);
            cells.extend(self.contenders.first().map(|first| of(&first.round_trip)));
            cells
        };
        let head = ["mean", "p50", "p99", "worst", "unanswered", "over bound", "over first"];
        let table = self.table(&head.map(str::to_owned), 0, cells);
        format!("## Round trips of messages, ms\n\n{table}")
    }

    fn calls(&self) -> String {
        let single = self.better_single(|one| &one.calls.bad, false);
        let cells = |one: &ContenderFigures| {
            let call = &one.calls;
            let over = single.as_ref().map(|single| self.paired_messages(&call.bad, single));
            let share = |share: f64| number(share * 100.0, 2);
            vec![
                share(call.lost),
                share(call.late),
                number(call.delay_mean, 0),
                number(call.delay_p95, 0),
                format!("{} of {}", call.good, call.windows),
                share(call.copies),
                long(over.and_then(|paired| paired.ratio(None))),
            ]
        };
        let head = [
            "lost, %",
            "late, %",
            "delay, ms",
            "p95",
            "good windows",
            "copies, %",
            "lost or late over the better single carrier's",
        ];
        let mut table = self.table(&head.map(str::to_owned), 0, cells);
        for (name, other, paired) in &self.foreseen {
            let (ratio, trips) = (long(paired.ratio(None)), paired.each().len());
            table += &format!(
                "\n`{name}` with LinkDB over `{other}`, lost or late within 2 s of a failure that \
                 was\nforecast: {ratio}; {trips} trips have such packets\n"
            );
        }
        format!(
            "## Calls\n\nOf all packets, up and down; late: after more than 150 ms. A window has \
             10 s and is good\nif R (ITU-T G.107) is at least 80; those count in which the bound's \
             is.\n\n{table}"
        )
    }

    fn prices(&self) -> String {
        let cells = |one: &ContenderFigures| one.price.map(|price| number(price, 3)).to_vec();
        let table = self.table(&["down", "up"].map(str::to_owned), 0, cells);
        format!("## Bytes offered to the carriers over delivered payload\n\n{table}")
    }

    fn variations(&self) -> String {
        let cells = |one: &ContenderFigures| {
            one.variation.iter().map(|it| number(it.unwrap_or(f64::NAN), 3)).collect()
        };
        let table = self.table(&self.head(&[], &["all"]), 0, cells);
        format!("## Coefficient of variation of the goodput of repeats\n\n{table}")
    }

    fn shares(&self) -> String {
        let cells = |one: &ContenderFigures| {
            let bins = one.bins.table().into_iter();
            bins.map(|(share, count)| format!("{} ({count})", number(share, 2))).collect()
        };
        let between = EDGES.windows(2).map(|edge| format!("{:.2}-{:.2}", edge[0], edge[1]));
        let first = [format!("<{:.2}", EDGES[0])].into_iter();
        let last = format!(">{:.2}", EDGES[EDGES.len() - 1]);
        let head: Vec<String> = first.chain(between).chain([last]).collect();
        let table = self.table(&head, 0, cells);
        format!(
            "## Use of the carriers in the first 1.5 s of downloads\n\n\
             A cell has the mean share of the capacity that a carrier delivered, and the \
             number of\ndownloads and carriers. Columns: the best rate of the carrier in the \
             12 s before, over\nthe capacity.\n\n{table}"
        )
    }

    /// A table of ratios of contenders, without the first ones.
    fn ratios(&self, title: &str, skip: usize, of: impl Fn(&ContenderFigures) -> Paired) -> String {
        let cells = |one: &ContenderFigures| {
            let paired = of(one);
            let all = paired.ratio(None);
            let sizes = (0..self.sizes.len()).map(|size| short(paired.ratio(Some(size))));
            let trips = all.map_or(0, |ratio| ratio.trips).to_string();
            [trips].into_iter().chain(sizes).chain([long(all)]).collect()
        };
        if self.contenders.len() <= skip {
            return String::new();
        }
        format!("\n### {title}\n\n{}", self.table(&self.head(&["trips"], &["all"]), skip, cells))
    }

    /// The names of the sizes, between others.
    fn head(&self, before: &[&str], after: &[&str]) -> Vec<String> {
        let sizes = self.sizes.iter().map(|size| size_name(*size));
        let before = before.iter().map(ToString::to_string);
        before.chain(sizes).chain(after.iter().map(ToString::to_string)).collect()
    }

    /// A table with a line a contender, without the first ones.
    fn table(
        &self,
        head: &[String],
        skip: usize,
        cells: impl Fn(&ContenderFigures) -> Vec<String>,
    ) -> String {
        let rule = "|---:".repeat(head.len());
        let mut text = format!("| contender | {} |\n|---{rule}|\n", head.join(" | "));
        for one in self.contenders.iter().skip(skip) {
            text += &format!("| `{}` | {} |\n", one.name, cells(one).join(" | "));
        }
        text
    }
}

/// The name of a workload, as in the records.
pub fn name_of(workload: Workload) -> &'static str {
    match workload {
        Workload::Downloads => "downloads",
        Workload::Uploads => "uploads",
        Workload::Bulk => "bulk",
        Workload::Messages => "messages",
        Workload::MessagesBulk => "messages-bulk",
        Workload::CallBulk => "call-bulk",
        Workload::QuicDownloads => "quic-downloads",
        Workload::QuicBulk => "quic-bulk",
        Workload::Requests => "requests",
        Workload::Train => "train",
    }
}

/// The name of a size, such as 256 KB.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        u64::MAX => "bulk".to_owned(),
        1_000_000.. => format!("{} MB", bytes as f64 / 1e6),
        _ => format!("{} KB", bytes as f64 / 1e3),
    }
}

fn number(value: f64, digits: usize) -> String {
    finite(value).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn short(ratio: Option<Ratio>) -> String {
    let Some(ratio) = ratio else { return "-".to_owned() };
    let half = ratio.half_width().map(|half| format!(" ±{half:.3}"));
    format!("{:.3}{}", ratio.value, half.unwrap_or_default())
}

fn long(ratio: Option<Ratio>) -> String {
    let between = ratio.filter(|ratio| ratio.trips >= 2).map(|ratio| ratio.between);
    let between = between.map(|[low, high]| format!(" ({low:.3} to {high:.3})"));
    short(ratio) + &between.unwrap_or_default()
}

const SEEDS_A_LINE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::summary::tests::{run, seed};

    #[test]
    fn markdown_has_every_seed_and_every_table() {
        let seeds = 50_000..50_014;
        let mut runs: Vec<_> = seeds.clone().map(|it| run(seed(it), "tls", 4.0)).collect();
        runs.extend(seeds.clone().map(|it| run(seed(it), "quic+linkdb", 6.0)));
        runs.push(run(seed(50_000), "tls", 4.0));
        runs[3].starved = Some("processors were busy".to_owned());
        let text = Summary::of(&runs).unwrap().markdown();
        for it in seeds {
            assert!(text.contains(&it.to_string()), "{it}");
        }
        for part in [
            "# Rail bench: downloads, 300 km/h, 6 % of handovers fail\n",
            "- Trips: 14 of 60 s over 2 carriers\n",
            "  - tls on seed 50003, repeat 0: processors were busy\n",
            "| contender | 256 KB | 1 MB | 4 MB |\n|---|---:|---:|---:|\n| `tls` | 4.00 | 4.00 |",
            "### Goodput over that of `tls`\n\n| contender | trips | 256 KB | 1 MB | 4 MB | all |",
            "| `quic+linkdb` | 13 | 1.500 ±0.000 | 1.500 ±0.000 | 1.500 ±0.000 | 1.500 ±0.000 (",
            "### The same for 4 MB, by Mbit/s of the fluid bound\n\n| contender | <10 | 10-20 |",
            "### 4 MB\n\n| contender | mean | p95 | p95 / bound | worst | unfinished |\n",
            "| `quic+linkdb` | 5.33 | 5.33 | ",
            "| `tls` | 1.250 | 0.050 |\n",
            "| `tls` | 0.000 | 0.000 | 0.000 | 0.000 |\n| `quic+linkdb` | - | - | - | - |",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains("NaN") && !text.contains("Round trips"));
    }
}

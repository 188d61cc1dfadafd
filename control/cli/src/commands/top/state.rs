//! The state of the display: the latest answers, the ones before, and what the operator chose.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use polyrail_admin::{LinkState, PathState};
use polyrail_model::NodeRole;
use polyrail_predictor::worker::CarrierState;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::answers::Answers;
use super::rows::{self, Rates, Row};
use super::tab::{Sort, Tab};

#[derive(Debug)]
pub(super) struct State {
    tab: Tab,
    sort: Sort,
    /// The rows that are scrolled away.
    pub(super) scroll: usize,
    pub(super) latest: Option<Answers>,
    /// The last poll's counters, by the name of their rows.
    rates: HashMap<String, Rates>,
    /// The downlink's rates of each path, the newest last.
    history: HashMap<String, VecDeque<f64>>,
    /// CPU seconds per second.
    pub(super) cpu: Option<f64>,
    /// Loss in the last interval, by path, in parts of one.
    loss: HashMap<String, f64>,
    /// Why the last poll failed.
    pub(super) error: Option<String>,
}

impl State {
    pub(super) fn new(tab: Tab) -> Self {
        Self {
            tab,
            sort: Sort::Rate,
            scroll: 0,
            latest: None,
            rates: HashMap::new(),
            history: HashMap::new(),
            cpu: None,
            loss: HashMap::new(),
            error: None,
        }
    }

    pub(super) fn is_cloud(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.status.role == NodeRole::Cloud)
    }

    pub(super) fn tab(&self) -> Tab {
        self.tab
    }

    /// The order of the list that is shown, if it has several.
    pub(super) fn sort(&self) -> Option<Sort> {
        let sorts = self.tab.sorts();
        sorts.contains(&self.sort).then_some(self.sort).or(sorts.first().copied())
    }

    /// Handles a key; returns false to quit.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if control => return false,
            KeyCode::Tab | KeyCode::Right => self.turn_to(1),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(Tab::ALL.len() - 1),
            KeyCode::Char('s') => self.sort = self.next_sort(),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll += PAGE,
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        true
    }

    fn turn_to(&mut self, step: usize) {
        let at = Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0);
        self.tab = Tab::ALL[(at + step) % Tab::ALL.len()];
        self.scroll = 0;
    }

    fn next_sort(&self) -> Sort {
        let sorts = self.tab.sorts();
        let at = sorts.iter().position(|sort| Some(*sort) == self.sort()).unwrap_or(0);
        sorts.get((at + 1) % sorts.len().max(1)).copied().unwrap_or(self.sort)
    }

    /// The last poll failed; the display keeps the earlier answers.
    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.error = Some(format!("{error:#}"));
    }

    /// Takes the answers of a poll.
    pub(super) fn take(&mut self, answers: Answers) {
        self.error = None;
        if let Some(before) = self.latest.take() {
            let time = answers.at.saturating_duration_since(before.at);
            self.compare(&before, &answers, time);
        }
        self.latest = Some(answers);
    }

    fn compare(&mut self, before: &Answers, now: &Answers, time: Duration) {
        let seconds = time.as_secs_f64();
        let is_same = before.status.pid == now.status.pid
            && before.status.started_at == now.status.started_at;
        if seconds <= 0.0 || !is_same {
            return *self = Self { sort: self.sort, ..Self::new(self.tab) };
        }
        self.cpu = Some((now.status.process.cpu_s - before.status.process.cpu_s) / seconds);
        let counters: HashMap<String, (u64, u64)> = rows::counters(before).collect();
        self.rates = rows::counters(now)
            .filter_map(|(name, (sent, received))| {
                let &(sent_before, received_before) = counters.get(&name)?;
                // A counter that starts again at zero has counted since then.
                let rate = |now: u64, before: u64| {
                    now.checked_sub(before).unwrap_or(now) as f64 * 8.0 / seconds
                };
                let sent = rate(sent, sent_before);
                Some((name, Rates { sent, received: rate(received, received_before) }))
            })
            .collect();
        self.history.retain(|name, _| now.paths.iter().any(|path| path.name == *name));
        self.loss.clear();
        for path in &now.paths {
            let (down, _) = self.path_rates(now, path).unwrap_or_default();
            let history = self.history.entry(path.name.clone()).or_default();
            history.push_back(down);
            if history.len() > HISTORY {
                history.pop_front();
            }
            let old = before.paths.iter().find(|old| old.name == path.name);
            let loss = old.and_then(|old| recent_loss(old.link.as_ref()?, path.link.as_ref()?));
            self.loss.extend(loss.map(|loss| (path.name.clone(), loss)));
        }
    }

    /// A path's rates down to the train and up from it, in bit/s.
    pub(super) fn path_rates(&self, answers: &Answers, path: &PathState) -> Option<(f64, f64)> {
        let rates = self.rates.get(&rows::path_key(path))?;
        Some(rates.down_and_up(answers.status.role))
    }

    /// The share of lost packets of a path in the last interval; without one since its connection
    /// began.
    pub(super) fn loss(&self, path: &PathState) -> Option<f64> {
        let all = || {
            let link = path.link.as_ref().filter(|link| link.sent_packets > 0)?;
            Some(link.lost_packets as f64 / link.sent_packets as f64)
        };
        self.loss.get(&path.name).copied().or_else(all)
    }

    /// The downlink's rates of a path, the newest last.
    pub(super) fn history(&self, path: &PathState) -> impl Iterator<Item = f64> {
        self.history.get(&path.name).into_iter().flatten().copied()
    }

    /// LinkDB's state of a path's carrier.
    pub(super) fn forecast(&self, path: &PathState) -> Option<&CarrierState> {
        let trips = &self.latest.as_ref()?.linkdb.as_ref()?.trips;
        let is_of = |gateway: &Option<String>| gateway.is_none() || *gateway == path.peer;
        let carriers = trips.iter().filter(|trip| is_of(&trip.gateway)).flat_map(|t| &t.carriers);
        carriers.into_iter().find(|carrier| carrier.carrier == path.carrier)
    }

    /// The rows of the list of users or flows, in their order.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some(answers) = &self.latest else { return Vec::new() };
        let mut rows = match self.tab {
            Tab::Users => rows::users(answers, &self.rates),
            Tab::Flows => rows::flows(answers, &self.rates),
            Tab::Events => Vec::new(),
        };
        let weight = |row: &Row| match self.sort() {
            Some(Sort::Rate) | None => row.rate(),
            Some(Sort::Bytes) => row.bytes as f64,
            Some(Sort::Flows) => row.flows as f64,
            Some(Sort::Age) => row.age_s,
        };
        rows.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
        rows
    }

    /// The rates of all paths together, down and up.
    pub(super) fn total_rates(&self) -> Option<(f64, f64)> {
        let answers = self.latest.as_ref()?;
        let rates = answers.paths.iter().filter_map(|path| self.path_rates(answers, path));
        rates.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

fn recent_loss(before: &LinkState, now: &LinkState) -> Option<f64> {
    let sent = now.sent_packets.checked_sub(before.sent_packets).filter(|sent| *sent > 0)?;
    let lost = now.lost_packets.checked_sub(before.lost_packets)?;
    Some((lost as f64 / sent as f64).min(1.0))
}

impl Rates {
    /// Down to the train and up from it: a gateway receives the downlink, a cloud sends it.
    pub(super) fn down_and_up(self, role: NodeRole) -> (f64, f64) {
        match role {
            NodeRole::Gateway => (self.received, self.sent),
            NodeRole::Cloud => (self.sent, self.received),
        }
    }
}

/// Polls of which the rates are remembered.
const HISTORY: usize = 60;
/// Rows of a page of a list.
const PAGE: usize = 10;

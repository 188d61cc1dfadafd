//! Draws the display.

use polyrail_admin::{DrainState, PathPhase, PathState, SessionPhase, SessionState};
use polyrail_predictor::worker::{CarrierState, TripState};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Tabs};
use serde_json::Value;

use super::super::shown::{bytes, duration, fields, word};
use super::answers::Answers;
use super::rows::{self, short_rate};
use super::state::State;
use super::tab::Tab;

/// Draws all of it; works from 80 columns and 24 rows.
///
/// Returns the rows of the list that are scrolled away: no more than there are.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) -> usize {
    let Some(answers) = &state.latest else { return 0 };
    let head = head(state, answers);
    let carriers = u16::try_from(answers.paths.len()).unwrap_or(u16::MAX);
    // At least half of the display is for the list.
    let carriers = carriers.clamp(1, (frame.area().height / 2).saturating_sub(5).max(1)) + 1;
    let rows = [
        Constraint::Length(head.len() as u16),
        Constraint::Length(carriers),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [top, middle, tabs, list, bottom] = Layout::vertical(rows).spacing(0).areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    frame.render_widget(carriers_table(state, answers, middle), middle);
    frame.render_widget(tab_line(state), tabs);
    let scroll = match state.tab() {
        Tab::Events => {
            let (lines, scroll) = events(state, answers, list);
            frame.render_widget(lines, list);
            scroll
        }
        Tab::Users | Tab::Flows => {
            let (table, scroll) = list_table(state, list);
            frame.render_widget(table, list);
            scroll
        }
    };
    frame.render_widget(bottom_line(state), bottom);
    scroll
}

/// The daemon, its session, and the train.
fn head(state: &State, answers: &Answers) -> Vec<Line<'static>> {
    let status = &answers.status;
    let cpu = state.cpu.map_or("-".to_owned(), |cpu| format!("{:.0} %", cpu * 100.0));
    let memory = status.process.memory_resident_bytes.map_or("?".to_owned(), bytes);
    let name = format!("polyrail-{} {}", status.role.as_str(), status.version);
    let mut lines = vec![Line::from(vec![
        Span::styled(name, BOLD),
        Span::raw(format!("  up {}, CPU {cpu}, memory {memory}", duration(status.uptime_s))),
    ])];
    let (down, up) = state
        .total_rates()
        .map_or(("-".into(), "-".into()), |(down, up)| (short_rate(down), short_rate(up)));
    let sessions = &status.snapshot.sessions;
    let flows: u64 = sessions.iter().map(|session| session.flows).sum();
    let peers = match &sessions[..] {
        [] => "no session".to_owned(),
        [one] => session(one),
        many => sessions_of(many),
    };
    let others = others(sessions);
    lines.push(Line::from(format!("{peers}; {flows} flows; down {down}, up {up}{others}")));
    if let Some(DrainState { flows, ends_in_s }) = &status.snapshot.drain {
        let text =
            format!("draining: {flows} flows left, ends in {} at most", duration(*ends_in_s));
        lines.push(Line::styled(text, Style::new().fg(Color::Yellow)));
    }
    let trips = answers.linkdb.iter().flat_map(|linkdb| &linkdb.trips);
    lines.extend(trips.take(TRIPS_MAX).map(|trip| Line::from(train(trip))));
    lines
}

fn session(session: &SessionState) -> String {
    let peer = session.peer.as_deref().unwrap_or("?");
    format!("session with {peer} {} for {}", word(&session.state), duration(session.age_s))
}

/// The number of sessions, and of sessions that are not up.
fn sessions_of(sessions: &[SessionState]) -> String {
    match not_up(sessions).count() {
        0 => format!("{} sessions", sessions.len()),
        others => format!("{} sessions, {others} not up", sessions.len()),
    }
}

/// The names of a cloud's sessions that are not up, at the end of a line that may be cut.
fn others(sessions: &[SessionState]) -> String {
    let names: Vec<&str> = match sessions {
        [_, _, ..] => not_up(sessions).filter_map(|one| one.peer.as_deref()).collect(),
        _ => Vec::new(),
    };
    if names.is_empty() { String::new() } else { format!("; not up: {}", names.join(", ")) }
}

fn not_up(sessions: &[SessionState]) -> impl Iterator<Item = &SessionState> {
    sessions.iter().filter(|session| session.state != SessionPhase::Up)
}

fn train(trip: &TripState) -> String {
    let whose = trip.gateway.as_deref().unwrap_or("train");
    let Some(metres) = trip.metres else { return format!("{whose}: no position") };
    let speed = trip.metres_per_second.unwrap_or(0.0) * 3.6;
    let error = trip.error_metres.unwrap_or(0.0);
    let track = trip.route.as_deref().unwrap_or("?");
    let way = match trip.direction.as_deref() {
        Some("down") => "lower",
        _ => "higher",
    };
    let place = metres / 1_000.0;
    format!(
        "{whose} at km {place:.2} \u{b1} {error:.0} m, {speed:.0} km/h to {way} km, track {track}"
    )
}

fn carriers_table(state: &State, answers: &Answers, area: Rect) -> Table<'static> {
    let has_linkdb = answers.linkdb.is_some();
    let rest =
        usize::from(area.width).saturating_sub(if has_linkdb { WIDTH_LINKDB } else { WIDTH });
    let name = answers.paths.iter().map(|path| path.name.chars().count()).max();
    let name = name.unwrap_or(0).clamp(7, rest.max(7));
    let history = (rest - name.min(rest)).min(HISTORY_MAX);
    let history = if history < HISTORY_MIN { 0 } else { history };
    let mut heads = vec!["CARRIER", "STATE", "MODE", "DOWN", "UP", "RTT", "LOSS"];
    heads.extend(has_linkdb.then_some("FAILS IN"));
    heads.extend((history > 0).then_some("DOWNLINK"));
    let mut widths = vec![name as u16, 12, 4, 11, 11, 7, 6];
    widths.extend(has_linkdb.then_some(10));
    widths.extend((history > 0).then_some(history as u16));
    let (paths, hidden) = shown_paths(answers, area);
    let rows = paths.into_iter().map(|path| {
        let (down, up) = shown_rates(state.path_rates(answers, path));
        let link = path.link.as_ref().filter(|_| path.state == PathPhase::Up);
        let mut cells = vec![
            Cell::from(path.name.clone()),
            Cell::from(Span::styled(word(&path.state), state_style(path))),
            Cell::from(path.mode.map_or("-", |mode| mode.as_str())),
            number(down),
            number(up),
            number(link.map_or("-".into(), |link| format!("{} ms", link.srtt_us.div_ceil(1_000)))),
            number(state.loss(path).map_or("-".into(), percent)),
        ];
        if has_linkdb {
            let (text, style) = forecast(state.forecast(path));
            cells.push(Cell::from(Span::styled(text, style)));
        }
        if history > 0 {
            cells.push(Cell::from(sparkline(&state.history(path).collect::<Vec<_>>(), history)));
        }
        Row::new(cells)
    });
    let more = (hidden > 0).then(|| Row::new([format!("+{hidden} more")]).style(DIM));
    Table::new(rows.chain(more), widths.into_iter().map(Constraint::Length))
        .header(header(&heads))
        .column_spacing(1)
}

/// The paths that fit into the table, and the number of others. If not all fit, paths that are not
/// up come first.
fn shown_paths(answers: &Answers, area: Rect) -> (Vec<&PathState>, usize) {
    let mut paths: Vec<_> = answers.paths.iter().collect();
    let room = usize::from(area.height).saturating_sub(1);
    if paths.len() <= room {
        return (paths, 0);
    }
    paths.sort_by_key(|path| path.state == PathPhase::Up);
    let hidden = paths.split_off(room.saturating_sub(1).min(paths.len()));
    (paths, hidden.len())
}

/// A share with three digits at most.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 99.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// The names of columns, over numbers at their right end.
fn header(heads: &[&'static str]) -> Row<'static> {
    let cell = |head: &&'static str| match NUMBERS.contains(head) {
        true => number((*head).to_owned()),
        false => Cell::from(*head),
    };
    Row::new(heads.iter().map(cell)).style(HEAD)
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn shown_rates(rates: Option<(f64, f64)>) -> (String, String) {
    rates.map_or(("-".into(), "-".into()), |(down, up)| (short_rate(down), short_rate(up)))
}

fn state_style(path: &PathState) -> Style {
    match path.state {
        PathPhase::Up => Style::new().fg(Color::Green),
        PathPhase::Stalled | PathPhase::Capped => Style::new().fg(Color::Yellow),
        PathPhase::Down | PathPhase::NoInterface => Style::new().fg(Color::Red),
        PathPhase::Disabled | PathPhase::Standby => Style::new().add_modifier(Modifier::DIM),
    }
}

/// The predicted failure of a carrier.
fn forecast(carrier: Option<&CarrierState>) -> (String, Style) {
    let none = ("-".to_owned(), Style::new());
    let Some(CarrierState { fails_in_s: Some(seconds), permille: Some(permille), .. }) = carrier
    else {
        return none;
    };
    let percent = f64::from(*permille) / 10.0;
    let near = Style::new().fg(if *seconds < NEAR_S { Color::Red } else { Color::Yellow });
    (format!("{seconds:.0} s {percent:.0} %"), near)
}

/// Values as blocks, the newest last; the highest has the full height.
fn sparkline(values: &[f64], width: usize) -> String {
    let values = &values[values.len().saturating_sub(width)..];
    let most = values.iter().copied().fold(1.0, f64::max);
    let block = |value: &f64| BLOCKS[((value / most) * 7.0).round().clamp(0.0, 7.0) as usize];
    values.iter().map(block).collect()
}

fn tab_line(state: &State) -> Tabs<'static> {
    let titles = Tab::ALL.iter().map(|tab| match tab == &state.tab() {
        // Also readable without colours.
        true => format!("[{}]", tab.title()),
        false => format!(" {} ", tab.title()),
    });
    let at = Tab::ALL.iter().position(|tab| *tab == state.tab());
    Tabs::new(titles).select(at).highlight_style(BOLD).divider("").padding("", "")
}

/// The users or flows, and the rows that are scrolled away.
fn list_table(state: &State, area: Rect) -> (Table<'static>, usize) {
    let (heads, widths): (&[&str], &[u16]) = match state.tab() {
        Tab::Flows => (
            &["FLOW", "DESTINATION", "DOWN", "UP", "BYTES", "AGE", "CARRIERS"],
            &[11, 15, 11, 11, 7, 6, 11],
        ),
        _ if state.is_cloud() => (&USERS_OF_CLOUD, &[16, 15, 11, 11, 7, 5, 7]),
        _ => (&USERS, &[16, 15, 11, 11, 7, 5, 7]),
    };
    let widths = widths.iter().zip(heads).map(|(width, head)| match *head {
        "ADDRESS" | "GATEWAY" | "DESTINATION" | "CARRIERS" => Constraint::Min(*width),
        _ => Constraint::Length(*width),
    });
    let rows = state.rows();
    let shown = usize::from(area.height).saturating_sub(1);
    let scroll = state.scroll.min(rows.len().saturating_sub(shown));
    let rows = rows.into_iter().skip(scroll).take(shown).map(|row| {
        let (down, up) = shown_rates(row.rates);
        let numbers = [down, up, rows::short_bytes(row.bytes)];
        let cells = row.head.into_iter().chain(numbers).chain(row.tail);
        Row::new(cells.zip(heads).map(|(text, head)| match NUMBERS.contains(head) {
            true => number(text),
            false => Cell::from(text),
        }))
    });
    (Table::new(rows, widths).header(header(heads)).column_spacing(1), scroll)
}

/// The newest events, the latest first, and how many are scrolled away.
fn events(state: &State, answers: &Answers, area: Rect) -> (Paragraph<'static>, usize) {
    let shown = usize::from(area.height);
    let scroll = state.scroll.min(answers.events.len().saturating_sub(shown));
    let newest = answers.events.iter().rev().skip(scroll).take(shown);
    let lines: Vec<Line<'static>> = newest.map(|event| Line::from(event_line(event))).collect();
    (Paragraph::new(lines), scroll)
}

/// The time of day, the event, its path and reason, and its other fields.
fn event_line(event: &Value) -> String {
    const FIRST: [&str; 7] = ["path", "peer", "mode", "to", "change", "reason", "message"];
    let text = |key: &str| event[key].as_str().unwrap_or("-");
    let time = text("at").get(11..19).unwrap_or("-");
    let first = FIRST.iter().filter_map(|key| {
        let text = event[*key].as_str()?;
        Some(if *key == "to" { format!("to {text}") } else { text.to_owned() })
    });
    let first: Vec<String> = first.collect();
    let rest = fields(event, &[&["at", "event", "seq"], &FIRST[..]].concat());
    format!("{time}  {:<14} {}{rest}", text("event"), first.join(": "))
}

fn bottom_line(state: &State) -> Line<'static> {
    if let Some(error) = &state.error {
        return Line::styled(error.clone(), Style::new().fg(Color::Red));
    }
    let sort = state.sort().map_or(String::new(), |sort| format!("  s sort by {}", sort.title()));
    let sort = if state.tab() == Tab::Events { "  times are UTC".to_owned() } else { sort };
    Line::styled(format!("q quit  tab next list  \u{2191}\u{2193} scroll{sort}"), DIM)
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Columns of numbers.
const NUMBERS: [&str; 8] = ["DOWN", "UP", "RTT", "LOSS", "BYTES", "AGE", "FLOWS", "REFUSED"];
const USERS: [&str; 7] = ["USER", "ADDRESS", "DOWN", "UP", "BYTES", "FLOWS", "REFUSED"];
const USERS_OF_CLOUD: [&str; 7] = ["USER", "GATEWAY", "DOWN", "UP", "BYTES", "FLOWS", "REFUSED"];
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of the table of carriers without names and history.
const WIDTH: usize = 58;
/// The same with forecasts.
const WIDTH_LINKDB: usize = WIDTH + 11;
/// Columns of the history; with fewer there is none.
const HISTORY_MIN: usize = 10;
/// Columns of the history.
const HISTORY_MAX: usize = 60;
/// A failure within this time is near, in seconds.
const NEAR_S: f64 = 5.0;
/// Trains that are shown.
const TRIPS_MAX: usize = 3;

//! The modems of ModemManager, and the serving cells of the carriers that follow from them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, Rsrp, Serving};
use zbus::zvariant::Value;

use crate::CarrierModem;

/// `org.freedesktop.ModemManager1.Modem`.
pub(super) const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
/// The interface with its cells.
pub(super) const LOCATION: &str = "org.freedesktop.ModemManager1.Modem.Location";
/// The interface with its signal.
pub(super) const SIGNAL: &str = "org.freedesktop.ModemManager1.Modem.Signal";

/// How often an unchanged serving cell is reported.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Delay before a refused setup is requested again.
const REQUEST_EVERY: Duration = Duration::from_secs(30);

/// The maximum number of modems; further ones are ignored.
const MODEMS_MAX: usize = 64;

/// Enumerations of ModemManager (ModemManager-enums.h).
const STATE_ENABLED: i32 = 6;
const STATE_REGISTERED: i32 = 8;
const PORT_NET: u32 = 2;
const LOCATION_3GPP: u32 = 1;

/// How often the signal is measured, in seconds.
const SIGNAL_RATE: u32 = 1;

/// All modems by object path, and the last report of each carrier.
#[derive(Debug, Default)]
pub(super) struct Modems {
    modems: BTreeMap<String, Modem>,
    reported: BTreeMap<String, LastReport>,
}

/// The last report about a carrier's modem.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LastReport {
    cell: Option<CellId>,
    rsrp: Option<Rsrp>,
    at: Instant,
}

/// A request that a modem needs before it reports its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupRequest {
    /// `Location.Setup` with these sources, and with signals.
    Location(u32),
    /// `Signal.Setup` with this rate.
    Signal(u32),
}

#[derive(Debug, Default)]
struct Modem {
    /// Its network interfaces.
    interfaces: Vec<String>,
    /// Device identifier, equipment identifier (IMEI), device.
    names: BTreeMap<&'static str, String>,
    state: i32,
    /// The cell in ModemManager's notation.
    place: Option<String>,
    lte_dbm: Option<f64>,
    nr_dbm: Option<f64>,
    /// The enabled sources; `None` if the modem has no location.
    sources: Option<u32>,
    signals: bool,
    rate: Option<u32>,
    requested_at: Option<Instant>,
}

impl Modems {
    /// Updates properties of one interface of an object.
    pub(super) fn change<'v>(
        &mut self,
        path: &str,
        interface: &str,
        properties: impl Iterator<Item = (&'v str, &'v Value<'v>)>,
    ) {
        if ![MODEM, LOCATION, SIGNAL].contains(&interface) {
            return;
        }
        if self.modems.len() >= MODEMS_MAX && !self.modems.contains_key(path) {
            return;
        }
        let modem = self.modems.entry(path.to_owned()).or_default();
        modem.gains(interface);
        for (name, value) in properties {
            modem.set(interface, name, inner(value));
        }
    }

    /// Updates the state of a modem.
    pub(super) fn state(&mut self, path: &str, state: i32) {
        if let Some(modem) = self.modems.get_mut(path) {
            modem.state = state;
        }
    }

    /// Removes interfaces of an object; without the modem interface the modem is removed.
    pub(super) fn lose<'i>(&mut self, path: &str, interfaces: impl Iterator<Item = &'i str>) {
        for interface in interfaces {
            match (interface, self.modems.get_mut(path)) {
                (MODEM, _) => {
                    self.modems.remove(path);
                }
                (LOCATION, Some(modem)) => (modem.sources, modem.place) = (None, None),
                (SIGNAL, Some(modem)) => {
                    (modem.rate, modem.lte_dbm, modem.nr_dbm) = (None, None, None);
                }
                _ => {}
            }
        }
    }

    /// Drops all state without reporting the loss of cells.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The setup requests due now, by modem.
    pub(super) fn setup_requests(&mut self, now: Instant) -> Vec<(String, SetupRequest)> {
        let modems = self.modems.iter_mut();
        modems
            .flat_map(|(path, modem)| {
                let setup_requests = modem.setup_requests(now);
                setup_requests.into_iter().map(|request| (path.clone(), request))
            })
            .collect()
    }

    /// The reports due now: changed cells, and unchanged cells every [`REPORT_EVERY`].
    pub(super) fn report(&mut self, carriers: &[CarrierModem], now: Instant) -> Vec<Serving> {
        let mut reports = Vec::new();
        for carrier in carriers {
            let name = carrier.name.as_str();
            let before = self.reported.get(name).copied();
            let seen = match self.of(carrier) {
                Some((_, modem)) => modem.seen(),
                // An unplugged modem has no cell.
                None => before.filter(|reported| reported.cell.is_some()).map(|_| (None, None)),
            };
            let Some((cell, rsrp)) = seen else { continue };
            let same = |reported: &LastReport| (reported.cell, reported.rsrp) == (cell, rsrp);
            let fresh =
                |reported: &LastReport| now.saturating_duration_since(reported.at) < REPORT_EVERY;
            if before.is_some_and(|reported| same(&reported) && fresh(&reported)) {
                continue;
            }
            self.reported.insert(name.to_owned(), LastReport { cell, rsrp, at: now });
            reports.push(Serving { at: now, carrier: name.to_owned(), cell, rsrp });
        }
        reports
    }

    /// The modem of each carrier, in words.
    pub(super) fn summary(&self, carriers: &[CarrierModem]) -> String {
        let word = |carrier: &CarrierModem| {
            let path = self.of(carrier).map(|(path, _)| path.rsplit('/').next().unwrap_or(path));
            let modem = path.map_or("no modem".to_owned(), |number| format!("modem {number}"));
            format!("{}: {modem}", carrier.name)
        };
        carriers.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    fn of(&self, carrier: &CarrierModem) -> Option<(&String, &Modem)> {
        self.modems.iter().find(|(path, modem)| modem.serves(path, carrier))
    }
}

impl Modem {
    fn gains(&mut self, interface: &str) {
        match interface {
            LOCATION => _ = self.sources.get_or_insert(0),
            SIGNAL => _ = self.rate.get_or_insert(0),
            _ => {}
        }
    }

    fn set(&mut self, interface: &str, name: &str, value: &Value<'_>) {
        match (interface, name, value) {
            (MODEM, "Ports", Value::Array(ports)) => {
                self.interfaces = ports.iter().filter_map(network_port).collect();
            }
            (MODEM, "State", Value::I32(state)) => self.state = *state,
            (MODEM, _, Value::Str(text)) => {
                if let Some(key) = NAMES.iter().find(|key| **key == name) {
                    self.names.insert(key, text.to_string());
                }
            }
            (LOCATION, "Enabled", Value::U32(sources)) => self.sources = Some(*sources),
            (LOCATION, "SignalsLocation", Value::Bool(signals)) => self.signals = *signals,
            (LOCATION, "Location", Value::Dict(places)) => {
                self.place = places.get(&LOCATION_3GPP).ok().flatten();
            }
            (SIGNAL, "Rate", Value::U32(rate)) => self.rate = Some(*rate),
            (SIGNAL, "Lte", Value::Dict(lte)) => self.lte_dbm = lte.get(&"rsrp").ok().flatten(),
            (SIGNAL, "Nr5g", Value::Dict(nr)) => self.nr_dbm = nr.get(&"rsrp").ok().flatten(),
            _ => {}
        }
    }

    /// The serving cell and its power; the outer `None` means unknown.
    fn seen(&self) -> Option<(Option<CellId>, Option<Rsrp>)> {
        if self.state < STATE_REGISTERED {
            return Some((None, None));
        }
        let cell = self.place.as_deref().and_then(cell)?;
        // With LTE and NR together, the cell is that of LTE, the anchor.
        let rsrp = [self.lte_dbm, self.nr_dbm].into_iter().flatten().find_map(Rsrp::from_dbm);
        Some((Some(cell), rsrp))
    }

    fn serves(&self, path: &str, carrier: &CarrierModem) -> bool {
        match (&carrier.modem, &carrier.interface) {
            (Some(modem), _) => modem == path || self.names.values().any(|name| name == modem),
            (None, Some(interface)) => self.interfaces.contains(interface),
            (None, None) => false,
        }
    }

    fn setup_requests(&mut self, now: Instant) -> Vec<SetupRequest> {
        let soon = |at: Instant| now.saturating_duration_since(at) < REQUEST_EVERY;
        if self.state < STATE_ENABLED || self.requested_at.is_some_and(soon) {
            return Vec::new();
        }
        let reported = |sources: &u32| sources & LOCATION_3GPP != 0 && self.signals;
        let location = self.sources.filter(|sources| !reported(sources));
        let signal = self.rate.filter(|rate| !(1..=SIGNAL_RATE).contains(rate));
        let setup_requests: Vec<_> = location
            .map(|sources| SetupRequest::Location(sources | LOCATION_3GPP))
            .into_iter()
            .chain(signal.map(|_| SetupRequest::Signal(SIGNAL_RATE)))
            .collect();
        if !setup_requests.is_empty() {
            self.requested_at = Some(now);
        }
        setup_requests
    }
}

/// Parses the cell in `MCC,MNC,LAC,CI,TAC`, where the last three are hexadecimal and the last is
/// optional; `None` if there is no cell. A GSM cell is unique only within its area.
fn cell(text: &str) -> Option<CellId> {
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    let (area, cell) = match parts.as_slice() {
        [_, _, area, cell] | [_, _, area, cell, _] => (area, cell),
        _ => return None,
    };
    let area = u64::from_str_radix(area, 16).ok()?;
    let cell = u64::from_str_radix(cell, 16).ok()?;
    // 3GPP TS 23.003: 36 bits (NCI) or 28 (ECI); modems report no cell as all bits set.
    if cell == 0 || cell >= NCI_MAX || cell == u64::from(u32::MAX) {
        return None;
    }
    let gsm = cell <= 0xffff && !matches!(area, 0 | 0xfffe | 0xffff) && area <= 0xffff;
    Some(CellId(if gsm { area << 16 | cell } else { cell }))
}

/// The name of a port, if the port is a network interface.
fn network_port(port: &Value<'_>) -> Option<String> {
    let Value::Structure(port) = inner(port) else { return None };
    match port.fields() {
        [Value::Str(name), Value::U32(PORT_NET)] => Some(name.to_string()),
        _ => None,
    }
}

/// Unwraps variants.
fn inner<'a, 'v>(value: &'a Value<'v>) -> &'a Value<'v> {
    let mut value = value;
    while let Value::Value(within) = value {
        value = within;
    }
    value
}

/// Properties that name a modem.
const NAMES: &[&str] = &["DeviceIdentifier", "EquipmentIdentifier", "Device"];
/// The largest cell identity plus one; all bits set means no cell.
const NCI_MAX: u64 = (1 << 36) - 1;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const PATH: &str = "/org/freedesktop/ModemManager1/Modem/0";

    fn carrier(name: &str, interface: Option<&str>, modem: Option<&str>) -> CarrierModem {
        CarrierModem {
            name: name.to_owned(),
            interface: interface.map(str::to_owned),
            modem: modem.map(str::to_owned),
        }
    }

    /// One modem behind `wwan0`, registered, in a cell.
    fn modems() -> Modems {
        let mut modems = Modems::default();
        let ports = Value::new(vec![("cdc-wdm0", 6_u32), ("wwan0", PORT_NET)]);
        let (imei, state) = (Value::new("353270040012345"), Value::new(STATE_REGISTERED));
        let properties = [("Ports", &ports), ("EquipmentIdentifier", &imei), ("State", &state)];
        modems.change(PATH, MODEM, properties.into_iter());
        place(&mut modems, "262,01,FFFE,1A2B3C4,5678");
        modems
    }

    fn place(modems: &mut Modems, text: &str) {
        let place = Value::new(HashMap::from([(LOCATION_3GPP, Value::new(text))]));
        modems.change(PATH, LOCATION, [("Location", &place)].into_iter());
    }

    fn power(modems: &mut Modems, technology: &str, dbm: f64) {
        let value =
            Value::new(HashMap::from([("rsrp", Value::new(dbm)), ("snr", Value::new(9.0))]));
        modems.change(PATH, SIGNAL, [(technology, &value)].into_iter());
    }

    #[test]
    fn cell_identities_are_parsed() {
        let rows = [
            ("310,410,FFFE,3C4B0B3,4E20", Some(0x3c4_b0b3)),
            ("262,01,0,800000001,1", Some(0x8_0000_0001)),
            ("310,26,85CD,D30156", Some(0xd3_0156)),
            ("310,26,85CD,D301", Some(0x85cd_d301)),
            ("310,26,FFFE,D301,1", Some(0xd301)),
            ("262,01,FFFE,0,0", None),
            ("262,01,FFFE,FFFFFFFF,FFFF", None),
            ("262,01,FFFE,FFFFFFFFF,FFFF", None),
            ("262,01,FFFE,1000000000,FFFF", None),
            ("262,01,FFFE", None),
            ("262,01,FFFE,xyz,1", None),
            ("", None),
            ("a,b,c,d,e,f", None),
        ];
        for (text, expected) in rows {
            assert_eq!(cell(text), expected.map(CellId), "{text}");
        }
    }

    #[test]
    fn cell_is_reported_on_change_and_periodically() {
        let carriers = [carrier("a", Some("wwan0"), None), carrier("b", Some("wwan1"), None)];
        let (mut modems, start) = (modems(), Instant::now());
        let reported = |modems: &mut Modems, ms: u64| {
            let reports = modems.report(&carriers, start + Duration::from_millis(ms));
            assert!(reports.iter().all(|one| one.carrier == "a"));
            let words =
                reports.into_iter().map(|one| (one.cell.map(|c| c.0), one.rsrp.map(Rsrp::dbm)));
            words.collect::<Vec<_>>()
        };
        let cell = Some(0x1a2_b3c4);
        assert_eq!(reported(&mut modems, 0), [(cell, None)]);
        assert_eq!(reported(&mut modems, 900), []);
        power(&mut modems, "Nr5g", -80.0);
        assert_eq!(reported(&mut modems, 910), [(cell, Some(-80.0))]);
        power(&mut modems, "Lte", -95.5);
        assert_eq!(reported(&mut modems, 920), [(cell, Some(-95.5))]);
        power(&mut modems, "Lte", -f64::MAX);
        assert_eq!(reported(&mut modems, 930), [(cell, Some(-80.0))], "unknown is no measurement");
        assert_eq!(reported(&mut modems, 1930), [(cell, Some(-80.0))]);
        modems.state(PATH, 7);
        assert_eq!(reported(&mut modems, 1940), [(None, None)], "searching");
        modems.state(PATH, 11);
        place(&mut modems, "262,01,FFFE,0,0");
        assert_eq!(reported(&mut modems, 3000), [], "registered in an unknown cell");
        place(&mut modems, "262,01,FFFE,1A2B3C5,1");
        assert_eq!(reported(&mut modems, 3010)[0].0, Some(0x1a2_b3c5));
        modems.lose(PATH, [SIGNAL, LOCATION, MODEM].into_iter());
        assert_eq!(reported(&mut modems, 3020), [(None, None)], "unplugged");
        assert_eq!(reported(&mut modems, 9000), []);
    }

    #[test]
    fn lost_modem_manager_is_not_a_lost_cell() {
        let carriers = [carrier("a", Some("wwan0"), None)];
        let mut modems = modems();
        assert_eq!(modems.report(&carriers, Instant::now()).len(), 1);
        modems.forget();
        assert_eq!(modems.report(&carriers, Instant::now()), []);
    }

    #[test]
    fn carrier_is_matched_to_its_modem() {
        let rows = [
            (carrier("a", Some("wwan0"), None), true),
            (carrier("a", Some("cdc-wdm0"), None), false),
            (carrier("a", Some("wwan1"), Some("353270040012345")), true),
            (carrier("a", None, Some(PATH)), true),
            (carrier("a", Some("wwan0"), Some("353270040012346")), false),
            (carrier("a", None, None), false),
        ];
        for (carrier, found) in rows {
            assert_eq!(
                modems().report(std::slice::from_ref(&carrier), Instant::now()).len() == 1,
                found
            );
            let word = if found { "a: modem 0" } else { "a: no modem" };
            assert_eq!(modems().summary(&[carrier]), word);
        }
    }

    #[test]
    fn missing_setup_is_requested() {
        let (mut modems, now) = (modems(), Instant::now());
        power(&mut modems, "Lte", -90.0);
        let setup_requests = [SetupRequest::Location(1), SetupRequest::Signal(1)]
            .map(|request| (PATH.to_owned(), request));
        assert_eq!(modems.setup_requests(now), setup_requests);
        assert_eq!(modems.setup_requests(now + REQUEST_EVERY / 2), [], "not repeated at once");
        // Other programs have their own sources and rates.
        let (five, thirty, yes) = (Value::new(4_u32), Value::new(30_u32), Value::new(true));
        let set = [("Enabled", &five), ("SignalsLocation", &yes)];
        modems.change(PATH, LOCATION, set.into_iter());
        modems.change(PATH, SIGNAL, [("Rate", &thirty)].into_iter());
        let later = now + REQUEST_EVERY;
        assert_eq!(modems.setup_requests(later)[0].1, SetupRequest::Location(5));
        let (all, one) = (Value::new(5_u32), Value::new(1_u32));
        modems.change(PATH, LOCATION, [("Enabled", &all)].into_iter());
        modems.change(PATH, SIGNAL, [("Rate", &one)].into_iter());
        assert_eq!(modems.setup_requests(later + REQUEST_EVERY), []);
        let mut idle = Modems::default();
        idle.change(PATH, LOCATION, std::iter::empty());
        idle.state(PATH, STATE_ENABLED - 1);
        assert_eq!(idle.setup_requests(now), [], "it is not enabled");
        idle.state(PATH, STATE_ENABLED);
        assert_eq!(idle.setup_requests(now).len(), 1);
    }

    #[test]
    fn values_of_unexpected_types_are_ignored() {
        let mut modems = modems();
        let odd = Value::new(7_u8);
        for interface in [MODEM, LOCATION, SIGNAL, "org.freedesktop.ModemManager1.Sim"] {
            for name in ["Ports", "State", "Location", "Enabled", "Rate", "Lte", "Device", "x"] {
                modems.change(PATH, interface, [(name, &odd)].into_iter());
            }
        }
        let carriers = [carrier("a", Some("wwan0"), None)];
        assert_eq!(modems.report(&carriers, Instant::now())[0].cell, Some(CellId(0x1a2_b3c4)));
        for number in 0..2 * MODEMS_MAX {
            modems.change(&format!("/{number}"), MODEM, std::iter::empty());
        }
        assert_eq!(modems.modems.len(), MODEMS_MAX);
    }
}

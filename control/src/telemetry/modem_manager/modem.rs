//! What ModemManager says of its modems, and what that means for the carriers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, Rsrp, Serving};
use zbus::zvariant::Value;

use crate::telemetry::CarrierModem;

/// `org.freedesktop.ModemManager1.Modem`.
pub(super) const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
/// Its cells.
pub(super) const LOCATION: &str = "org.freedesktop.ModemManager1.Modem.Location";
/// Its signal.
pub(super) const SIGNAL: &str = "org.freedesktop.ModemManager1.Modem.Signal";

/// How often a serving cell is told that stays the same.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long is waited before something is wished for again that was refused.
const WISHED_EVERY: Duration = Duration::from_secs(30);

/// The most modems that are kept; further ones are not seen.
const MODEMS_MAX: usize = 64;

/// Enumerations of ModemManager (ModemManager-enums.h).
const STATE_ENABLED: i32 = 6;
const STATE_REGISTERED: i32 = 8;
const PORT_NET: u32 = 2;
const LOCATION_3GPP: u32 = 1;

/// How often the signal is measured, in seconds.
const SIGNAL_RATE: u32 = 1;

/// All modems by their object paths, and what the carriers were told of them.
#[derive(Debug, Default)]
pub(super) struct Modems {
    modems: BTreeMap<String, Modem>,
    told: BTreeMap<String, Told>,
}

/// What a carrier's modem was last said to be in.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    cell: Option<CellId>,
    rsrp: Option<Rsrp>,
    at: Instant,
}

/// A request that a modem needs before it tells its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// `Location.Setup` with these sources, and with signals.
    Location(u32),
    /// `Signal.Setup` with this rate.
    Signal(u32),
}

#[derive(Debug, Default)]
struct Modem {
    /// Interfaces of the kernel that lead to it.
    interfaces: Vec<String>,
    /// Device identifier, equipment identifier (IMEI), device.
    names: BTreeMap<&'static str, String>,
    state: i32,
    /// The cell as ModemManager writes it.
    place: Option<String>,
    lte_dbm: Option<f64>,
    nr_dbm: Option<f64>,
    /// What is set up, where the modem can do it at all.
    sources: Option<u32>,
    signals: bool,
    rate: Option<u32>,
    wished: Option<Instant>,
}

impl Modems {
    /// Takes in properties of one interface of an object.
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

    /// A modem is in another state.
    pub(super) fn state(&mut self, path: &str, state: i32) {
        if let Some(modem) = self.modems.get_mut(path) {
            modem.state = state;
        }
    }

    /// An object lost interfaces; without that of a modem it is none.
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

    /// Nothing is known any more, which is no loss of a cell.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// What is to be requested now, of which modem.
    pub(super) fn wishes(&mut self, now: Instant) -> Vec<(String, Wish)> {
        let modems = self.modems.iter_mut();
        modems
            .flat_map(|(path, modem)| {
                let wishes = modem.wishes(now);
                wishes.into_iter().map(|wish| (path.clone(), wish))
            })
            .collect()
    }

    /// What there is to tell: cells that changed, and every now and then those that did not.
    pub(super) fn tell(&mut self, carriers: &[CarrierModem], now: Instant) -> Vec<Serving> {
        let mut news = Vec::new();
        for carrier in carriers {
            let name = carrier.name.as_str();
            let before = self.told.get(name).copied();
            let seen = match self.of(carrier) {
                Some((_, modem)) => modem.seen(),
                // A modem that was pulled out is in no cell.
                None => before.filter(|told| told.cell.is_some()).map(|_| (None, None)),
            };
            let Some((cell, rsrp)) = seen else { continue };
            let same = |told: &Told| (told.cell, told.rsrp) == (cell, rsrp);
            let fresh = |told: &Told| now.saturating_duration_since(told.at) < TOLD_EVERY;
            if before.is_some_and(|told| same(&told) && fresh(&told)) {
                continue;
            }
            self.told.insert(name.to_owned(), Told { cell, rsrp, at: now });
            news.push(Serving { at: now, carrier: name.to_owned(), cell, rsrp });
        }
        news
    }

    /// Which modem serves which carrier, in words.
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
                let cells = |(key, _): &(&Value<'_>, _)| matches!(key, Value::U32(LOCATION_3GPP));
                let place = places.iter().find(cells).map(|(_, place)| inner(place));
                self.place = match place {
                    Some(Value::Str(text)) => Some(text.to_string()),
                    _ => None,
                };
            }
            (SIGNAL, "Rate", Value::U32(rate)) => self.rate = Some(*rate),
            (SIGNAL, "Lte", Value::Dict(_)) => self.lte_dbm = power(value),
            (SIGNAL, "Nr5g", Value::Dict(_)) => self.nr_dbm = power(value),
            _ => {}
        }
    }

    /// The serving cell and its power; the outer `None`: it cannot be told.
    fn seen(&self) -> Option<(Option<CellId>, Option<Rsrp>)> {
        if self.state < STATE_REGISTERED {
            return Some((None, None));
        }
        let cell = self.place.as_deref().and_then(cell)?;
        // In a network of both kinds the cell is LTE's, which is the anchor.
        let rsrp = [self.lte_dbm, self.nr_dbm].into_iter().flatten().find_map(Rsrp::from_dbm);
        Some((Some(cell), rsrp))
    }

    fn serves(&self, path: &str, carrier: &CarrierModem) -> bool {
        match (&carrier.modem, &carrier.interface) {
            (Some(modem), _) => {
                modem.as_str() == path || self.names.values().any(|name| name == modem.as_str())
            }
            (None, Some(interface)) => {
                self.interfaces.iter().any(|name| name == interface.as_str())
            }
            (None, None) => false,
        }
    }

    fn wishes(&mut self, now: Instant) -> Vec<Wish> {
        let soon = |at: Instant| now.saturating_duration_since(at) < WISHED_EVERY;
        if self.state < STATE_ENABLED || self.wished.is_some_and(soon) {
            return Vec::new();
        }
        let told = |sources: &u32| sources & LOCATION_3GPP != 0 && self.signals;
        let location = self.sources.filter(|sources| !told(sources));
        let signal = self.rate.filter(|rate| !(1..=SIGNAL_RATE).contains(rate));
        let wishes: Vec<_> = location
            .map(|sources| Wish::Location(sources | LOCATION_3GPP))
            .into_iter()
            .chain(signal.map(|_| Wish::Signal(SIGNAL_RATE)))
            .collect();
        if !wishes.is_empty() {
            self.wished = Some(now);
        }
        wishes
    }
}

/// The cell in `MCC,MNC,LAC,CI,TAC`, where the last three are hexadecimal and the last may be
/// missing; `None` where it says that there is none. A GSM cell is unique within its area alone.
fn cell(text: &str) -> Option<CellId> {
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    let (area, cell) = match parts.as_slice() {
        [_, _, area, cell] | [_, _, area, cell, _] => (area, cell),
        _ => return None,
    };
    let area = u64::from_str_radix(area, 16).ok()?;
    let cell = u64::from_str_radix(cell, 16).ok()?;
    // 3GPP TS 23.003: 36 bits (NCI), 28 (ECI); all bits set is what modems say for none.
    if cell == 0 || cell >= NCI_MAX || cell == u64::from(u32::MAX) {
        return None;
    }
    let gsm = cell <= 0xffff && !matches!(area, 0 | 0xfffe | 0xffff) && area <= 0xffff;
    Some(CellId(if gsm { area << 16 | cell } else { cell }))
}

/// The name of a port that is a network interface.
fn network_port(port: &Value<'_>) -> Option<String> {
    let Value::Structure(port) = inner(port) else { return None };
    match port.fields() {
        [Value::Str(name), Value::U32(PORT_NET)] => Some(name.to_string()),
        _ => None,
    }
}

/// `rsrp` among a technology's measurements.
fn power(value: &Value<'_>) -> Option<f64> {
    let Value::Dict(measurements) = value else { return None };
    let is_rsrp = |(key, _): &(&Value<'_>, _)| matches!(key, Value::Str(key) if key == "rsrp");
    match measurements.iter().find(is_rsrp).map(|(_, value)| inner(value)) {
        Some(Value::F64(dbm)) => Some(*dbm),
        _ => None,
    }
}

/// The value within variants.
fn inner<'a, 'v>(value: &'a Value<'v>) -> &'a Value<'v> {
    let mut value = value;
    while let Value::Value(within) = value {
        value = within;
    }
    value
}

/// Properties that name a modem.
const NAMES: &[&str] = &["DeviceIdentifier", "EquipmentIdentifier", "Device"];
/// One beyond the largest cell identity: all its bits set is none.
const NCI_MAX: u64 = (1 << 36) - 1;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const PATH: &str = "/org/freedesktop/ModemManager1/Modem/0";

    fn carrier(name: &str, interface: Option<&str>, modem: Option<&str>) -> CarrierModem {
        CarrierModem {
            name: name.parse().unwrap(),
            interface: interface.map(|interface| interface.parse().unwrap()),
            modem: modem.map(|modem| modem.parse().unwrap()),
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
    fn cells_are_read() {
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
    fn a_cell_is_told_when_it_changes_and_every_now_and_then() {
        let carriers = [carrier("a", Some("wwan0"), None), carrier("b", Some("wwan1"), None)];
        let (mut modems, start) = (modems(), Instant::now());
        let told = |modems: &mut Modems, ms: u64| {
            let news = modems.tell(&carriers, start + Duration::from_millis(ms));
            assert!(news.iter().all(|one| one.carrier == "a"));
            let words =
                news.into_iter().map(|one| (one.cell.map(|c| c.0), one.rsrp.map(Rsrp::dbm)));
            words.collect::<Vec<_>>()
        };
        let cell = Some(0x1a2_b3c4);
        assert_eq!(told(&mut modems, 0), [(cell, None)]);
        assert_eq!(told(&mut modems, 900), []);
        power(&mut modems, "Nr5g", -80.0);
        assert_eq!(told(&mut modems, 910), [(cell, Some(-80.0))]);
        power(&mut modems, "Lte", -95.5);
        assert_eq!(told(&mut modems, 920), [(cell, Some(-95.5))]);
        power(&mut modems, "Lte", -f64::MAX);
        assert_eq!(told(&mut modems, 930), [(cell, Some(-80.0))], "unknown is no measurement");
        assert_eq!(told(&mut modems, 1930), [(cell, Some(-80.0))]);
        modems.state(PATH, 7);
        assert_eq!(told(&mut modems, 1940), [(None, None)], "searching");
        modems.state(PATH, 11);
        place(&mut modems, "262,01,FFFE,0,0");
        assert_eq!(told(&mut modems, 3000), [], "registered, and nobody knows where");
        place(&mut modems, "262,01,FFFE,1A2B3C5,1");
        assert_eq!(told(&mut modems, 3010)[0].0, Some(0x1a2_b3c5));
        modems.lose(PATH, [SIGNAL, LOCATION, MODEM].into_iter());
        assert_eq!(told(&mut modems, 3020), [(None, None)], "it was pulled out");
        assert_eq!(told(&mut modems, 9000), []);
    }

    #[test]
    fn a_manager_that_is_gone_is_no_lost_cell() {
        let carriers = [carrier("a", Some("wwan0"), None)];
        let mut modems = modems();
        assert_eq!(modems.tell(&carriers, Instant::now()).len(), 1);
        modems.forget();
        assert_eq!(modems.tell(&carriers, Instant::now()), []);
    }

    #[test]
    fn a_carrier_finds_its_modem() {
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
                modems().tell(std::slice::from_ref(&carrier), Instant::now()).len() == 1,
                found
            );
            let word = if found { "a: modem 0" } else { "a: no modem" };
            assert_eq!(modems().summary(&[carrier]), word);
        }
    }

    #[test]
    fn what_is_not_set_up_is_wished_for() {
        let (mut modems, now) = (modems(), Instant::now());
        power(&mut modems, "Lte", -90.0);
        let wishes = [Wish::Location(1), Wish::Signal(1)].map(|wish| (PATH.to_owned(), wish));
        assert_eq!(modems.wishes(now), wishes);
        assert_eq!(modems.wishes(now + WISHED_EVERY / 2), [], "not again at once");
        // Others have their own sources and their own rates.
        let (five, thirty, yes) = (Value::new(4_u32), Value::new(30_u32), Value::new(true));
        let set = [("Enabled", &five), ("SignalsLocation", &yes)];
        modems.change(PATH, LOCATION, set.into_iter());
        modems.change(PATH, SIGNAL, [("Rate", &thirty)].into_iter());
        let later = now + WISHED_EVERY;
        assert_eq!(modems.wishes(later)[0].1, Wish::Location(5));
        let (all, one) = (Value::new(5_u32), Value::new(1_u32));
        modems.change(PATH, LOCATION, [("Enabled", &all)].into_iter());
        modems.change(PATH, SIGNAL, [("Rate", &one)].into_iter());
        assert_eq!(modems.wishes(later + WISHED_EVERY), []);
        let mut idle = Modems::default();
        idle.change(PATH, LOCATION, std::iter::empty());
        idle.state(PATH, STATE_ENABLED - 1);
        assert_eq!(idle.wishes(now), [], "it is not enabled");
        idle.state(PATH, STATE_ENABLED);
        assert_eq!(idle.wishes(now).len(), 1);
    }

    #[test]
    fn what_is_of_another_kind_is_ignored() {
        let mut modems = modems();
        let odd = Value::new(7_u8);
        for interface in [MODEM, LOCATION, SIGNAL, "org.freedesktop.ModemManager1.Sim"] {
            for name in ["Ports", "State", "Location", "Enabled", "Rate", "Lte", "Device", "x"] {
                modems.change(PATH, interface, [(name, &odd)].into_iter());
            }
        }
        let carriers = [carrier("a", Some("wwan0"), None)];
        assert_eq!(modems.tell(&carriers, Instant::now())[0].cell, Some(CellId(0x1a2_b3c4)));
        for number in 0..2 * MODEMS_MAX {
            modems.change(&format!("/{number}"), MODEM, std::iter::empty());
        }
        assert_eq!(modems.modems.len(), MODEMS_MAX);
    }
}

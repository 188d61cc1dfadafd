//! The operator's wishes for one carrier: those of the configuration, the changes at run time, and
//! the consequences of a reached data cap.

use polyrail_admin::{CapLevel, CapState, DataUsage, PathChange};
use polyrail_config::{Cap, CapAction, CarrierConfig, CarrierRole, RateLimit};
use polyrail_model::{Bitrate, PathRank, PathWish};

/// Changes at run time, which override the configuration, and the used data.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    enabled: Option<bool>,
    role: Option<CarrierRole>,
    cap: Option<Option<Cap>>,
    rate_limit: Option<Option<RateLimit>>,
    usage: Option<DataUsage>,
    /// The level that the operator knows.
    told: CapLevel,
}

impl Wishes {
    /// Takes an operator's change.
    pub(super) fn change(&mut self, change: &PathChange) {
        self.enabled = change.enabled.or(self.enabled);
        self.role = change.role.or(self.role);
        self.cap = change.cap.or(self.cap);
        self.rate_limit = change.rate_limit.or(self.rate_limit);
    }

    /// A key that a reload changes overrides the operator's change of it.
    pub(super) fn reload(&mut self, old: &CarrierConfig, new: &CarrierConfig) {
        self.enabled = self.enabled.filter(|_| old.enabled == new.enabled);
        self.role = self.role.filter(|_| old.role == new.role);
        self.cap = self.cap.filter(|_| old.cap == new.cap);
        self.rate_limit = self.rate_limit.filter(|_| old.rate_limit == new.rate_limit);
        if old.interface != new.interface {
            self.usage = None;
        }
    }

    /// Takes the data that the carrier has used.
    pub(super) fn take(&mut self, usage: DataUsage) {
        self.usage = Some(usage);
    }

    /// The level of the cap, if the operator does not know it yet.
    pub(super) fn news(&mut self, config: &CarrierConfig) -> Option<(CapLevel, CapLevel)> {
        let (told, level) = (self.told, self.level(config));
        self.told = level;
        (told != level).then_some((told, level))
    }

    pub(super) fn role(&self, config: &CarrierConfig) -> CarrierRole {
        self.role.unwrap_or(config.role)
    }

    /// Its cap; one at run time needs an interface, as in a configuration.
    pub(super) fn cap(&self, config: &CarrierConfig) -> Option<Cap> {
        self.cap.unwrap_or(config.cap)
    }

    /// Whether the operator wants it used.
    pub(super) fn is_enabled(&self, config: &CarrierConfig) -> bool {
        self.enabled.unwrap_or(config.enabled) && self.role(config) != CarrierRole::Never
    }

    /// Whether it may have connections.
    pub(super) fn is_usable(&self, config: &CarrierConfig) -> bool {
        self.is_enabled(config) && !self.is_capped(config)
    }

    /// Whether it has reached a cap that stops it.
    pub(super) fn is_capped(&self, config: &CarrierConfig) -> bool {
        self.reached(config) == Some(CapAction::Stop)
    }

    /// Whether few connections are tried: they cost money, or are seldom needed.
    pub(super) fn is_frugal(&self, config: &CarrierConfig) -> bool {
        let PathWish { rank, metered, .. } = self.path_wish(config);
        metered || rank == PathRank::Backup
    }

    /// How the session uses its paths.
    pub(super) fn path_wish(&self, config: &CarrierConfig) -> PathWish {
        let rank = match self.role(config) {
            CarrierRole::Primary => PathRank::Primary,
            CarrierRole::Secondary => PathRank::Secondary,
            CarrierRole::Backup | CarrierRole::Never => PathRank::Backup,
        };
        let is_backup = self.reached(config) == Some(CapAction::Backup);
        PathWish {
            rank: if is_backup { PathRank::Backup } else { rank },
            metered: config.metered || self.cap(config).is_some(),
            rate_limit: self.rate_limit(config),
        }
    }

    /// The rate limit in force.
    pub(super) fn rate_limit(&self, config: &CarrierConfig) -> Option<Bitrate> {
        let wanted = self.rate_limit.unwrap_or(config.rate_limit);
        let of_cap = match self.reached(config) {
            Some(CapAction::Limit(limit)) => Some(limit),
            _ => None,
        };
        wanted.into_iter().chain(of_cap).min().map(RateLimit::rate)
    }

    /// What the reached cap demands.
    fn reached(&self, config: &CarrierConfig) -> Option<CapAction> {
        let cap = self.cap(config)?;
        (self.level(config) == CapLevel::Reached).then_some(cap.at)
    }

    fn level(&self, config: &CarrierConfig) -> CapLevel {
        let (Some(cap), Some(usage)) = (self.cap(config), &self.usage) else {
            return CapLevel::Low;
        };
        let (used, cap) = (u128::from(usage.used_bytes) * 100, u128::from(cap.bytes.bytes().0));
        match used / cap.max(1) {
            100.. => CapLevel::Reached,
            95.. => CapLevel::NearlyReached,
            75.. => CapLevel::High,
            _ => CapLevel::Low,
        }
    }

    /// The cap as operators see it.
    pub(super) fn cap_state(&self, config: &CarrierConfig) -> Option<CapState> {
        let Cap { bytes, reset_day, at } = self.cap(config)?;
        let usage = self.usage.as_ref();
        Some(CapState {
            limit_bytes: bytes.bytes().0,
            reset_day,
            at,
            level: self.level(config),
            used_bytes: usage.map(|usage| usage.used_bytes),
            period_from: usage.map(|usage| usage.since.to_string()),
            period_until: usage.map(|usage| usage.until.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use polyrail_config::GatewayConfig;
    use time::macros::date;

    use super::*;

    fn config(keys: &str) -> CarrierConfig {
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"a\"\nauthority = \"a\"\n[cloud]\nname = \"c\"\n\
             addresses = [\"192.0.2.1:1\"]\n[socks5]\nlisten = [\"127.0.0.1:1\"]\n\
             [[carrier]]\nname = \"b\"\n[[carrier]]\nname = \"a\"\ninterface = \"wwan0\"\n{keys}"
        );
        GatewayConfig::parse(&text, "g.toml".as_ref()).unwrap().carriers[1].clone()
    }

    fn used(used_bytes: u64) -> DataUsage {
        let (since, until) = (date!(2026 - 11 - 01), date!(2026 - 12 - 01));
        DataUsage { carrier: "a".to_owned(), used_bytes, since, until }
    }

    #[test]
    fn levels_are_told_once_and_the_cap_has_its_consequence() {
        for (at, usable, rank, limit) in [
            ("stop", false, PathRank::Primary, None),
            ("backup", true, PathRank::Backup, None),
            ("limit:1 Mbit/s", true, PathRank::Primary, Some(1.0)),
        ] {
            let config = config(&format!("cap = {{ bytes = \"1 MB\", at = \"{at}\" }}"));
            let mut wishes = Wishes::default();
            let steps = [
                (749_999, None),
                (750_000, Some(CapLevel::High)),
                (949_999, None),
                (950_000, Some(CapLevel::NearlyReached)),
                (999_999, None),
            ];
            for (bytes, level) in steps {
                wishes.take(used(bytes));
                assert_eq!(wishes.news(&config).map(|(_, level)| level), level, "{bytes}");
                let wish = PathWish { metered: true, ..PathWish::default() };
                assert_eq!((wishes.is_usable(&config), wishes.path_wish(&config)), (true, wish));
            }
            wishes.take(used(1_000_000));
            assert_eq!(wishes.news(&config).map(|news| news.1), Some(CapLevel::Reached));
            assert_eq!(wishes.news(&config), None);
            assert_eq!(wishes.is_usable(&config), usable, "{at}");
            let wish = wishes.path_wish(&config);
            let rate_limit = limit.map(Bitrate::from_mbps);
            assert_eq!((wish.rank, wish.rate_limit), (rank, rate_limit), "{at}");
            // A new period.
            wishes.take(used(0));
            assert_eq!(wishes.news(&config), Some((CapLevel::Reached, CapLevel::Low)));
            assert!(wishes.is_usable(&config) && wishes.rate_limit(&config).is_none());
        }
    }

    #[test]
    fn change_holds_until_a_reload_changes_the_same_key() {
        let old = config("role = \"secondary\"\nrate_limit = \"20 Mbit/s\"");
        let mut wishes = Wishes::default();
        let wanted = |wishes: &Wishes, config: &CarrierConfig| {
            (wishes.role(config), wishes.rate_limit(config).map(Bitrate::as_mbps))
        };
        assert_eq!(wanted(&wishes, &old), (CarrierRole::Secondary, Some(20.0)));
        let change = PathChange {
            role: Some(CarrierRole::Backup),
            rate_limit: Some(None),
            ..PathChange::default()
        };
        wishes.change(&change);
        wishes.change(&PathChange { enabled: Some(true), ..PathChange::default() });
        assert_eq!(wanted(&wishes, &old), (CarrierRole::Backup, None));
        let new = config("role = \"primary\"\nrate_limit = \"20 Mbit/s\"");
        wishes.reload(&old, &new);
        assert_eq!(wanted(&wishes, &new), (CarrierRole::Primary, None));
        let newest = config("rate_limit = \"5 Mbit/s\"\nrole = \"never\"");
        wishes.reload(&new, &newest);
        assert_eq!(wanted(&wishes, &newest), (CarrierRole::Never, Some(5.0)));
        assert!(!wishes.is_enabled(&newest), "never, although it was enabled");
    }

    #[test]
    fn lower_limit_counts_at_the_cap() {
        for (own, wanted) in [("20 Mbit/s", 1.0), ("64 kbit/s", 0.064)] {
            let config = config(&format!(
                "rate_limit = \"{own}\"\ncap = {{ bytes = \"1 MB\", at = \"limit:1 Mbit/s\" }}"
            ));
            let mut wishes = Wishes::default();
            wishes.take(used(2_000_000));
            assert_eq!(wishes.rate_limit(&config), Some(Bitrate::from_mbps(wanted)));
        }
    }
}

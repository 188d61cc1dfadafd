//! Groups of users: whose weight a user has.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use polyrail_config::GroupConfig;
use polyrail_model::{UserId, Weight};

/// The groups of a configuration. A user belongs to the first group that names its link address,
/// else to the first one that names its latest source address.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<(String, Weight)>,
    /// The places of groups, by users that their link addresses identify.
    users: HashMap<UserId, usize>,
    /// The same by source, in order of the groups.
    sources: Vec<(IpNet, usize)>,
}

impl Groups {
    /// Builds the groups; `user_of` names the user with a link address.
    pub(super) fn new(groups: &[GroupConfig], user_of: impl Fn(&[u8]) -> UserId) -> Self {
        let mut all = Self::default();
        for (place, group) in groups.iter().enumerate() {
            all.groups.push((group.name.to_string(), Weight::new(group.weight)));
            for link in &group.link_addresses {
                all.users.entry(user_of(&link.octets())).or_insert(place);
            }
            all.sources.extend(group.sources.iter().map(|source| (*source, place)));
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The weight of a user with this latest address.
    pub(super) fn weight(&self, user: UserId, address: Option<IpAddr>) -> Weight {
        self.find(user, address).map_or(Weight::default(), |(_, weight)| *weight)
    }

    /// The name of its group, if it has one.
    pub(super) fn name(&self, user: UserId, address: Option<IpAddr>) -> Option<&str> {
        self.find(user, address).map(|(name, _)| name.as_str())
    }

    fn find(&self, user: UserId, address: Option<IpAddr>) -> Option<&(String, Weight)> {
        let by_source = || {
            let address = address?;
            self.sources.iter().find(|(net, _)| net.contains(&address)).map(|(_, place)| *place)
        };
        self.users.get(&user).copied().or_else(by_source).and_then(|place| self.groups.get(place))
    }
}

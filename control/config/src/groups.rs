//! `[[group]]`: users with a share of their own.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::Broken;
use crate::names::{GroupName, LinkAddress};
use crate::users::UserKey;
use crate::values::{Prefix, count, list};

/// `[[group]]`: a group of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// The operator's name for it.
    pub name: GroupName,
    /// The share of each of its users, next to 1 of users without a group; 1 to 16.
    #[serde(deserialize_with = "count::<_, _, 1, 16>")]
    pub weight: u8,
    /// Source addresses of its users; up to 256.
    #[serde(default, deserialize_with = "list::<_, Prefix, _, 0, 256>")]
    pub sources: Vec<IpNet>,
    /// Link addresses of its users; up to 1,024.
    #[serde(default, deserialize_with = "list::<_, LinkAddress, _, 0, 1024>")]
    pub link_addresses: Vec<LinkAddress>,
}

/// The most groups of one gateway.
pub const GROUPS_MAX: usize = 16;

/// Checks the groups of a gateway.
pub(crate) fn rules(groups: &[GroupConfig], users: UserKey) -> Result<(), Broken> {
    if groups.len() > GROUPS_MAX {
        let reason = format!("{} entries; at most {GROUPS_MAX} are allowed", groups.len());
        return Err(Broken::new("group", reason));
    }
    for (index, group) in groups.iter().enumerate() {
        let key = format!("group[{}]", index + 1);
        if groups[..index].iter().any(|other| other.name == group.name) {
            let reason = format!("another group is already named \"{}\"", group.name);
            return Err(Broken::new(format!("{key}.name"), reason));
        }
        if group.sources.is_empty() && group.link_addresses.is_empty() {
            let reason = "a group needs sources or link_addresses";
            return Err(Broken::new(key, reason));
        }
        if !group.link_addresses.is_empty() && users == UserKey::Address {
            let reason = "users.key is \"address\", so no link address is known";
            return Err(Broken::new(format!("{key}.link_addresses"), reason));
        }
    }
    Ok(())
}

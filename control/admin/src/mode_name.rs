//! Writes the model's tunnel modes, which know no serde, as their names.

use polyrail_model::TunnelMode;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// For `#[serde(with)]` on a [`TunnelMode`].
pub(super) mod needed {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        mode: &TunnelMode,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        mode.as_str().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<TunnelMode, D::Error> {
        named(&String::deserialize(deserializer)?)
    }
}

/// For `#[serde(with)]` on an `Option<TunnelMode>`.
pub(super) mod optional {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        mode: &Option<TunnelMode>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        mode.map(TunnelMode::as_str).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TunnelMode>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.as_deref().map(named).transpose()
    }
}

fn named<E: de::Error>(text: &str) -> Result<TunnelMode, E> {
    text.parse().map_err(|_| E::custom(format_args!("{text:?} is not a tunnel mode")))
}

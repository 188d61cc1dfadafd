//! `PUT /v1/scheduler`: the scheduler of this node's direction of sending.

use polyrail_config::ChainSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The body of `PUT /v1/scheduler` and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// The name of a chain, or the list of its schedulerlets, as `scheduler.chain` in the
    /// configuration. The answer has the list.
    #[serde(rename = "scheduler", serialize_with = "write", deserialize_with = "read")]
    pub chain: ChainSpec,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the name of a chain or a list of schedulerlets")]
enum Written {
    Name(String),
    List(Vec<String>),
}

fn write<S: Serializer>(chain: &ChainSpec, serializer: S) -> Result<S::Ok, S::Error> {
    chain.names().serialize(serializer)
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ChainSpec, D::Error> {
    let chain = match Written::deserialize(deserializer)? {
        Written::Name(name) => ChainSpec::named(&name),
        Written::List(names) => ChainSpec::of(&names),
    };
    chain.map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_is_a_name_or_a_list() {
        let read = |text: &str| serde_json::from_str::<Scheduler>(text);
        let named = read(r#"{"scheduler": "redundant"}"#).unwrap();
        assert_eq!(named.chain, ChainSpec::named("redundant").unwrap());
        assert_eq!(read(r#"{"scheduler": ["min_rtt", "redundancy"]}"#).unwrap(), named);
        assert_eq!(read(&serde_json::to_string(&named).unwrap()).unwrap(), named);
        for (bad, reason) in [
            (r#"{}"#, "missing field `scheduler`"),
            (r#"{"chain": "redundant"}"#, "unknown field `chain`"),
            (r#"{"scheduler": 1}"#, "expected the name of a chain"),
            (r#"{"scheduler": "fastest"}"#, "no chain is named"),
            (r#"{"scheduler": ["min_rtt", "x"]}"#, "no schedulerlet is named"),
        ] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains(reason), "{bad}: {error}");
        }
    }
}

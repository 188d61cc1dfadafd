//! Translates telemetry between the configuration, the sources and the admin interface.

use polyrail_admin::SourceState;
use polyrail_config::{CarrierConfig, GatewayConfig};
use polyrail_telemetry::{CarrierModem, MessageBus, SourceStates, TelemetrySettings};

/// The telemetry sources of a configuration.
pub(crate) fn settings(config: &GatewayConfig) -> TelemetrySettings {
    let carrier = |carrier: &CarrierConfig| CarrierModem {
        name: carrier.name.to_string(),
        interface: carrier.interface.as_ref().map(ToString::to_string),
        modem: carrier.modem.as_ref().map(ToString::to_string),
    };
    let telemetry = &config.telemetry;
    let bus = telemetry.modem_manager_bus.as_ref();
    let bus = bus.map_or(MessageBus::System, |bus| MessageBus::Address(bus.to_string()));
    TelemetrySettings {
        gpsd: telemetry.gpsd,
        modem_manager: telemetry.modem_manager.then_some(bus),
        replay: telemetry.replay.clone(),
        carriers: config.carriers.iter().map(carrier).collect(),
    }
}

/// The states of the sources for `GET /v1/linkdb`.
pub(crate) fn states(states: &SourceStates) -> Vec<SourceState> {
    let states = states.snapshot().into_iter();
    states
        .map(|state| SourceState {
            source: state.source.as_str().to_owned(),
            target: state.target,
            state: state.state.as_str().to_owned(),
            since: state.since.into(),
            heard_at: state.heard_at.map(Into::into),
            lines: state.lines,
            observations: state.observations,
            errors: state.errors,
            message: state.message,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn settings_follow_the_configuration() {
        let text = "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n[cloud]\n\
                    name = \"c\"\naddresses = [\"192.0.2.1:1\"]\n[[carrier]]\nname = \"a\"\n\
                    interface = \"wwan0\"\nmodem = \"353270040012345\"\n[socks5]\n\
                    listen = [\"127.0.0.1:1\"]\n[telemetry]\ngpsd = \"127.0.0.1:1\"\n\
                    modem_manager = true\nmodem_manager_bus = \"unix:path=/b\"\n\
                    replay = \"/r\"\n";
        let config = GatewayConfig::parse(text, Path::new("/none/gateway.toml")).unwrap();
        let carrier = CarrierModem {
            name: "a".to_owned(),
            interface: Some("wwan0".to_owned()),
            modem: Some("353270040012345".to_owned()),
        };
        let expected = TelemetrySettings {
            gpsd: Some("127.0.0.1:1".parse().unwrap()),
            modem_manager: Some(MessageBus::Address("unix:path=/b".to_owned())),
            replay: Some("/r".into()),
            carriers: vec![carrier],
        };
        assert_eq!(settings(&config), expected);
    }
}

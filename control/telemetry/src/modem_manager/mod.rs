//! Serving cells from ModemManager, over D-Bus (ModemManager's D-Bus reference).
//!
//! Modems appear and disappear, ModemManager restarts, the bus may be missing: each outage is
//! logged once and retried. This source never starts ModemManager. A modem reports its cell only after
//! `Location.Setup` and its power only after `Signal.Setup`; other programs' settings are kept.

mod modem;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use zbus::fdo::{ManagedObjects, NameOwnerChanged};
use zbus::message::Type;
use zbus::names::UniqueName;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, OwnedValue};
use zbus::{Connection, MatchRule, Message, MessageStream};

use self::modem::{LOCATION, MODEM, Modems, REPORT_EVERY, SIGNAL, SetupRequest};
use polyrail_model::Observation;

use super::source::{Backoff, Source};
use super::state::SourcePhase;
use super::{CarrierModem, MessageBus};

/// ModemManager's name on the bus and the path above its modems.
const NAME: &str = "org.freedesktop.ModemManager1";
const ROOT: &str = "/org/freedesktop/ModemManager1";

/// Timeouts of a connection to the bus and of a request to ModemManager, which is slow.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// The maximum number of queued messages; beyond, the bus holds messages back.
const QUEUE_MAX: usize = 1024;

/// Delay before the modems are listed again after a failure.
const LIST_AGAIN: Duration = Duration::from_secs(5);

/// Reports serving cells until the task is dropped.
pub(super) async fn run(bus: MessageBus, carriers: Vec<CarrierModem>, source: Source) {
    let mut backoff = Backoff::default();
    loop {
        let reason = match tokio::time::timeout(CONNECT_WAIT, connect(&bus)).await {
            Ok(Ok(connection)) => match Watch::new(connection, &carriers, &source).await {
                Ok(mut watch) => watch.follow(&mut backoff).await,
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the bus does not answer".to_owned(),
        };
        backoff.pause(&source, reason).await;
    }
}

async fn connect(bus: &MessageBus) -> zbus::Result<Connection> {
    let builder = match bus {
        MessageBus::System => zbus::connection::Builder::system()?,
        MessageBus::Address(address) => zbus::connection::Builder::address(address.as_str())?,
    };
    builder.method_timeout(ANSWER_WAIT).max_queued(QUEUE_MAX).build().await
}

/// One connection to a bus.
struct Watch<'a> {
    connection: Connection,
    carriers: &'a [CarrierModem],
    source: &'a Source,
    /// Signals of ModemManager.
    signals: MessageStream,
    /// Changes of the owner of ModemManager's name.
    owners: MessageStream,
    owner: Option<UniqueName<'static>>,
    modems: Modems,
    requests: JoinSet<Completed>,
    /// A refusal was logged already.
    refused: bool,
}

/// A completed request.
enum Completed {
    /// The list of all modems of this owner.
    Listed(UniqueName<'static>, zbus::Result<Message>),
    /// The answer to a setup request.
    SetUp(String, SetupRequest, zbus::Result<Message>),
    /// The delay before listing again is over.
    ListAgain,
}

impl<'a> Watch<'a> {
    /// Subscribes before it asks for the owner, so that no change is missed.
    async fn new(
        connection: Connection,
        carriers: &'a [CarrierModem],
        source: &'a Source,
    ) -> zbus::Result<Self> {
        let rule =
            MatchRule::builder().msg_type(Type::Signal).sender(NAME)?.path_namespace(ROOT)?;
        let queued = Some(QUEUE_MAX);
        let signals = MessageStream::for_match_rule(rule.build(), &connection, queued).await?;
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender("org.freedesktop.DBus")?
            .member("NameOwnerChanged")?
            .arg(0, NAME)?;
        let owners = MessageStream::for_match_rule(rule.build(), &connection, queued).await?;
        let mut watch = Self {
            connection,
            carriers,
            source,
            signals,
            owners,
            owner: None,
            modems: Modems::default(),
            requests: JoinSet::new(),
            refused: false,
        };
        let bus = zbus::fdo::DBusProxy::new(&watch.connection).await?;
        let owner = bus.get_name_owner(NAME.try_into()?).await.ok();
        watch.set_owner(owner.map(|owner| owner.into_inner()));
        Ok(watch)
    }

    /// Runs until the connection to the bus is lost; returns the reason.
    async fn follow(&mut self, backoff: &mut Backoff) -> String {
        let mut tick = tokio::time::interval(REPORT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = self.owners.next() => match message {
                    Some(Ok(message)) => self.owner_changed(&message),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the bus closed the connection".to_owned(),
                },
                message = self.signals.next() => match message {
                    Some(Ok(message)) => self.on_signal(&message),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the bus closed the connection".to_owned(),
                },
                Some(Ok(done)) = self.requests.join_next() => self.on_completed(done),
                _ = tick.tick() => {}
            }
            if self.owner.is_some() {
                backoff.reset(self.source);
            }
            self.set_up_modems();
            self.report();
        }
    }

    fn owner_changed(&mut self, message: &Message) {
        let Some(change) = NameOwnerChanged::from_message(message.clone()) else { return };
        let Ok(change) = change.args() else { return };
        self.set_owner(change.new_owner().as_ref().map(|owner| owner.to_owned()));
    }

    /// Handles another owner or none: everything known is dropped.
    fn set_owner(&mut self, owner: Option<UniqueName<'static>>) {
        self.modems.forget();
        self.requests.abort_all();
        self.owner = owner;
        if self.owner.is_some() {
            tracing::info!("ModemManager found");
            self.list();
        } else {
            tracing::warn!("ModemManager is not on the bus; no modem telemetry");
            let message = "ModemManager is not on the bus".to_owned();
            self.source.monitor.set_phase(SourcePhase::Waiting, Some(message));
        }
    }

    fn list(&mut self) {
        let Some(owner) = self.owner.clone() else { return };
        let connection = self.connection.clone();
        self.requests.spawn(async move {
            let manager = Some("org.freedesktop.DBus.ObjectManager");
            let listed =
                connection.call_method(Some(owner.as_str()), ROOT, manager, LIST, &()).await;
            Completed::Listed(owner, listed)
        });
    }

    fn on_completed(&mut self, done: Completed) {
        match done {
            Completed::Listed(owner, _) if Some(&owner) != self.owner.as_ref() => {}
            Completed::Listed(_, listed) => match listed.and_then(|m| m.body().deserialize()) {
                Ok(objects) => self.listed(&objects),
                Err(error) => {
                    self.failed(&error);
                    self.requests.spawn(async {
                        tokio::time::sleep(LIST_AGAIN).await;
                        Completed::ListAgain
                    });
                }
            },
            Completed::ListAgain => self.list(),
            Completed::SetUp(path, request, Ok(_)) => {
                tracing::debug!(path, ?request, "modem set up")
            }
            Completed::SetUp(path, request, Err(error)) => {
                self.source.monitor.count_error();
                if std::mem::replace(&mut self.refused, true) {
                    tracing::debug!(path, ?request, %error, "cannot set up modem");
                } else {
                    let remedy = "may this user control ModemManager (polkit)?";
                    tracing::warn!(path, ?request, %error, remedy, "cannot set up modem");
                }
            }
        }
    }

    fn listed(&mut self, objects: &ManagedObjects) {
        self.source.monitor.count_line();
        for (path, interfaces) in objects {
            for (interface, properties) in interfaces {
                self.modems.change(path.as_str(), interface.as_str(), each(properties));
            }
        }
        self.log_modems();
    }

    /// Handles a signal. Any process may send one, so the sender is checked.
    fn on_signal(&mut self, message: &Message) {
        let header = message.header();
        if header.sender() != self.owner.as_ref() {
            return;
        }
        let (Some(path), Some(interface), Some(member)) =
            (header.path(), header.interface(), header.member())
        else {
            return;
        };
        self.source.monitor.count_line();
        let heard = match (interface.as_str(), member.as_str()) {
            ("org.freedesktop.DBus.ObjectManager", "InterfacesAdded") => self.added(message),
            ("org.freedesktop.DBus.ObjectManager", "InterfacesRemoved") => self.removed(message),
            ("org.freedesktop.DBus.Properties", "PropertiesChanged") => {
                self.changed(path.as_str(), message)
            }
            (MODEM, "StateChanged") => {
                let body = message.body();
                let states = body.deserialize::<(i32, i32, u32)>();
                states.map(|(_, state, _)| self.modems.state(path.as_str(), state))
            }
            _ => Ok(()),
        };
        if let Err(error) = heard {
            self.failed(&error);
        }
    }

    fn added(&mut self, message: &Message) -> zbus::Result<()> {
        type Interfaces = HashMap<String, HashMap<String, OwnedValue>>;
        let body = message.body();
        let (path, interfaces) = body.deserialize::<(OwnedObjectPath, Interfaces)>()?;
        for (interface, properties) in &interfaces {
            self.modems.change(path.as_str(), interface, each(properties));
        }
        self.log_modems();
        Ok(())
    }

    fn removed(&mut self, message: &Message) -> zbus::Result<()> {
        let body = message.body();
        let (path, interfaces) = body.deserialize::<(ObjectPath<'_>, Vec<String>)>()?;
        self.modems.lose(path.as_str(), interfaces.iter().map(String::as_str));
        self.log_modems();
        Ok(())
    }

    fn changed(&mut self, path: &str, message: &Message) -> zbus::Result<()> {
        let body = message.body();
        let (interface, properties, _) =
            body.deserialize::<(String, HashMap<String, OwnedValue>, Vec<String>)>()?;
        self.modems.change(path, &interface, each(&properties));
        Ok(())
    }

    /// Logs which carrier has which modem.
    fn log_modems(&self) {
        let summary = self.modems.summary(self.carriers);
        tracing::debug!(summary, "modems");
        self.source.connected(Some(summary));
    }

    /// Sends the setup requests that modems need; their answers arrive later.
    fn set_up_modems(&mut self) {
        let Some(owner) = self.owner.clone() else { return };
        for (path, request) in self.modems.setup_requests(now()) {
            let (connection, owner) = (self.connection.clone(), owner.clone());
            self.requests.spawn(async move {
                let to = Some(owner.as_str());
                let at = path.as_str();
                let answer = match request {
                    SetupRequest::Location(sources) => {
                        let body = (sources, true);
                        connection.call_method(to, at, Some(LOCATION), SET_UP, &body).await
                    }
                    SetupRequest::Signal(rate) => {
                        connection.call_method(to, at, Some(SIGNAL), SET_UP, &(rate,)).await
                    }
                };
                Completed::SetUp(path, request, answer)
            });
        }
    }

    fn report(&mut self) {
        for serving in self.modems.report(self.carriers, now()) {
            self.source.observe(Observation::Serving(serving));
        }
    }

    fn failed(&self, error: &zbus::Error) {
        self.source.monitor.count_error();
        tracing::debug!(%error, "invalid message from ModemManager");
    }
}

/// Tokio's clock, which tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn each(
    properties: &HashMap<String, OwnedValue>,
) -> impl Iterator<Item = (&str, &zbus::zvariant::Value<'_>)> {
    properties.iter().map(|(name, value)| (name.as_str(), &**value))
}

const LIST: &str = "GetManagedObjects";
const SET_UP: &str = "Setup";

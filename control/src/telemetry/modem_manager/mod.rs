//! Serving cells from ModemManager, over D-Bus (ModemManager's D-Bus reference).
//!
//! Modems come and go, ModemManager ends and comes back, the bus may not be there: each is told
//! once and waited out. ModemManager is never started from here. A modem's cell is known only
//! after `Location.Setup`, its power after `Signal.Setup`; what others have set up there stays.

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

use self::modem::{LOCATION, MODEM, Modems, SIGNAL, TOLD_EVERY, Wish};
use polyrail_model::Observation;

use super::CarrierModem;
use super::source::{Backoff, Sink};
use super::state::SourcePhase;
use polyrail_config::MessageBus;

/// ModemManager's name on the bus and the path above its modems.
const NAME: &str = "org.freedesktop.ModemManager1";
const ROOT: &str = "/org/freedesktop/ModemManager1";

/// How long the bus may take to answer a connection, and ModemManager to answer a request: modems
/// are slow.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Messages that may wait here; beyond, the bus holds them back.
const QUEUE_MAX: usize = 1024;

/// How long is waited before modems are listed again when that failed.
const LIST_AGAIN: Duration = Duration::from_secs(5);

/// Brings serving cells until the task is dropped.
pub(super) async fn run(bus: MessageBus, carriers: Vec<CarrierModem>, sink: Sink) {
    let mut backoff = Backoff::default();
    loop {
        let reason = match tokio::time::timeout(CONNECT_WAIT, connect(&bus)).await {
            Ok(Ok(connection)) => match Watch::new(connection, &carriers, &sink).await {
                Ok(mut watch) => watch.follow(&mut backoff).await,
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the bus does not answer".to_owned(),
        };
        backoff.pause(&sink, reason).await;
    }
}

async fn connect(bus: &MessageBus) -> zbus::Result<Connection> {
    let builder = match bus {
        MessageBus::System => zbus::connection::Builder::system()?,
        MessageBus::At(address) => zbus::connection::Builder::address(address.as_str())?,
    };
    builder.method_timeout(ANSWER_WAIT).max_queued(QUEUE_MAX).build().await
}

/// One connection to a bus.
struct Watch<'a> {
    connection: Connection,
    carriers: &'a [CarrierModem],
    sink: &'a Sink,
    /// What ModemManager says.
    signals: MessageStream,
    /// Who owns its name.
    owners: MessageStream,
    owner: Option<UniqueName<'static>>,
    modems: Modems,
    requests: JoinSet<Done>,
    /// A refusal was told already.
    refused: bool,
}

/// A request that has its answer.
enum Done {
    /// All modems that this owner has.
    Listed(UniqueName<'static>, zbus::Result<Message>),
    /// A modem was set up, or was not.
    SetUp(String, Wish, zbus::Result<Message>),
    /// It is time to list again.
    ListAgain,
}

impl<'a> Watch<'a> {
    /// Subscribes first and asks then, so that nothing falls between.
    async fn new(
        connection: Connection,
        carriers: &'a [CarrierModem],
        sink: &'a Sink,
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
            sink,
            signals,
            owners,
            owner: None,
            modems: Modems::default(),
            requests: JoinSet::new(),
            refused: false,
        };
        let bus = zbus::fdo::DBusProxy::new(&watch.connection).await?;
        let owner = bus.get_name_owner(NAME.try_into()?).await.ok();
        watch.owned_by(owner.map(|owner| owner.into_inner()));
        Ok(watch)
    }

    /// Until the bus is lost; why it was.
    async fn follow(&mut self, backoff: &mut Backoff) -> String {
        let mut tick = tokio::time::interval(TOLD_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = self.owners.next() => match message {
                    Some(Ok(message)) => self.owner_changed(&message),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the bus closed the connection".to_owned(),
                },
                message = self.signals.next() => match message {
                    Some(Ok(message)) => self.hear(&message),
                    Some(Err(error)) => return error.to_string(),
                    None => return "the bus closed the connection".to_owned(),
                },
                Some(Ok(done)) = self.requests.join_next() => self.done(done),
                _ = tick.tick() => {}
            }
            if self.owner.is_some() {
                backoff.reset(self.sink);
            }
            self.wish();
            self.tell();
        }
    }

    fn owner_changed(&mut self, message: &Message) {
        let Some(change) = NameOwnerChanged::from_message(message.clone()) else { return };
        let Ok(change) = change.args() else { return };
        self.owned_by(change.new_owner().as_ref().map(|owner| owner.to_owned()));
    }

    /// Another ModemManager, or none: what was known is void.
    fn owned_by(&mut self, owner: Option<UniqueName<'static>>) {
        self.modems.forget();
        self.requests.abort_all();
        self.owner = owner;
        if self.owner.is_some() {
            tracing::info!("ModemManager is there");
            self.list();
        } else {
            tracing::warn!("no telemetry from modems: there is no ModemManager on the bus");
            let message = "there is no ModemManager on the bus".to_owned();
            self.sink.monitor.is(SourcePhase::Waiting, Some(message));
        }
    }

    fn list(&mut self) {
        let Some(owner) = self.owner.clone() else { return };
        let connection = self.connection.clone();
        self.requests.spawn(async move {
            let manager = Some("org.freedesktop.DBus.ObjectManager");
            let listed =
                connection.call_method(Some(owner.as_str()), ROOT, manager, LIST, &()).await;
            Done::Listed(owner, listed)
        });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Listed(owner, _) if Some(&owner) != self.owner.as_ref() => {}
            Done::Listed(_, listed) => match listed.and_then(|m| m.body().deserialize()) {
                Ok(objects) => self.listed(&objects),
                Err(error) => {
                    self.failed(&error);
                    self.requests.spawn(async {
                        tokio::time::sleep(LIST_AGAIN).await;
                        Done::ListAgain
                    });
                }
            },
            Done::ListAgain => self.list(),
            Done::SetUp(path, wish, Ok(_)) => tracing::debug!(path, ?wish, "a modem was set up"),
            Done::SetUp(path, wish, Err(error)) => {
                self.sink.monitor.failed();
                if std::mem::replace(&mut self.refused, true) {
                    tracing::debug!(path, ?wish, %error, "a modem was not set up");
                } else {
                    let remedy = "may this user control ModemManager (polkit)?";
                    tracing::warn!(path, ?wish, %error, remedy, "a modem was not set up");
                }
            }
        }
    }

    fn listed(&mut self, objects: &ManagedObjects) {
        self.sink.monitor.heard();
        for (path, interfaces) in objects {
            for (interface, properties) in interfaces {
                self.modems.change(path.as_str(), interface.as_str(), each(properties));
            }
        }
        self.survey();
    }

    /// Takes in a signal of ModemManager's. Anybody may send one: the sender is looked at.
    fn hear(&mut self, message: &Message) {
        let header = message.header();
        if header.sender() != self.owner.as_ref() {
            return;
        }
        let (Some(path), Some(interface), Some(member)) =
            (header.path(), header.interface(), header.member())
        else {
            return;
        };
        self.sink.monitor.heard();
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
        self.survey();
        Ok(())
    }

    fn removed(&mut self, message: &Message) -> zbus::Result<()> {
        let body = message.body();
        let (path, interfaces) = body.deserialize::<(ObjectPath<'_>, Vec<String>)>()?;
        self.modems.lose(path.as_str(), interfaces.iter().map(String::as_str));
        self.survey();
        Ok(())
    }

    fn changed(&mut self, path: &str, message: &Message) -> zbus::Result<()> {
        let body = message.body();
        let (interface, properties, _) =
            body.deserialize::<(String, HashMap<String, OwnedValue>, Vec<String>)>()?;
        self.modems.change(path, &interface, each(&properties));
        Ok(())
    }

    /// Says which carrier has which modem.
    fn survey(&self) {
        let summary = self.modems.summary(self.carriers);
        tracing::debug!(summary, "modems");
        self.sink.connected(Some(summary));
    }

    /// Requests what modems need before they tell anything; nothing here waits for it.
    fn wish(&mut self) {
        let Some(owner) = self.owner.clone() else { return };
        for (path, wish) in self.modems.wishes(now()) {
            let (connection, owner) = (self.connection.clone(), owner.clone());
            self.requests.spawn(async move {
                let to = Some(owner.as_str());
                let at = path.as_str();
                let answer = match wish {
                    Wish::Location(sources) => {
                        let body = (sources, true);
                        connection.call_method(to, at, Some(LOCATION), SET_UP, &body).await
                    }
                    Wish::Signal(rate) => {
                        connection.call_method(to, at, Some(SIGNAL), SET_UP, &(rate,)).await
                    }
                };
                Done::SetUp(path, wish, answer)
            });
        }
    }

    fn tell(&mut self) {
        for serving in self.modems.tell(self.carriers, now()) {
            self.sink.observe(Observation::Serving(serving));
        }
    }

    fn failed(&self, error: &zbus::Error) {
        self.sink.monitor.failed();
        tracing::debug!(%error, "ModemManager said something odd");
    }
}

/// Tokio's clock, which tests can hold.
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

//! Sources of telemetry: where the train is, which cells its modems are in.
//!
//! What `[telemetry]` names is run here, on the control thread, and all that is observed goes into
//! one bounded [queue](observations) that never makes anybody wait. A source that is not there is
//! told of once, tried again, and harms nothing else. Nothing is learned or forecast here.

mod gpsd;
mod lines;
mod modem_manager;
mod queue;
mod replay;
mod source;
mod state;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use queue::{Dropped, ObservationReceiver, ObservationSender, observations};
pub use replay::route_id;
pub(crate) use state::Board;
pub use state::{SourceKind, SourcePhase, SourceState};

use polyrail_config::{CarrierName, GatewayConfig, InterfaceName, MessageBus, ModemName};
use source::Sink;

/// Observations that wait for whoever learns from them: minutes of them.
pub const OBSERVATIONS_WAITING_MAX: usize = 1024;

/// What a configuration says of sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryPlan {
    /// Where gpsd listens, when it is wanted.
    pub gpsd: Option<SocketAddr>,
    /// The bus of ModemManager, when it is wanted.
    pub modem_manager: Option<MessageBus>,
    /// Where lines come from, when they are wanted.
    pub replay: Option<PathBuf>,
    /// The carriers that may be told of.
    pub carriers: Vec<CarrierModem>,
}

/// How a carrier's modem is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierModem {
    /// The carrier.
    pub name: CarrierName,
    /// The interface that it is bound to.
    pub interface: Option<InterfaceName>,
    /// Its modem's name; without it the interface's modem is taken.
    pub modem: Option<ModemName>,
}

impl TelemetryPlan {
    /// What a gateway's configuration says.
    pub fn of(config: &GatewayConfig) -> Self {
        let telemetry = config.telemetry.clone();
        let carrier = |carrier: &polyrail_config::Carrier| CarrierModem {
            name: carrier.name.clone(),
            interface: carrier.interface.clone(),
            modem: carrier.modem.clone(),
        };
        Self {
            gpsd: telemetry.gpsd,
            modem_manager: telemetry.modem_manager,
            replay: telemetry.replay,
            carriers: config.carriers.iter().map(carrier).collect(),
        }
    }
}

/// Runs what the plan names, and again what a new plan has otherwise, until the plans end.
pub(crate) async fn run(
    mut plans: watch::Receiver<TelemetryPlan>,
    out: ObservationSender,
    board: Board,
) {
    let mut sources = Sources {
        out,
        board,
        carriers: watch::Sender::default(),
        plan: TelemetryPlan::default(),
        gpsd: None,
        modem_manager: None,
        replay: None,
    };
    loop {
        let plan = plans.borrow_and_update().clone();
        sources.follow(plan);
        if plans.changed().await.is_err() {
            return;
        }
    }
}

/// What runs.
struct Sources {
    out: ObservationSender,
    board: Board,
    /// The carriers, for a replay, which goes on when they change.
    carriers: watch::Sender<Vec<CarrierName>>,
    plan: TelemetryPlan,
    gpsd: Option<Task>,
    modem_manager: Option<Task>,
    replay: Option<Task>,
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sources {
    /// Starts what is new in a plan and ends what is no longer there.
    fn follow(&mut self, plan: TelemetryPlan) {
        let before = std::mem::replace(&mut self.plan, plan);
        let plan = self.plan.clone();
        let names = plan.carriers.iter().map(|carrier| carrier.name.clone()).collect();
        self.carriers.send_replace(names);
        if plan.gpsd != before.gpsd {
            let wanted = plan.gpsd.map(|address| (address.to_string(), address));
            self.gpsd = self.start(SourceKind::Gpsd, wanted, gpsd::run);
        }
        if (&plan.modem_manager, &plan.carriers) != (&before.modem_manager, &before.carriers) {
            let wanted = plan.modem_manager.map(|bus| (bus.to_string(), bus));
            let run = |bus, sink| modem_manager::run(bus, plan.carriers, sink);
            self.modem_manager = self.start(SourceKind::ModemManager, wanted, run);
        }
        if plan.replay != before.replay {
            let wanted = plan.replay.map(|path| (path.display().to_string(), path));
            let carriers = self.carriers.subscribe();
            let run = |path, sink| replay::run(path, carriers, sink);
            self.replay = self.start(SourceKind::Replay, wanted, run);
        }
    }

    fn start<T, F: Future<Output = ()> + Send + 'static>(
        &self,
        kind: SourceKind,
        wanted: Option<(String, T)>,
        run: impl FnOnce(T, Sink) -> F,
    ) -> Option<Task> {
        self.board.clear(kind);
        let (target, from) = wanted?;
        tracing::info!(source = kind.as_str(), target, "telemetry begins");
        let sink = Sink { out: self.out.clone(), monitor: self.board.place(kind, target) };
        Some(Task(tokio::spawn(run(from, sink))))
    }
}

#[cfg(test)]
mod tests;

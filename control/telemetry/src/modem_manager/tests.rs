//! The source against a mock of ModemManager on a private bus of the real dbus-daemon.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;

use polyrail_model::{CellId, Serving};
use zbus::fdo::{self, ObjectManager};
use zbus::object_server::SignalEmitter;
use zbus::zvariant::Value;

use super::super::source::recorded;
use super::super::state::{SourceKind, SourceState};
use super::*;

/// A private bus; the daemon ends with it.
struct Bus {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Bus {
    /// `None` if dbus-daemon is missing and `POLYRAIL_ALLOW_SKIP` permits that.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Self::daemon(folder.path().join("bus"), folder.path().join("bus.conf"))?;
        Some(Self { folder, daemon })
    }

    fn daemon(socket: PathBuf, file: PathBuf) -> Option<Child> {
        let text = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen>\
             <policy context=\"default\"><allow send_destination=\"*\"/><allow own=\"*\"/>\
             <allow receive_sender=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.arg(format!("--config-file={}", file.display())).arg("--nofork");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = match quiet.process_group(0).spawn() {
            Ok(daemon) => daemon,
            Err(error) => {
                let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
                let may = allowed.split(',').any(|name| name.trim() == "dbus");
                assert!(may, "dbus-daemon: {error}; make setup installs it");
                let _ = writeln!(std::io::stdout(), "SKIP dbus: dbus-daemon is missing");
                return None;
            }
        };
        for _ in 0..500 {
            if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                return Some(daemon);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("dbus-daemon does not listen");
    }

    fn end(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_file(self.folder.path().join("bus"));
    }

    fn again(&mut self) {
        let (socket, file) = (self.folder.path().join("bus"), self.folder.path().join("bus.conf"));
        self.daemon = Self::daemon(socket, file).unwrap();
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.folder.path().join("bus").display())
    }

    async fn connect(&self) -> Connection {
        let address = self.address();
        zbus::connection::Builder::address(address.as_str()).unwrap().build().await.unwrap()
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.end();
    }
}

struct MockModem {
    port: String,
    imei: String,
    state: i32,
}

#[zbus::interface(name = "org.freedesktop.ModemManager1.Modem")]
impl MockModem {
    #[zbus(property)]
    fn ports(&self) -> Vec<(String, u32)> {
        vec![("ttyUSB2".to_owned(), 3), (self.port.clone(), 2)]
    }

    #[zbus(property)]
    fn equipment_identifier(&self) -> String {
        self.imei.clone()
    }

    #[zbus(property)]
    fn state(&self) -> i32 {
        self.state
    }

    #[zbus(signal, name = "StateChanged")]
    async fn moved(
        emitter: &SignalEmitter<'_>,
        old: i32,
        new: i32,
        reason: u32,
    ) -> zbus::Result<()>;
}

/// Reports its cell only after it was set up.
struct MockLocation {
    cell: String,
    enabled: u32,
    signals: bool,
    refuses: bool,
}

#[zbus::interface(name = "org.freedesktop.ModemManager1.Modem.Location")]
impl MockLocation {
    #[zbus(property)]
    fn enabled(&self) -> u32 {
        self.enabled
    }

    #[zbus(property)]
    fn signals_location(&self) -> bool {
        self.signals
    }

    #[zbus(property)]
    fn location(&self) -> HashMap<u32, Value<'static>> {
        match self.signals {
            true => HashMap::from([(1, Value::new(self.cell.clone()))]),
            false => HashMap::new(),
        }
    }

    async fn setup(
        &mut self,
        sources: u32,
        signals: bool,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<()> {
        if self.refuses {
            return Err(fdo::Error::AccessDenied("not you".to_owned()));
        }
        (self.enabled, self.signals) = (sources, signals);
        self.enabled_changed(&emitter).await?;
        self.signals_location_changed(&emitter).await?;
        Ok(self.location_changed(&emitter).await?)
    }
}

struct MockSignal {
    rate: u32,
    rsrp: f64,
}

#[zbus::interface(name = "org.freedesktop.ModemManager1.Modem.Signal")]
impl MockSignal {
    #[zbus(property)]
    fn rate(&self) -> u32 {
        self.rate
    }

    #[zbus(property)]
    fn lte(&self) -> HashMap<String, Value<'static>> {
        match self.rate {
            0 => HashMap::new(),
            _ => HashMap::from([("rsrp".to_owned(), Value::new(self.rsrp))]),
        }
    }

    async fn setup(
        &mut self,
        rate: u32,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<()> {
        self.rate = rate;
        self.rate_changed(&emitter).await?;
        Ok(self.lte_changed(&emitter).await?)
    }
}

/// A ModemManager; it is gone when this is dropped.
struct Manager(Connection);

impl Manager {
    async fn start(bus: &Bus) -> Self {
        let manager = Self(bus.connect().await);
        manager.0.object_server().at(ROOT, ObjectManager).await.unwrap();
        manager
    }

    async fn named(self) -> Self {
        self.0.request_name(NAME).await.unwrap();
        self
    }

    fn path(number: u32) -> String {
        format!("{ROOT}/Modem/{number}")
    }

    async fn add(&self, number: u32, port: &str, imei: &str, cell: &str, refuses: bool) {
        let (path, server) = (Self::path(number), self.0.object_server());
        let cell = cell.to_owned();
        let location = MockLocation { cell, enabled: 4, signals: false, refuses };
        server.at(path.as_str(), location).await.unwrap();
        server.at(path.as_str(), MockSignal { rate: 0, rsrp: -97.5 }).await.unwrap();
        let modem = MockModem { port: port.to_owned(), imei: imei.to_owned(), state: 8 };
        server.at(path.as_str(), modem).await.unwrap();
    }

    async fn remove(&self, number: u32) {
        let (path, server) = (Self::path(number), self.0.object_server());
        server.remove::<MockModem, _>(path.as_str()).await.unwrap();
        server.remove::<MockLocation, _>(path.as_str()).await.unwrap();
        server.remove::<MockSignal, _>(path.as_str()).await.unwrap();
    }

    async fn enters(&self, number: u32, cell: &str) {
        let path = Self::path(number);
        let server = self.0.object_server();
        let location = server.interface::<_, MockLocation>(path.as_str()).await.unwrap();
        let mut mock = location.get_mut().await;
        mock.cell = cell.to_owned();
        mock.location_changed(location.signal_emitter()).await.unwrap();
    }

    async fn state(&self, number: u32, state: i32) {
        let emitter = SignalEmitter::new(&self.0, Self::path(number)).unwrap();
        MockModem::moved(&emitter, 8, state, 0).await.unwrap();
    }
}

/// The running source.
struct Harness {
    source: Source,
    receiver: Receiver<Observation>,
    running: tokio::task::JoinHandle<()>,
}

impl Harness {
    fn start(address: &str) -> Self {
        let (source, receiver) = recorded(SourceKind::ModemManager);
        let carriers = vec![
            CarrierModem { name: "a".to_owned(), interface: Some("wwan0".to_owned()), modem: None },
            CarrierModem {
                name: "b".to_owned(),
                interface: None,
                modem: Some("353270040012345".to_owned()),
            },
        ];
        let bus = MessageBus::Address(address.to_owned());
        let running = tokio::spawn(run(bus, carriers, source.clone()));
        Self { source, receiver, running }
    }

    async fn until(&self, wish: impl Fn(&SourceState) -> bool) {
        for _ in 0..3000 {
            if wish(&self.source.monitor.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the condition never held: {:?}", self.source.monitor.state());
    }

    /// Waits until a carrier is reported in a cell, with or without a power.
    async fn serves(&self, carrier: &str, cell: Option<u64>) -> Serving {
        let mut last = None;
        for _ in 0..3000 {
            while let Ok(observation) = self.receiver.try_recv() {
                let Observation::Serving(serving) = observation else { panic!("{observation:?}") };
                if serving.carrier == carrier && serving.cell == cell.map(CellId) {
                    return serving;
                }
                last = Some(serving);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{carrier} was not reported in {cell:x?}; last {last:?}");
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.running.abort();
    }
}

#[tokio::test]
async fn cells_follow_modems_and_restarts_of_the_manager() {
    let Some(bus) = Bus::start() else { return };
    let source = Harness::start(&bus.address());
    source.until(|state| state.state == SourcePhase::Waiting).await;
    let message = source.source.monitor.state().message.unwrap();
    assert_eq!(message, "ModemManager is not on the bus");

    // A manager that adds its modems before it owns its name.
    let manager = Manager::start(&bus).await;
    manager.add(0, "wwan0", "1", "262,01,FFFE,1A2B3C4,5678", false).await;
    let manager = manager.named().await;
    source.serves("a", Some(0x1a2_b3c4)).await;
    let serving = loop {
        let serving = source.serves("a", Some(0x1a2_b3c4)).await;
        if serving.rsrp.is_some() {
            break serving;
        }
    };
    assert_eq!(serving.rsrp.unwrap().dbm(), -97.5);
    let state = source.source.monitor.state();
    assert_eq!(state.message.unwrap(), "a: modem 0, b: no modem");
    assert_eq!((state.state, state.errors), (SourcePhase::Connected, 0));

    manager.enters(0, "262,01,FFFE,1A2B3C5,5678").await;
    source.serves("a", Some(0x1a2_b3c5)).await;
    manager.state(0, 7).await;
    source.serves("a", None).await;
    manager.state(0, 11).await;
    source.serves("a", Some(0x1a2_b3c5)).await;

    // A modem that is plugged in while the manager runs, known by its IMEI.
    manager.add(1, "wwan7", "353270040012345", "262,02,FFFE,77,1", false).await;
    source.serves("b", Some(0x77)).await;
    manager.remove(0).await;
    source.serves("a", None).await;
    source.serves("b", Some(0x77)).await;

    // The manager dies, and another one starts.
    drop(manager);
    source.until(|state| state.state == SourcePhase::Waiting).await;
    while source.receiver.try_recv().is_ok() {}
    let manager = Manager::start(&bus).await.named().await;
    manager.add(2, "wwan0", "1", "262,01,FFFE,99,1", false).await;
    source.serves("a", Some(0x99)).await;
    let enabled = {
        let server = manager.0.object_server();
        let path = Manager::path(2);
        server.interface::<_, MockLocation>(path.as_str()).await.unwrap().get().await.enabled
    };
    assert_eq!(enabled, 5, "other programs' settings are kept");
}

#[tokio::test]
async fn missing_bus_is_retried() {
    let Some(mut bus) = Bus::start() else { return };
    bus.end();
    let source = Harness::start(&bus.address());
    source.until(|state| state.state == SourcePhase::Waiting).await;
    bus.again();
    let manager = Manager::start(&bus).await.named().await;
    manager.add(0, "wwan0", "1", "262,01,FFFE,99,1", false).await;
    source.serves("a", Some(0x99)).await;
    bus.end();
    source.until(|state| state.state == SourcePhase::Waiting).await;
    bus.again();
    let manager = Manager::start(&bus).await.named().await;
    manager.add(0, "wwan0", "1", "262,01,FFFE,9A,1", false).await;
    source.serves("a", Some(0x9a)).await;
}

#[tokio::test]
async fn refused_setup_is_counted() {
    let Some(bus) = Bus::start() else { return };
    let manager = Manager::start(&bus).await.named().await;
    manager.add(0, "wwan0", "1", "262,01,FFFE,99,1", true).await;
    let source = Harness::start(&bus.address());
    source.until(|state| state.errors == 1).await;
    assert_eq!(source.source.monitor.state().state, SourcePhase::Connected);
    assert_eq!(source.receiver.try_recv().ok(), None);
}

#[tokio::test]
async fn signals_of_other_senders_are_ignored() {
    let Some(bus) = Bus::start() else { return };
    let manager = Manager::start(&bus).await.named().await;
    manager.add(0, "wwan0", "1", "262,01,FFFE,99,1", false).await;
    let source = Harness::start(&bus.address());
    source.serves("a", Some(0x99)).await;
    let impostor = bus.connect().await;
    let names = fdo::DBusProxy::new(&impostor).await.unwrap().list_names().await.unwrap();
    let known = [&manager.0, &impostor].map(|one| one.unique_name().unwrap().to_string());
    let names = names.iter().map(|name| name.as_str());
    let others = names.filter(|name| name.starts_with(':') && !known.contains(&(*name).to_owned()));
    let others: Vec<_> = others.collect();
    assert_eq!(others.len(), 1, "the source alone");
    let (path, body) = (Manager::path(0), (8, 7, 0_u32));
    for to in [None, Some(others[0])] {
        impostor.emit_signal(to, path.as_str(), MODEM, "StateChanged", &body).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    manager.enters(0, "262,01,FFFE,9A,1").await;
    for _ in 0..3000 {
        while let Ok(Observation::Serving(serving)) = source.receiver.try_recv() {
            assert!(serving.cell.is_some(), "the signal of the impostor was accepted");
            if serving.cell == Some(CellId(0x9a)) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the signal of the manager was not accepted");
}

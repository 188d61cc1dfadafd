//! The namespaces of one experiment and the wires between them; no daemon runs yet.
//!
//! The gateway reaches the cloud's public address through every carrier. Routing by source address
//! and by bound interface both work, as on a real gateway with several modems.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polyrail_emulator::namespace::{Namespace, connect_veth};

use crate::addresses::{
    self, CLOUD, CLOUD_INSIDE, FORBIDDEN, GATEWAY, MODEM_HOST, MODEM_ROUTER, PASSENGER, Pair,
    RESOLVER, SERVER, SERVER_DIRECT,
};
use crate::scratch;

/// The size of the scratch folder. It is in memory, and only written bytes use it.
const SCRATCH_SIZE: &str = "4g";

/// Runs `work` on a new thread, which may move to other namespaces. Its children end with it.
pub fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The four namespaces, wired except for the carriers.
#[derive(Debug)]
pub struct Lab {
    /// A passenger's device.
    pub passenger: Namespace,
    /// The train's gateway: `lan0` and one `wanN` a carrier.
    pub gateway: Namespace,
    /// The cloud proxy: one `carN` a carrier and `srv0`.
    pub cloud: Namespace,
    /// The servers of the Internet.
    pub server: Namespace,
    folder: PathBuf,
}

impl Lab {
    /// Creates the namespaces, and moves the calling thread to a private mount namespace. Its
    /// scratch folder holds all files of the experiment.
    pub fn new() -> Result<Lab> {
        let folder = scratch::private_folder(SCRATCH_SIZE)?;
        let lab = Lab {
            passenger: quiet_namespace()?,
            gateway: quiet_namespace()?,
            cloud: quiet_namespace()?,
            server: quiet_namespace()?,
            folder,
        };
        lab.set_forwarding()?;
        lab.wire_lan()?;
        lab.wire_server()?;
        lab.write_resolvers()?;
        Ok(lab)
    }

    /// The scratch folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The log file of a program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// A carrier without limits or delay: a plain veth between gateway and cloud.
    pub fn wire_carrier(&self, index: u8) -> Result<()> {
        connect_veth(
            (&self.gateway, &format!("wan{index}")),
            (&self.cloud, &format!("car{index}")),
        )?;
        self.route_carrier(index)
    }

    /// A USB modem that is a router, as many are: the gateway has the same address and router on
    /// each such carrier, and the modem translates. IPv4 only. The gateway's routes are those of
    /// the packaged example.
    pub fn wire_modem(&self, index: u8) -> Result<Namespace> {
        let modem = quiet_namespace()?;
        let (wan, car) = (format!("wan{index}"), format!("car{index}"));
        connect_veth((&self.gateway, &wan), (&modem, "usb0"))?;
        connect_veth((&modem, "wan0"), (&self.cloud, &car))?;
        let (near, far) =
            (addresses::carrier_gateway(index).v4, addresses::carrier_cloud(index).v4);
        let (host, router) = (MODEM_HOST, MODEM_ROUTER);
        let up = |device: &str, address: std::net::Ipv4Addr| {
            format!("addr add {address}/24 dev {device}\nlink set {device} up")
        };
        ip_each(&self.cloud, &up(&car, far))?;
        ip_each(&modem, &up("usb0", router))?;
        ip_each(&modem, &format!("{}\nroute add default via {far}", up("wan0", near)))?;
        modem.sysctl("net.ipv4.ip_forward", "1")?;
        let translate = "add table ip modem; \
            add chain ip modem out { type nat hook postrouting priority 100 ; } ; \
            add rule ip modem out oifname wan0 masquerade";
        modem.tool("nft", translate)?;
        ip_each(&self.gateway, &up(&wan, host))?;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/examples/routes");
        let script = folder.join("polyrail-routes.sh");
        // Twice, because a DHCP client runs it for each lease.
        for _ in 0..2 {
            let table = 1001 + u32::from(index);
            let arguments = format!("{} {wan} {table} {router}", script.display());
            self.gateway.tool("sh", &arguments)?;
        }
        Ok(modem)
    }

    /// Addresses and routes of carrier `index`, whose interfaces `wanN` and `carN` exist.
    pub fn route_carrier(&self, index: u8) -> Result<()> {
        let near = addresses::carrier_gateway(index);
        let far = addresses::carrier_cloud(index);
        let table = routing_table(index);
        ip_each(
            &self.cloud,
            &format!(
                "addr add {}/24 dev car{index}
addr add {}/64 dev car{index} nodad
link set car{index} up",
                far.v4, far.v6
            ),
        )?;
        self.restore_carrier(index)?;
        ip_each(
            &self.gateway,
            &format!(
                "rule add from {}/24 lookup {table} priority {table}
-6 rule add from {}/64 lookup {table} priority {table}",
                near.v4, near.v6
            ),
        )?;
        // The route back to the LAN for bypassed traffic, which uses the first carrier.
        if index == 0 {
            let (v4, v6) = (near.v4, near.v6);
            ip_each(
                &self.cloud,
                &format!("route add 10.71.0.0/24 via {v4}\nroute add fd71::/64 via {v6}"),
            )?;
        }
        Ok(())
    }

    /// Gives the passenger's device the addresses of further users ([`addresses::user`]).
    pub fn add_users(&self, numbers: impl IntoIterator<Item = u8>) -> Result<()> {
        for number in numbers {
            self.passenger.ip(&format!("addr add {}/24 dev wlan0", addresses::user(number)))?;
        }
        Ok(())
    }

    /// Brings the gateway's interface of a carrier up with its first address and routes.
    pub fn restore_carrier(&self, index: u8) -> Result<()> {
        self.address_carrier(index, addresses::GATEWAY_HOST)
    }

    /// Brings the gateway's interface of a carrier up with an address of this host number and with
    /// routes that send packets from this address over this carrier.
    pub fn address_carrier(&self, index: u8, host: u8) -> Result<()> {
        let near = addresses::carrier_host(index, host);
        let far = addresses::carrier_cloud(index);
        let (near4, near6, far4, far6) = (near.v4, near.v6, far.v4, far.v6);
        let table = routing_table(index);
        let metric = 10 + u32::from(index);
        ip_each(
            &self.gateway,
            &format!(
                "addr replace {near4}/24 dev wan{index}
addr replace {near6}/64 dev wan{index} nodad
link set wan{index} up
route replace default via {far4} dev wan{index} metric {metric}
route replace default via {far4} dev wan{index} table {table}
route replace ::/0 via {far6} dev wan{index} metric {metric}
route replace ::/0 via {far6} dev wan{index} table {table}"
            ),
        )
    }

    /// The file mounted as `/etc/resolv.conf`. The cloud's names the lab's resolver. The
    /// passenger's names one that does not exist, because the gateway's forwarder answers.
    pub fn resolver_file(&self, of_cloud: bool) -> PathBuf {
        self.folder.join(if of_cloud { "cloud-resolv.conf" } else { "resolv.conf" })
    }

    fn write_resolvers(&self) -> Result<()> {
        for (of_cloud, resolver) in [(false, RESOLVER), (true, SERVER)] {
            let text = format!(
                "nameserver {}\nnameserver {}\noptions timeout:3 attempts:2\n",
                resolver.v4, resolver.v6
            );
            std::fs::write(self.resolver_file(of_cloud), text).context("resolv.conf")?;
        }
        Ok(())
    }

    fn set_forwarding(&self) -> Result<()> {
        for router in [&self.gateway, &self.cloud] {
            router.sysctl("net.ipv4.ip_forward", "1")?;
            router.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            // Loose check: a reply arrives on the carrier of its request, not of the best route.
            router.sysctl("net.ipv4.conf.all.rp_filter", "2")?;
        }
        Ok(())
    }

    fn wire_lan(&self) -> Result<()> {
        join(&self.gateway, "lan0", GATEWAY, &self.passenger, "wlan0", PASSENGER)?;
        ip_each(&self.passenger, &default_routes(GATEWAY))
    }

    fn wire_server(&self) -> Result<()> {
        join(&self.cloud, "srv0", CLOUD_INSIDE, &self.server, "eth0", SERVER)?;
        ip_each(&self.server, &default_routes(CLOUD_INSIDE))?;
        let (direct4, direct6) = (SERVER_DIRECT.v4, SERVER_DIRECT.v6);
        let (forbidden4, forbidden6) = (FORBIDDEN.v4, FORBIDDEN.v6);
        ip_each(
            &self.server,
            &format!(
                "addr add {direct4}/24 dev eth0
addr add {direct6}/64 dev eth0 nodad
addr add {forbidden4}/32 dev lo
addr add {forbidden6}/128 dev lo nodad"
            ),
        )?;
        let (via4, via6) = (SERVER.v4, SERVER.v6);
        let (cloud4, cloud6) = (CLOUD.v4, CLOUD.v6);
        ip_each(
            &self.cloud,
            &format!(
                "route add {forbidden4} via {via4}
route add {forbidden6} via {via6}
addr add {cloud4}/32 dev lo
addr add {cloud6}/128 dev lo nodad"
            ),
        )
    }
}

/// One of the two daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The gateway.
    Gateway,
    /// The cloud.
    Cloud,
}

impl Side {
    /// `gateway` or `cloud`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Gateway => "gateway",
            Side::Cloud => "cloud",
        }
    }

    /// Its configuration file in the lab's scratch folder.
    pub fn configuration(self, lab: &Lab) -> PathBuf {
        lab.folder().join(format!("{}.toml", self.name()))
    }

    /// Its admin socket in the lab's scratch folder.
    pub fn admin_socket(self, lab: &Lab) -> PathBuf {
        lab.folder().join(format!("{}.sock", self.name()))
    }
}

/// Joins two namespaces by a veth pair with a /24 and a /64.
pub(crate) fn join(
    near: &Namespace,
    near_device: &str,
    near_address: Pair,
    far: &Namespace,
    far_device: &str,
    far_address: Pair,
) -> Result<()> {
    connect_veth((near, near_device), (far, far_device))?;
    for (side, device, address) in
        [(near, near_device, near_address), (far, far_device, far_address)]
    {
        let (v4, v6) = (address.v4, address.v6);
        ip_each(
            side,
            &format!(
                "addr add {v4}/24 dev {device}
addr add {v6}/64 dev {device} nodad
link set {device} up"
            ),
        )?;
    }
    Ok(())
}

/// A namespace in which IPv6 addresses are usable at once.
fn quiet_namespace() -> Result<Namespace> {
    let namespace = Namespace::new().context("network namespaces need root")?;
    for scope in ["all", "default"] {
        namespace.sysctl(&format!("net.ipv6.conf.{scope}.accept_dad"), "0")?;
        namespace.sysctl(&format!("net.ipv6.conf.{scope}.router_solicitations"), "0")?;
    }
    Ok(namespace)
}

/// Runs `ip` once a line.
fn ip_each(namespace: &Namespace, lines: &str) -> Result<()> {
    for line in lines.lines() {
        namespace.ip(line)?;
    }
    Ok(())
}

/// The routing table of one carrier's source addresses.
fn routing_table(index: u8) -> u32 {
    100 + u32::from(index)
}

fn default_routes(via: Pair) -> String {
    format!("route add default via {}\nroute add ::/0 via {}", via.v4, via.v6)
}

//! Transparent interception: the nftables table and the policy routing that divert passengers'
//! traffic to the gateway, and reject or forward other traffic.
//!
//! All firewall rules are in one table, `inet polyrail`; all routes and routing rules have one
//! protocol number. So the rules are applied in one atomic transaction, and removed without knowing
//! which rules were applied. `docs/interception.md` explains the rules.
//!
//! Two ways to hold the rules: [`apply`] leaves them in the kernel until [`remove`];
//! [`Interception`] ties them to this process.

mod bindings;
mod owned;
mod plan;
mod ruleset;
mod system;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv6Addr, UdpSocket};

pub use polyrail_config::OnExit;
use polyrail_config::{GatewayConfig, bridges};
use polyrail_model::Families;
use polyrail_session::wire::Offer;

use bindings::Bindings;
use plan::Hops;
pub use plan::Plan;
pub(crate) use plan::direct_carriers;
pub use ruleset::{Script, removal};

use owned::OwnedTable;

/// The daemon's hold on the interception rules.
///
/// Dropping it does what its [`OnExit`] says.
#[derive(Debug)]
pub struct Interception {
    plan: Plan,
    /// The families whose connections are intercepted, and those whose datagrams are.
    families: Families,
    datagrams: Families,
    /// The next hops of `direct:` traffic when they were last read; `None` if it is rejected.
    hops: Option<Hops>,
    /// `None` if the rules outlive the process.
    owned: Option<OwnedTable>,
    /// `None` if the rules do not look at link addresses.
    bindings: Option<Bindings>,
}

/// Why interception could not be set up, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    /// The configuration has no `[intercept]`.
    #[error("the configuration has no [intercept] table")]
    NotConfigured,
    /// An interface's name is unsafe in a rule.
    #[error("interface {0:?} has a character that cannot stand in a firewall rule")]
    Interface(String),
    /// `direct:` needs a default route.
    #[error("`direct:`: no carrier for it has a default route ({0}); bring one up")]
    DirectRoute(String),
    /// `direct:` needs forwarding.
    #[error("`direct:`: forwarding is off; set the kernel parameter {0} to 1")]
    Forwarding(&'static str),
    /// A program could not be started.
    #[error("cannot run {program}: {source} (packages nftables and iproute2 are needed)")]
    Run {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed: {message}")]
    Refused {
        /// The command line.
        command: String,
        /// Its standard error.
        message: String,
    },
    /// No family is left.
    #[error("intercept.ipv4 is false, and this machine has no IPv6: {0}")]
    Families(io::Error),
    /// The thread for changes of the rules could not be started.
    #[error("cannot start a thread: {0}")]
    Worker(io::Error),
    /// The neighbour tables cannot be read.
    #[error("cannot read the kernel's neighbour tables: {0}")]
    Neighbours(io::Error),
    /// Another process holds the table.
    #[error("the table `inet polyrail` is held by a running polyrail-gateway; stop that first")]
    Held,
}

/// Excludes IPv6 if this machine has none, as with `net.ipv6.conf.all.disable_ipv6 = 1`, because
/// its sockets and routes would fail. Returns the kernel's reason.
///
/// # Errors
/// The configuration excludes IPv4.
pub fn exclude_missing_ipv6(
    config: &mut GatewayConfig,
) -> Result<Option<io::Error>, InterceptError> {
    let Some(intercept) = config.own.intercept.as_mut().filter(|intercept| intercept.ipv6) else {
        return Ok(None);
    };
    let is_missing = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
    };
    let error = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).err().filter(is_missing);
    let Some(error) = error else { return Ok(None) };
    if !intercept.ipv4 {
        return Err(InterceptError::Families(error));
    }
    intercept.ipv6 = false;
    Ok(Some(error))
}

/// The commands and rules that [`apply`] runs on this machine now, as a shell script.
///
/// # Errors
/// `direct:` has no route, or forwarding is off.
pub fn print(plan: &Plan) -> Result<String, InterceptError> {
    Ok(script(plan)?.to_string())
}

/// Sets the rules up; they stay until [`remove`], even after this process.
///
/// # Errors
/// A route, program or privilege is missing, or a command failed; the rules are unchanged.
pub fn apply(plan: &Plan) -> Result<(), InterceptError> {
    script(plan)?.run()
}

/// Removes the rules of [`apply`] or of a dead daemon, if there are any.
///
/// # Errors
/// A command failed.
pub fn remove() -> Result<(), InterceptError> {
    removal().run()
}

impl Interception {
    /// Sets the rules up; replaces those of a dead daemon. Without a route, `direct:` traffic is
    /// rejected until [`Self::refresh`] finds one.
    ///
    /// # Errors
    /// A program or privilege is missing, a command failed, or another daemon holds the rules.
    pub fn start(plan: Plan, on_exit: OnExit) -> Result<Self, InterceptError> {
        let families = plan.families;
        let hops = hops_if_any(&plan)?;
        let binds = plan.binds_senders();
        let bindings = binds.then(|| Bindings::new(plan.interfaces.clone())).transpose()?;
        let owned = match on_exit {
            OnExit::Closed => {
                Script::new(&plan, hops.as_ref(), families, false).run()?;
                None
            }
            OnExit::Open => {
                let script = Script::new(&plan, hops.as_ref(), families, true);
                script.run_routing()?;
                Some(OwnedTable::start(&script.ruleset).inspect_err(|_| clear_routing())?)
            }
        };
        Ok(Self { plan, families, datagrams: families, hops, owned, bindings })
    }

    /// Rejects new TCP connections of families that the cloud does not reach, and datagrams if it
    /// carries none; accepts the others. Established connections continue. Families that the
    /// configuration excludes stay rejected. A change takes about ten milliseconds.
    ///
    /// # Errors
    /// The kernel rejected the change.
    pub fn set_offer(&mut self, offer: Offer) -> Result<(), InterceptError> {
        let (reachable, configured) = (offer.families, self.plan.families);
        let wanted =
            Families { v4: reachable.v4 && configured.v4, v6: reachable.v6 && configured.v6 };
        if wanted != self.families {
            self.set_members("carried", wanted)?;
            self.families = wanted;
        }
        let datagrams = if offer.datagrams { wanted } else { Families::default() };
        if self.plan.carries_udp && datagrams != self.datagrams {
            self.set_members("datagrams", datagrams)?;
            self.datagrams = datagrams;
        }
        Ok(())
    }

    /// Makes these families the members of a set.
    fn set_members(&mut self, set: &'static str, wanted: Families) -> Result<(), InterceptError> {
        let change = ruleset::families_change(set, wanted);
        match &mut self.owned {
            Some(owned) => owned.run(&change, || system::members(set) == Some(wanted)),
            None => system::nft(&change),
        }
    }

    /// Binds passengers' source addresses to the link addresses of the kernel's neighbour tables.
    /// Call it about every second. Without a change it costs a few system calls.
    ///
    /// # Errors
    /// The tables cannot be read, or the kernel rejected the change.
    pub fn bind_senders(&mut self) -> Result<(), InterceptError> {
        let Self { owned, bindings: Some(bindings), .. } = self else { return Ok(()) };
        bindings.update(|change| match owned {
            Some(owned) => {
                let (element, present) = &change.proof;
                owned.run(&change.line, || system::contains(element) == *present)
            }
            None => system::nft(&change.line),
        })
    }

    /// Changes the interfaces for `direct:` traffic, best first, from the next
    /// [`Self::refresh`] on. Without `direct:` it does nothing.
    pub fn set_direct(&mut self, interfaces: Vec<String>) {
        if let Some(direct) = &mut self.plan.direct {
            *direct = interfaces;
        }
    }

    /// Whether `direct:` traffic leaves through the best interface.
    pub fn uses_best(&self) -> bool {
        let best = self.plan.direct.as_ref().and_then(|direct| direct.first());
        self.hops.as_ref().map(|hops| &hops.interface) == best
    }

    /// Reads the carriers' routes again and rebuilds ours: for `direct:`, after an interface lost
    /// its routes or got others. Returns whether they differ.
    ///
    /// # Errors
    /// No carrier has a route, and so `direct:` traffic is rejected; or a command failed.
    pub fn refresh(&mut self) -> Result<bool, InterceptError> {
        let hops = hops_if_any(&self.plan)?;
        let is_owned = self.owned.is_some();
        Script::new(&self.plan, hops.as_ref(), self.families, is_owned).run_routing()?;
        let differ = hops != self.hops;
        if differ && let Some(Hops { interface, .. }) = &hops {
            tracing::info!(interface, "traffic of `direct:` has a route");
        }
        self.hops = hops;
        match &self.plan.direct {
            Some(direct) if self.hops.is_none() => {
                Err(InterceptError::DirectRoute(direct.join(" or ")))
            }
            _ => Ok(differ),
        }
    }

    /// The intercepted bridges that lose connections, with the remedies.
    pub fn losing_bridges(&self) -> Vec<String> {
        let losing = bridges::losing_of(self.plan.interfaces.iter().map(String::as_str));
        losing.iter().map(|losing| format!("{losing}: {}", losing.remedy())).collect()
    }

    /// Rebuilds the rules if the program that holds them died; returns true if it did. Call it
    /// about every second; it costs one system call.
    ///
    /// # Errors
    /// As for [`Self::start`]; the next call tries again.
    pub fn watch(&mut self) -> Result<bool, InterceptError> {
        let Some(owned) = &mut self.owned else { return Ok(false) };
        if owned.lives() {
            return Ok(false);
        }
        // With the last known next hops, because the carrier may be down.
        let script = Script::new(&self.plan, self.hops.as_ref(), self.families, true);
        *owned = OwnedTable::start(&script.ruleset)?;
        self.datagrams = self.families;
        self.bindings.iter_mut().for_each(Bindings::forget);
        Ok(true)
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if let Some(owned) = self.owned.take() {
            drop(owned);
            clear_routing();
        }
    }
}

/// The commands of a plan that no process owns.
fn script(plan: &Plan) -> Result<Script, InterceptError> {
    Ok(Script::new(plan, hops(plan)?.as_ref(), plan.families, false))
}

/// The next hops of `direct:` traffic; `None` without `direct:`.
fn hops(plan: &Plan) -> Result<Option<Hops>, InterceptError> {
    plan.direct.as_ref().map(|direct| system::hops(direct, plan.families)).transpose()
}

/// As [`hops`]; `None` also if no carrier has a route.
fn hops_if_any(plan: &Plan) -> Result<Option<Hops>, InterceptError> {
    match hops(plan) {
        Err(InterceptError::DirectRoute(_)) => Ok(None),
        hops => hops,
    }
}

fn clear_routing() {
    if let Err(error) = removal().run_routing() {
        tracing::warn!(%error, "routing rules of interception were left behind");
    }
}

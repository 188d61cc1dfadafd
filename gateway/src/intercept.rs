//! Transparent interception: the nftables table and the policy routing that bring passengers'
//! traffic here, and what happens to traffic that is not carried.
//!
//! All firewall rules stand in one table, `inet polyrail`; all routes and routing rules carry one
//! protocol number. So applying is one atomic transaction, and removing needs no memory of what
//! was applied and touches nothing else. `docs/interception.md` explains the rules.
//!
//! Two ways to hold the rules: [`apply`] leaves them in the kernel until [`remove`];
//! [`Interception`] ties them to this process.

mod owned;
mod plan;
mod ruleset;
mod system;

#[cfg(test)]
mod tests;

use std::io;

pub use polyrail_config::OnExit;
use polyrail_model::Families;

pub use plan::{Other, Plan};
pub use ruleset::{Script, removal};

use owned::OwnedTable;

/// The daemon's hold on the interception rules.
///
/// Dropping it does what its [`OnExit`] says.
#[derive(Debug)]
pub struct Interception {
    plan: Plan,
    families: Families,
    /// The direct carrier's ways out, as they were seen last.
    hops: system::Hops,
    /// `None` when the rules outlive the process.
    owned: Option<OwnedTable>,
}

/// Why interception could not be set up, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    /// The configuration has no `[intercept]`.
    #[error("the configuration has no [intercept] table")]
    NotConfigured,
    /// A name that cannot stand in a rule.
    #[error("interface {0:?} has a character that cannot stand in a firewall rule")]
    Interface(String),
    /// `direct:` names a carrier without an interface, or none at all.
    #[error("intercept.other: the carrier {0:?} has no interface to send through")]
    DirectCarrier(String),
    /// `direct:` needs a way out that is not there.
    #[error("intercept.other: no default route leads through {0}; bring the carrier up first")]
    DirectRoute(String),
    /// `direct:` needs forwarding.
    #[error("intercept.other: forwarding is off; set the kernel parameter {0} to 1")]
    Forwarding(&'static str),
    /// A program could not be started.
    #[error("cannot run {program}: {source} (packages nftables and iproute2 are needed)")]
    Run {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program refused its work.
    #[error("`{command}` failed: {message}")]
    Refused {
        /// The command line.
        command: String,
        /// Its standard error.
        message: String,
    },
    /// The thread that keeps the rules could not be started.
    #[error("cannot start a thread: {0}")]
    Worker(io::Error),
    /// Another process holds the table.
    #[error("the table `inet polyrail` is held by a running polyrail-gateway; stop that first")]
    Held,
}

/// The commands and rules that [`apply`] runs on this machine now, as a shell script.
///
/// # Errors
/// `direct:` lacks what it needs.
pub fn print(plan: &Plan) -> Result<String, InterceptError> {
    Ok(script(plan, plan.families(), false)?.to_string())
}

/// Sets the rules up, or again; they stay until [`remove`], also when this process ends.
///
/// # Errors
/// A needed thing is missing or a command failed; then the firewall rules are as before.
pub fn apply(plan: &Plan) -> Result<(), InterceptError> {
    script(plan, plan.families(), false)?.run()
}

/// Removes all that [`apply`] or a dead daemon left, and nothing else. Nothing to remove is fine.
///
/// # Errors
/// A command failed.
pub fn remove() -> Result<(), InterceptError> {
    removal().run()
}

impl Interception {
    /// Sets the rules up, whatever an earlier process left behind.
    ///
    /// # Errors
    /// A needed thing is missing, a command failed, or another daemon holds the rules.
    pub fn start(plan: Plan, on_exit: OnExit) -> Result<Self, InterceptError> {
        let families = plan.families();
        let hops = hops(&plan)?;
        let owned = match on_exit {
            OnExit::Closed => {
                Script::new(&plan, &hops, families, false).run()?;
                None
            }
            OnExit::Open => {
                let script = Script::new(&plan, &hops, families, true);
                script.run_routing()?;
                Some(OwnedTable::start(script.ruleset()).inspect_err(|_| clear_routing())?)
            }
        };
        Ok(Self { plan, families, hops, owned })
    }

    /// Rejects new TCP connections of the families that the cloud cannot reach, and takes those
    /// of the others. Connections that stand go on. Families that the configuration leaves out
    /// stay rejected. Takes some ten milliseconds when something changes, else nothing.
    ///
    /// # Errors
    /// The kernel did not take the change.
    pub fn set_families(&mut self, reachable: Families) -> Result<(), InterceptError> {
        let configured = self.plan.families();
        let wanted =
            Families { v4: reachable.v4 && configured.v4, v6: reachable.v6 && configured.v6 };
        if wanted == self.families {
            return Ok(());
        }
        let change = ruleset::families_change(wanted);
        match &mut self.owned {
            Some(owned) => owned.run(&change, || system::carried() == Some(wanted))?,
            None => system::nft(&change)?,
        }
        self.families = wanted;
        Ok(())
    }

    /// The families whose connections are taken now.
    pub fn families(&self) -> Families {
        self.families
    }

    /// Reads the carrier's routes again and rebuilds ours: for `direct:`, after its carrier's
    /// interface came back (its routes are lost with it) or got another router.
    ///
    /// # Errors
    /// The carrier has no route, or a command failed.
    pub fn refresh(&mut self) -> Result<(), InterceptError> {
        self.hops = hops(&self.plan)?;
        Script::new(&self.plan, &self.hops, self.families, self.owned.is_some()).run_routing()
    }

    /// Rebuilds the rules if the program that holds them has died; returns whether it had.
    /// To be called every second or so; costs one system call.
    ///
    /// # Errors
    /// As for [`Self::start`]; the next call tries again.
    pub fn watch(&mut self) -> Result<bool, InterceptError> {
        let Some(owned) = &mut self.owned else { return Ok(false) };
        if owned.lives() {
            return Ok(false);
        }
        // With the carrier's ways as they were: it may be down just now.
        let script = Script::new(&self.plan, &self.hops, self.families, true);
        *owned = OwnedTable::start(script.ruleset())?;
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

fn script(plan: &Plan, families: Families, owned: bool) -> Result<Script, InterceptError> {
    Ok(Script::new(plan, &hops(plan)?, families, owned))
}

fn hops(plan: &Plan) -> Result<system::Hops, InterceptError> {
    match plan.other() {
        Other::Reject => Ok(system::Hops::default()),
        Other::Direct { interface } => system::hops(interface),
    }
}

fn clear_routing() {
    if let Err(error) = removal().run_routing() {
        tracing::warn!(%error, "routing rules of interception were left behind");
    }
}

//! The addresses of names, by the name servers and the hosts file of this host.
//!
//! `/etc/resolv.conf` and `/etc/hosts` are read again when they change.

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, ResolverBuilder, TokioResolver};
use polyrail_model::HostName;

use super::{LOOKUPS_MAX, ResolveError};

#[derive(Default)]
pub(super) struct Names(RefCell<State>);

#[derive(Default)]
struct State {
    resolver: Option<TokioResolver>,
    /// When the files were last changed, and looked at.
    changed: [Option<SystemTime>; 2],
    looked_at: Option<Instant>,
}

impl Names {
    pub(super) fn lookup(
        &self,
        name: HostName,
    ) -> impl Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + use<> {
        let resolver = self.0.borrow_mut().current();
        async move { addresses(&resolver?, &name).await }
    }
}

async fn addresses(resolver: &TokioResolver, name: &HostName) -> Result<Vec<IpAddr>, ResolveError> {
    let found = resolver.lookup_ip(name.as_str()).await;
    found.map(|found| found.iter().collect()).map_err(|error| classify(&error))
}

impl State {
    /// The resolver for the current files; the last one if they cannot be read.
    fn current(&mut self) -> Result<TokioResolver, ResolveError> {
        let now = Instant::now();
        if self.looked_at.is_none_or(|at| now >= at + LOOK_EVERY) {
            self.looked_at = Some(now);
            let changed = FILES.map(|file| fs::metadata(file).and_then(|f| f.modified()).ok());
            if self.resolver.is_none() || changed != self.changed {
                match Resolver::builder_tokio().and_then(build) {
                    Ok(resolver) => (self.resolver, self.changed) = (Some(resolver), changed),
                    Err(error) => tracing::warn!(%error, "cannot read /etc/resolv.conf"),
                }
            }
        }
        let none = || ResolveError::Temporary("no name servers".to_owned());
        self.resolver.clone().ok_or_else(none)
    }
}

/// A resolver with these name servers, and the options for many lookups at once.
fn build(mut builder: ResolverBuilder<TokioRuntimeProvider>) -> Result<TokioResolver, NetError> {
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // Two servers are queried at once, because the next one gets its turn only after the timeout of
    // the first, which is that of the whole lookup.
    options.num_concurrent_reqs = SERVERS_AT_ONCE;
    options.max_active_requests = 2 * LOOKUPS_MAX;
    builder.build()
}

fn classify(error: &NetError) -> ResolveError {
    if error.is_nx_domain() {
        ResolveError::NotFound("no such name".to_owned())
    } else if error.is_no_records_found() {
        ResolveError::NotFound("no addresses".to_owned())
    } else {
        ResolveError::Temporary(error.to_string())
    }
}

/// The maximum number of sockets of one lookup: of both families, for each of the servers, with the
/// attempts of `hickory-net` 0.26, which keeps the socket of each earlier attempt.
pub(super) const SOCKETS_MAX: usize = 2 * SERVERS_AT_ONCE * ATTEMPTS;
/// `UdpClientStream::max_retries`, which counts the first attempt.
const ATTEMPTS: usize = 3;
/// The name servers that a lookup queries at once.
const SERVERS_AT_ONCE: usize = 2;
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// How often the files are checked for changes, if there are lookups.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;

//! The channels between the workers of a cloud: one mailbox a worker.
//!
//! A sender never waits. A letter that would exceed the bounds of a mailbox is dropped and counted:
//! a tunnel's gateway dials again, and a datagram is lost as in a full socket. Letters of one
//! worker to another keep their order, so a tunnel arrives before the datagrams that are handed
//! over after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use polyrail_admin::metrics::Count;
use polyrail_relay::{MovingTunnel, Workers};
use polyrail_tunnel::quic::Stray;

/// What a worker sends to another one.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A tunnel whose gateway the receiver owns.
    Tunnel(Box<MovingTunnel>),
    /// Datagrams that are for the receiver.
    Datagrams(Stray),
    /// The process shuts down.
    ShutDown,
    /// The first worker asks whether the receiver's loop turns; numbered from 1.
    Ping(u64),
}

/// The mailbox of a worker, for the others.
#[derive(Clone)]
struct Mailbox {
    letters: Sender<Letter>,
    waker: Arc<mio::Waker>,
    load: Arc<Load>,
}

/// The size of a mailbox's contents, and the last ping that its worker has answered.
#[derive(Debug, Default)]
struct Load {
    tunnels: AtomicUsize,
    datagram_bytes: AtomicUsize,
    answered: AtomicU64,
}

/// A worker's access to all mailboxes.
pub(crate) struct Post {
    workers: Workers,
    letters: Receiver<Letter>,
    mailboxes: Vec<Mailbox>,
    /// The number of workers that have shut down.
    over: Arc<AtomicUsize>,
    is_over: bool,
    pings: u64,
    tunnels: u64,
    tunnels_dropped: u64,
    datagrams: u64,
    datagrams_dropped: u64,
}

impl Post {
    /// The access of each worker; the wakers are those of their loops.
    pub(crate) fn of_all(wakers: &[Arc<mio::Waker>]) -> Vec<Self> {
        let (mut mailboxes, mut receivers) = (Vec::new(), Vec::new());
        for waker in wakers {
            let (letters, receiver) = channel();
            mailboxes.push(Mailbox { letters, waker: waker.clone(), load: Arc::default() });
            receivers.push(receiver);
        }
        let over = Arc::<AtomicUsize>::default();
        let one = |(own, letters)| Self {
            workers: Workers { own, count: mailboxes.len() },
            letters,
            mailboxes: mailboxes.clone(),
            over: over.clone(),
            is_over: false,
            pings: 0,
            tunnels: 0,
            tunnels_dropped: 0,
            datagrams: 0,
            datagrams_dropped: 0,
        };
        receivers.into_iter().enumerate().map(one).collect()
    }

    /// The next letter; call it until `None` after a wake-up.
    pub(crate) fn take(&mut self) -> Option<Letter> {
        let letter = self.letters.try_recv().ok()?;
        let load = &self.mailboxes[self.workers.own].load;
        match &letter {
            Letter::Tunnel(_) => {
                load.tunnels.fetch_sub(1, Ordering::Relaxed);
            }
            Letter::Datagrams(stray) => {
                load.datagram_bytes.fetch_sub(charge(stray), Ordering::Relaxed);
            }
            Letter::Ping(number) => load.answered.store(*number, Ordering::Relaxed),
            Letter::ShutDown => {}
        }
        Some(letter)
    }

    /// Sends a tunnel to its worker, or drops and thereby closes it.
    pub(crate) fn send_tunnel(&mut self, tunnel: MovingTunnel) {
        let to = tunnel.to;
        let is_sent = self.mailboxes.get(to).is_some_and(|mailbox| {
            let waiting = &mailbox.load.tunnels;
            fits(waiting, 1, TUNNELS_MAX) && mailbox.send(Letter::Tunnel(Box::new(tunnel)))
        });
        self.tunnels += u64::from(is_sent);
        self.tunnels_dropped += u64::from(!is_sent);
    }

    /// Sends datagrams to their worker, or drops them.
    pub(crate) fn send_datagrams(&mut self, stray: Stray) {
        let (to, count) = (usize::from(stray.worker), stray.count());
        let is_sent = self.mailboxes.get(to).is_some_and(|mailbox| {
            let waiting = &mailbox.load.datagram_bytes;
            fits(waiting, charge(&stray), DATAGRAM_BYTES_MAX)
                && mailbox.send(Letter::Datagrams(stray))
        });
        let counter = if is_sent { &mut self.datagrams } else { &mut self.datagrams_dropped };
        *counter += count;
    }

    /// Tells the other workers that the process shuts down.
    pub(crate) fn shut_down(&self) {
        for mailbox in self.others() {
            mailbox.send(Letter::ShutDown);
        }
    }

    /// Whether the loops of all other workers turn: they have answered the last ping. Then sends
    /// the next one.
    pub(crate) fn check(&mut self) -> bool {
        let answered = |mailbox: &Mailbox| mailbox.load.answered.load(Ordering::Relaxed);
        if self.others().any(|mailbox| answered(mailbox) < self.pings) {
            return false;
        }
        self.pings += 1;
        for mailbox in self.others() {
            mailbox.send(Letter::Ping(self.pings));
        }
        true
    }

    /// This worker has shut down. It goes on handing over until all have.
    pub(crate) fn end(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.over.fetch_add(1, Ordering::Relaxed);
            self.others().for_each(Mailbox::wake);
        }
    }

    /// Whether all workers have shut down.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) >= self.workers.count
    }

    /// Tunnels and datagrams that this worker has handed over, or dropped.
    pub(crate) fn counts(&self) -> Vec<Count> {
        vec![
            ("tunnels", self.tunnels),
            ("tunnels_dropped", self.tunnels_dropped),
            ("datagrams", self.datagrams),
            ("datagrams_dropped", self.datagrams_dropped),
        ]
    }

    /// Wakes the own loop: letters wait.
    pub(crate) fn wake_own(&self) {
        self.mailboxes[self.workers.own].wake();
    }

    fn others(&self) -> impl Iterator<Item = &Mailbox> {
        let own = self.workers.own;
        let others = self.mailboxes.iter().enumerate().filter(move |(number, _)| *number != own);
        others.map(|(_, mailbox)| mailbox)
    }
}

impl Mailbox {
    fn send(&self, letter: Letter) -> bool {
        let is_sent = self.letters.send(letter).is_ok();
        self.wake();
        is_sent
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a worker");
        }
    }
}

/// The memory of datagrams that wait.
fn charge(stray: &Stray) -> usize {
    stray.len() + LETTER
}

/// Adds a size unless the sum would exceed the maximum.
fn fits(waiting: &AtomicUsize, size: usize, max: usize) -> bool {
    let fits = waiting.fetch_add(size, Ordering::Relaxed) + size <= max;
    if !fits {
        waiting.fetch_sub(size, Ordering::Relaxed);
    }
    fits
}

/// Tunnels that wait for one worker: as many as handshakes in progress.
const TUNNELS_MAX: usize = 1_024;
/// What a letter takes besides its datagrams; about twice its size.
const LETTER: usize = 512;
/// Bytes of datagrams that wait for one worker: as in its socket.
const DATAGRAM_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use mio::{Poll, Token, Waker};
    use polyrail_model::Identity;
    use polyrail_tunnel::{Established, Parcel, Tunnel, TunnelEvent};

    use super::*;
    use crate::fake;

    fn posts(count: usize) -> (Vec<Poll>, Vec<Post>) {
        let polls: Vec<Poll> = (0..count).map(|_| Poll::new().unwrap()).collect();
        let wakers: Vec<Arc<Waker>> = polls
            .iter()
            .map(|poll| Arc::new(Waker::new(poll.registry(), Token(0)).unwrap()))
            .collect();
        (polls, Post::of_all(&wakers))
    }

    fn tunnel(to: usize) -> MovingTunnel {
        let name = Identity::new("train").unwrap();
        let (near, _) = fake::pair(&name, &name, [0; 32]).unwrap();
        let mut tunnel: Box<dyn Tunnel> = Box::new(near);
        let Some(TunnelEvent::Up(up)) = tunnel.poll_event() else { panic!("it is up") };
        let up: Established = up;
        let parcel: Parcel = tunnel.pack(to).unwrap();
        MovingTunnel { to, parcel, event: TunnelEvent::Up(up), begun: Instant::now() }
    }

    #[test]
    fn full_mailbox_drops_and_counts_tunnels() {
        let (_polls, mut posts) = posts(3);
        // A socket each would exceed the limit of descriptors.
        posts[0].mailboxes[2].load.tunnels.store(TUNNELS_MAX - 1, Ordering::Relaxed);
        for to in [2, 2, 1, 9] {
            posts[0].send_tunnel(tunnel(to));
        }
        assert_eq!(posts[0].counts()[..2], [("tunnels", 2), ("tunnels_dropped", 2)]);
        for (worker, waiting) in [(1, 1), (2, 1), (0, 0)] {
            let letters = std::iter::from_fn(|| posts[worker].take());
            let tunnels = letters.filter(|letter| matches!(letter, Letter::Tunnel(_))).count();
            assert_eq!(tunnels, waiting, "of worker {worker}");
        }
        posts[0].send_tunnel(tunnel(2));
        assert_eq!(posts[0].counts()[0], ("tunnels", 3), "there is room again");
    }

    #[test]
    fn process_ends_with_the_last_worker_and_a_silent_worker_is_noticed() {
        let (_polls, mut posts) = posts(2);
        assert!(posts[0].check() && !posts[0].check());
        assert!(matches!(posts[1].take(), Some(Letter::Ping(1))));
        assert!(posts[0].check() && posts[1].take().is_some() && posts[1].take().is_none());
        posts[0].shut_down();
        assert!(matches!(posts[1].take(), Some(Letter::ShutDown)) && posts[0].take().is_none());
        posts[0].end();
        posts[0].end();
        assert!(!posts[0].is_over() && !posts[1].is_over());
        posts[1].end();
        assert!(posts[0].is_over() && posts[1].is_over());
    }
}

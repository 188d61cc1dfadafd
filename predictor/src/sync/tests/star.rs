//! One cloud and several gateways that write all the time: little is said beside what is new, and
//! all end equal.

use super::*;

/// What one side of a session has said.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    frames: u64,
    records: u64,
    /// Whole pages of how far trips are known; answers are shorter.
    pages: u64,
    page_bytes: u64,
    digests: u64,
    bytes: u64,
}

impl Said {
    fn count(&mut self, message: &SyncMessage) {
        self.frames += 1;
        self.bytes += bytes(message);
        match message {
            SyncMessage::Known(trips) if trips.len() > 40 => {
                self.pages += 1;
                self.page_bytes += bytes(message);
            }
            SyncMessage::Known(_) => {}
            SyncMessage::Records(records) => self.records += records.len() as u64,
            SyncMessage::Digest(_) => self.digests += 1,
        }
    }
}

/// Somebody on one end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Gateway(usize),
    Cloud(usize),
}

#[derive(Debug)]
struct Star {
    now: Instant,
    from: Instant,
    cloud: MemoryLedger,
    /// The cloud's sides, by gateway.
    sides: Vec<Sync>,
    gateways: Vec<(MemoryLedger, Sync)>,
    said: BTreeMap<End, Said>,
    wire: BTreeMap<(Instant, u64), (End, SyncMessage)>,
    next: u64,
    random: Pcg64,
    loss: f64,
    delay_ms_max: u64,
    /// Whether the cloud passes on what a gateway has said.
    relays: bool,
    /// The next number of each trip under way.
    trips: BTreeMap<u64, u32>,
}

impl Star {
    /// All know the same old trips.
    fn new(seed: u64, gateways: usize, old: u64) -> Self {
        println!("seed {seed}");
        let now = base();
        let mut ledger = MemoryLedger::default();
        (0..old).for_each(|trip| filled(&mut ledger, trip, 3));
        let mut star = Self {
            now,
            from: now,
            cloud: ledger.clone(),
            sides: (0..gateways).map(|_| Sync::new(now, Share::All)).collect(),
            gateways: (0..gateways).map(|_| (ledger.clone(), Sync::new(now, Share::All))).collect(),
            said: BTreeMap::new(),
            wire: BTreeMap::new(),
            next: 0,
            random: Pcg64::seed_from_u64(seed),
            loss: 0.0,
            delay_ms_max: 50,
            relays: true,
            trips: BTreeMap::new(),
        };
        star.sides.iter_mut().for_each(|side| side.connected(now));
        star.gateways.iter_mut().for_each(|(_, side)| side.connected(now));
        star.drain();
        star
    }

    fn drain(&mut self) {
        for number in 0..self.sides.len() {
            while let Some((_, message)) = self.sides[number].poll(self.now, &self.cloud).unwrap() {
                self.put(End::Cloud(number), End::Gateway(number), message);
            }
            let (ledger, side) = &mut self.gateways[number];
            let mut said = Vec::new();
            while let Some((_, message)) = side.poll(self.now, ledger).unwrap() {
                said.push(message);
            }
            for message in said {
                self.put(End::Gateway(number), End::Cloud(number), message);
            }
        }
    }

    fn put(&mut self, from: End, to: End, message: SyncMessage) {
        self.said.entry(from).or_default().count(&message);
        if self.random.random_bool(self.loss) {
            return;
        }
        let delay = Duration::from_millis(self.random.random_range(1..=self.delay_ms_max));
        self.next += 1;
        self.wire.insert((self.now + delay, self.next), (to, message));
    }

    /// A gateway sees the next handover of a trip.
    fn see(&mut self, gateway: usize, trip: u64) {
        let sequence = self.trips.entry(trip).or_default();
        let seen = handover(trip, *sequence);
        *sequence += 1;
        let (ledger, side) = &mut self.gateways[gateway];
        ledger.append(std::slice::from_ref(&seen)).unwrap();
        side.added(self.now, &seen);
        self.drain();
    }

    fn hear(&mut self, to: End, message: SyncMessage) {
        match to {
            End::Gateway(number) => {
                let (ledger, side) = &mut self.gateways[number];
                side.on_message(self.now, ledger, message).unwrap();
            }
            End::Cloud(number) => {
                let side = &mut self.sides[number];
                let fresh = side.on_message(self.now, &mut self.cloud, message).unwrap();
                let others = self.sides.iter_mut().enumerate().filter(|(one, _)| *one != number);
                for (_, side) in others.filter(|_| self.relays) {
                    for one in &fresh {
                        side.relayed(self.now, one);
                    }
                }
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let sides = self.sides.iter().chain(self.gateways.iter().map(|(_, side)| side));
            let next = arrival.into_iter().chain(sides.filter_map(Sync::next_timeout)).min();
            let Some(at) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(at);
            while let Some(entry) = self.wire.first_entry().filter(|one| one.key().0 <= self.now) {
                let (to, message) = entry.remove();
                self.hear(to, message);
            }
            self.drain();
        }
        self.now = until;
    }

    /// The gateways' trains move, and the last gateway writes for 20 trains.
    fn move_for(&mut self, seconds: u64) {
        for second in 0..seconds {
            let last = self.gateways.len() - 1;
            for gateway in 0..last {
                // A new trip begins in the middle, for each at another time.
                let half = u64::from((second + 97 * gateway as u64) % 3_600 >= 1_800);
                if (second + gateway as u64).is_multiple_of(4) {
                    self.see(gateway, 10_000 + 2 * gateway as u64 + half);
                }
            }
            for train in 0..6 {
                self.see(last, 20_000 + (second * 6 + train) % 20);
            }
            self.run_for(Duration::from_secs(1));
        }
    }

    fn forget(&mut self) {
        self.said.clear();
        self.from = self.now;
    }

    fn are_equal(&self) -> bool {
        let equal = |ledger: &MemoryLedger| ledger.handovers().eq(self.cloud.handovers());
        self.gateways.iter().all(|(ledger, _)| equal(ledger))
    }

    /// The most that one side of a session has said; prints all.
    fn most(&self, name: &str) -> Said {
        let minutes = (self.now - self.from).as_secs_f64() / 60.0;
        let mut most = Said::default();
        for (end, said) in &self.said {
            let rate = |number: u64| number as f64 / minutes;
            println!(
                "{name} {end:?}: a minute {:.1} frames, {:.1} records, {:.2} pages of {:.0} bytes, \
                 {:.2} digests, {:.0} bytes",
                rate(said.frames),
                rate(said.records),
                rate(said.pages),
                rate(said.page_bytes),
                rate(said.digests),
                rate(said.bytes)
            );
            most.pages = most.pages.max(said.pages);
            most.page_bytes = most.page_bytes.max(said.page_bytes);
            most.bytes = most.bytes.max(said.bytes);
        }
        most
    }
}

#[test]
fn where_all_write_all_the_time_little_is_said_beside_it() {
    // Of pages less than one record a minute; where each fiftieth message is lost, and others come
    // in disorder, two on the session of 20 trains.
    for (loss, delay_ms_max, records) in [(0.0, 50, 1), (0.02, 400, 2)] {
        let mut star = Star::new(1, 5, 400);
        (star.loss, star.delay_ms_max) = (loss, delay_ms_max);
        star.move_for(60);
        star.forget();
        star.move_for(3_600);
        let most = star.most("pushed");
        star.run_for(MINUTE * 10);
        assert!(star.are_equal());
        assert!(most.page_bytes <= records * 62 * 60, "{loss}: {most:?}");
    }
}

/// As with a cloud that does not pass on: what is new comes by telling alone.
#[test]
fn digests_that_never_agree_cost_little() {
    let mut star = Star::new(2, 3, 400);
    star.relays = false;
    star.move_for(600);
    star.forget();
    star.move_for(3_600);
    let most = star.most("told");
    // Each trip that begins may end a pause.
    assert!(most.pages <= 64, "{most:?}");
    star.run_for(MINUTE * 20);
    assert!(star.are_equal());
}

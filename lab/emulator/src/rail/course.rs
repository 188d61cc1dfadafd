//! The trips of the rail bench, their workloads, and the bounds of these workloads.
//!
//! A [`Course`] decides everything that contenders share: links, handovers, telemetry, and the
//! moments and sizes of all transfers. `polyrail-lab rail` plays it in real time with real daemons,
//! `polyrail-sim rail` in virtual time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fluid::Fluid;
use super::profile::{CarrierProfile, Speed};
use super::route::Route;
use super::trip::Trip;
use crate::dice::Dice;
use crate::link::ScheduleError;

/// One trip of the bench.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// The speed of the train in km/h: 0, 200, 300 or 350.
    pub speed_kmh: u32,
    /// The percentage of handovers that fail at 300 km/h: the generator's rates times this over 6.
    pub failures: f64,
    /// Decides the track and the trip. Seeds from [`Course::HELD_BACK`] on are never tuned on.
    pub seed: u64,
    /// The length of the trip in seconds.
    pub seconds: u64,
    /// The number of carriers, from 1 to 8. Older records have two.
    #[serde(default = "both")]
    pub carriers: u8,
}

fn both() -> u8 {
    Course::CARRIERS
}

/// The load of a trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Downloads of 256 KB, 1 MB and 4 MB at random moments, one at a time.
    #[default]
    Downloads,
    /// Uploads of 256 KB and 1 MB at random moments, one at a time.
    Uploads,
    /// One download of 100 s, or until the trip ends.
    Bulk,
    /// Messages of 20 users.
    Messages,
    /// The same messages next to the download of `Bulk`, which another user has.
    MessagesBulk,
    /// A call, over UDP, next to the download of `Bulk`, which another user has.
    CallBulk,
    /// Downloads of 4 MB over the users' own QUIC connections, one at a time.
    QuicDownloads,
    /// The download of `Bulk` over a user's own QUIC connection with packets of the length of a
    /// VPN's.
    QuicBulk,
    /// Messages as in `Messages`, each in a UDP datagram from a new port.
    Requests,
    /// Downloads of 20 users, several at a time: 30 KB to 4 MB at random moments.
    Train,
}

/// A planned transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// The user, from 0.
    pub user: usize,
    /// When the user connects, counted from the trip's beginning.
    pub at: Duration,
    /// When the user gives up.
    pub until: Duration,
    /// Its size; `u64::MAX` never ends.
    pub bytes: u64,
    /// From the user to the server.
    pub up: bool,
}

/// A planned message: [`Message::UP`] bytes to the server, which answers [`Message::DOWN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// When it is sent, counted from the trip's beginning.
    pub at: Duration,
    /// The user, from 0.
    pub user: usize,
}

/// A planned call: 50 packets a second in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it begins, counted from the trip's beginning.
    pub at: Duration,
    /// The number of packets in each direction.
    pub packets: u32,
}

/// The time of a transfer over one link with the sum of the carriers' rates and the least delay,
/// without congestion control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// From the user's connect, with the handshake's round trip, in seconds.
    pub fluid: f64,
    /// The same from the request, because the gateway answers the SYN.
    pub split: f64,
}

impl Course {
    /// The first seed that is never tuned on.
    pub const HELD_BACK: u64 = 50_000;
    /// The usual number of carriers: POLYCORN's A and B.
    pub const CARRIERS: u8 = 2;

    /// Its track.
    ///
    /// # Errors
    /// There are no figures for trains of this speed.
    pub fn route(&self) -> Result<Route, super::SpeedError> {
        let speed: Speed = self.speed_kmh.to_string().parse()?;
        let metres = START + speed.metres_per_second() * self.seconds as f64 + BEYOND;
        let carriers = CarrierProfile::mix(self.carriers.into());
        Ok(Route::new(self.seed, speed, metres, &carriers).with_failures(self.failures / GENERATED))
    }

    /// Its trip.
    ///
    /// # Errors
    /// A schedule cannot hold it.
    pub fn trip(&self, route: &Route) -> Result<Trip, ScheduleError> {
        self.numbered(route, TRIP)
    }

    /// This many earlier trips over the same stretch.
    ///
    /// # Errors
    /// A schedule cannot hold one.
    pub fn earlier(&self, route: &Route, count: u64) -> Result<Vec<Trip>, ScheduleError> {
        (0..count.min(TRIP)).map(|number| self.numbered(route, number)).collect()
    }

    fn numbered(&self, route: &Route, number: u64) -> Result<Trip, ScheduleError> {
        Trip::new(route, number, START, self.length())
    }

    /// Its length.
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// When the load of a workload begins.
    pub fn begin(&self, workload: Workload) -> Duration {
        let transfer = self.transfers(workload).first().map(|one| one.at);
        let message = self.messages(workload).first().map(|one| one.at);
        transfer.into_iter().chain(message).min().unwrap_or(BEGIN)
    }

    /// The transfers of a workload in their order.
    pub fn transfers(&self, workload: Workload) -> Vec<Transfer> {
        match workload {
            Workload::Downloads => self.in_slots(&DOWNLOADS, false),
            Workload::Uploads => self.in_slots(&UPLOADS, true),
            Workload::QuicDownloads => self.in_slots(&DOWNLOADS[2..], false),
            Workload::Bulk | Workload::MessagesBulk | Workload::CallBulk | Workload::QuicBulk => {
                let until = self.bulk_end();
                vec![Transfer { user: ALONE, at: BEGIN, until, bytes: u64::MAX, up: false }]
            }
            Workload::Train => self.at_random(),
            Workload::Messages | Workload::Requests => Vec::new(),
        }
    }

    /// The call of a workload; it lasts as long as the download beside it.
    pub fn call(&self, workload: Workload) -> Option<Call> {
        let length = self.bulk_end() - BEGIN;
        let packets = length.div_duration_f64(Call::PACKET_EVERY) as u32;
        (workload == Workload::CallBulk).then_some(Call { at: BEGIN, packets })
    }

    fn bulk_end(&self) -> Duration {
        (BEGIN + BULK).min(self.length() - END)
    }

    /// Slots in random order, each with a transfer that begins at a random moment of its first
    /// second.
    fn in_slots(&self, slots: &[Slot], up: bool) -> Vec<Transfer> {
        let mut dice = Dice::labelled(self.seed, SLOTS);
        let (mut list, mut at) = (Vec::new(), BEGIN);
        loop {
            let mut round = slots.to_vec();
            for place in (1..round.len()).rev() {
                let other = (dice.unit() * (place + 1) as f64) as usize;
                round.swap(place, other.min(place));
            }
            for slot in round {
                let end = at + slot.length;
                if end > self.length() - END {
                    return list;
                }
                let begin = at + WITHIN.mul_f64(dice.unit());
                let (bytes, until) = (slot.bytes, end - GAP);
                list.push(Transfer { user: ALONE, at: begin, until, bytes, up });
                at = end;
            }
        }
    }

    /// Downloads whose sizes and moments do not depend on one another.
    fn at_random(&self) -> Vec<Transfer> {
        let mut dice = Dice::labelled(self.seed, OBJECTS);
        let (mut list, mut at) = (Vec::new(), BEGIN);
        loop {
            at += dice.pause(OBJECT_INTERVAL);
            let until = at + OBJECT_PATIENCE;
            if until > self.length() - END {
                return list;
            }
            let draw = dice.unit();
            let size = OBJECT_SIZES.partition_point(|(share, _)| *share <= draw);
            let bytes = OBJECT_SIZES[size].1;
            let user = list.len() % Message::USERS;
            list.push(Transfer { user, at, until, bytes, up: false });
        }
    }

    /// The messages of a workload in the order of their times.
    pub fn messages(&self, workload: Workload) -> Vec<Message> {
        if !workload.has_messages() {
            return Vec::new();
        }
        let mut list = Vec::new();
        for user in 0..Message::USERS {
            let mut dice = Dice::labelled(self.seed, MESSAGES + user as u64);
            let mut at = BEGIN;
            loop {
                at += dice.pause(INTERVAL);
                if at > self.length() - LAST_MESSAGE {
                    break;
                }
                list.push(Message { at, user });
            }
        }
        list.sort();
        list
    }
}

impl Workload {
    /// Whether users send messages.
    pub fn has_messages(self) -> bool {
        matches!(self, Self::Messages | Self::MessagesBulk | Self::Requests)
    }

    /// Whether the users' transfers use QUIC instead of TCP.
    pub fn is_quic(self) -> bool {
        matches!(self, Self::QuicDownloads | Self::QuicBulk)
    }

    /// Whether users send UDP.
    pub fn has_udp(self) -> bool {
        self.is_quic() || matches!(self, Self::CallBulk | Self::Requests)
    }
}

impl Call {
    /// The distance of two packets (ITU-T G.711 with 20 ms of speech in a packet).
    pub const PACKET_EVERY: Duration = Duration::from_millis(20);
    /// The bytes of a packet: 160 of speech and 12 of RTP.
    pub const PACKET: usize = 172;

    /// When a packet is sent, counted from the trip's beginning.
    pub fn sent_at(&self, packet: u32) -> Duration {
        self.at + Self::PACKET_EVERY * packet
    }

    /// The least one-way delay of each packet over the best carrier at each time, in seconds.
    pub fn bound(&self, way: &Fluid) -> Vec<f64> {
        let sent = (0..self.packets).map(|packet| self.sent_at(packet).as_secs_f64());
        sent.map(|sent| way.arrival(sent) - sent).collect()
    }
}

impl Message {
    /// The bytes of a message.
    pub const UP: usize = 100;
    /// The bytes of the answer.
    pub const DOWN: usize = 4;
    /// The users who send messages.
    pub const USERS: usize = 20;

    /// The time from sending to the answer over the best carrier at each time, in seconds.
    pub fn bound(&self, [up, down]: &[Fluid; 2]) -> f64 {
        let sent = self.at.as_secs_f64();
        down.arrival(up.arrival(sent)) - sent
    }
}

impl Transfer {
    /// Its bounds on a trip with these uplink and downlink. An endless transfer has
    /// none.
    pub fn bound(&self, [up, down]: &[Fluid; 2]) -> Bound {
        let begin = self.at.as_secs_f64();
        let over = |request: f64| match self.up {
            false => down.delivered(up.arrival(request), self.bytes),
            true => down.arrival(up.delivered(request, self.bytes)),
        };
        let shaken = down.arrival(up.arrival(begin));
        Bound { fluid: over(shaken) - begin, split: over(begin) - begin }
    }

    /// The bytes that the sum of the carriers can serve within its time.
    pub fn volume(&self, [up, down]: &[Fluid; 2]) -> f64 {
        let way = if self.up { up } else { down };
        way.volume(self.at.as_secs_f64(), self.until.as_secs_f64())
    }
}

/// The time for transfers of one size.
#[derive(Clone, Copy, Debug)]
struct Slot {
    bytes: u64,
    length: Duration,
}

const DOWNLOADS: [Slot; 3] = [
    Slot { bytes: 256_000, length: Duration::from_secs(4) },
    Slot { bytes: 1_000_000, length: Duration::from_secs(5) },
    Slot { bytes: 4_000_000, length: Duration::from_secs(9) },
];
const UPLOADS: [Slot; 2] = [
    Slot { bytes: 256_000, length: Duration::from_secs(5) },
    Slot { bytes: 1_000_000, length: Duration::from_secs(8) },
];
/// Shares of the objects that are not larger, and their bytes: on average 322 KB.
const OBJECT_SIZES: [(f64, u64); 4] =
    [(0.6, 30_000), (0.85, 256_000), (0.97, 1_000_000), (1.0, 4_000_000)];
/// The mean interval of all objects together: 7.7 Mbit/s, a third of what the carriers carry.
const OBJECT_INTERVAL: Duration = Duration::from_millis(333);
/// A user gives up after this time.
const OBJECT_PATIENCE: Duration = Duration::from_secs(24);
/// The user of transfers that come one at a time; users with smaller numbers send messages.
const ALONE: usize = Message::USERS;
/// The first transfer begins, after daemons and telemetry have started.
const BEGIN: Duration = Duration::from_secs(10);
const BULK: Duration = Duration::from_secs(100);
/// A transfer begins within the first second of its slot.
const WITHIN: Duration = Duration::from_secs(1);
/// Before a slot's end the user gives up.
const GAP: Duration = Duration::from_millis(200);
/// No slot reaches into the end of the trip.
const END: Duration = Duration::from_secs(1);
/// The mean interval of one user's messages.
const INTERVAL: Duration = Duration::from_millis(870);
/// No message is sent so shortly before the end.
const LAST_MESSAGE: Duration = Duration::from_secs(5);
/// The percentage of failing handovers of the generator at 300 km/h.
const GENERATED: f64 = 6.0;
/// Where trips begin, in metres along the track, and how far the track continues.
const START: f64 = 1_000.0;
const BEYOND: f64 = 3_000.0;
/// The number of the trip; earlier ones have smaller numbers.
const TRIP: u64 = 1_000;
/// Keep draws for transfers and for messages apart from others of the seed.
const SLOTS: u64 = 0x510;
const MESSAGES: u64 = 0x6e5;
const OBJECTS: u64 = 0x0b7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::fluids;

    const COURSE: Course =
        Course { speed_kmh: 300, failures: 6.0, seed: 7, seconds: 120, carriers: 2 };

    #[test]
    fn transfers_fit_into_the_trip_one_after_the_other() {
        for (workload, sizes, least) in
            [(Workload::Downloads, 3, 15), (Workload::Uploads, 2, 14), (Workload::Bulk, 1, 1)]
        {
            let list = COURSE.transfers(workload);
            assert!(list.len() >= least, "{workload:?}: {}", list.len());
            assert_eq!(list, COURSE.transfers(workload), "one seed, one plan");
            for pair in list.windows(2) {
                assert!(pair[0].until < pair[1].at);
            }
            assert!(list.iter().all(|one| one.at < one.until && one.until < COURSE.length()));
            let distinct: std::collections::BTreeSet<u64> =
                list.iter().map(|one| one.bytes).collect();
            assert_eq!(distinct.len(), sizes);
        }
        let other = Course { seed: 8, ..COURSE };
        assert_ne!(COURSE.transfers(Workload::Downloads), other.transfers(Workload::Downloads));
        let messages = COURSE.messages(Workload::Messages);
        assert!((1_900..3_000).contains(&messages.len()), "{}", messages.len());
        assert!(COURSE.messages(Workload::Downloads).is_empty());
        let quic = COURSE.transfers(Workload::QuicDownloads);
        assert!(quic.len() >= 11 && quic.iter().all(|one| one.bytes == 4_000_000));
        let call = COURSE.call(Workload::CallBulk).unwrap();
        assert_eq!((call.packets, COURSE.call(Workload::Bulk)), (5_000, None));
    }

    #[test]
    fn objects_of_twenty_users_begin_at_random_and_overlap() {
        let (mut count, mut by_size) = (0, std::collections::BTreeMap::new());
        for seed in 0..20 {
            let course = Course { seed, ..COURSE };
            let list = course.transfers(Workload::Train);
            assert_eq!(list, course.transfers(Workload::Train), "one seed, one plan");
            assert!(list.is_sorted_by_key(|one| one.at));
            assert!(list.windows(2).any(|pair| pair[0].until > pair[1].at));
            for (number, one) in list.iter().enumerate() {
                assert_eq!((one.user, one.up), (number % Message::USERS, false));
                assert!(one.until < COURSE.length());
                *by_size.entry(one.bytes).or_insert(0.0) += 1.0;
            }
            count += list.len();
        }
        // 85 s of each trip, three a second.
        assert!((4_800..5_400).contains(&count), "{count}");
        let shares: Vec<(u64, f64)> =
            by_size.into_iter().map(|(bytes, number)| (bytes, number / count as f64)).collect();
        let wanted = [(30_000, 0.6), (256_000, 0.25), (1_000_000, 0.12), (4_000_000, 0.03)];
        assert_eq!(shares.len(), wanted.len());
        for ((bytes, share), (size, wanted)) in shares.into_iter().zip(wanted) {
            assert!(bytes == size && (share - wanted).abs() < 0.02, "{bytes}: {share}");
        }
    }

    #[test]
    fn split_bound_saves_the_round_trip_of_the_handshake() {
        let trip = COURSE.trip(&COURSE.route().unwrap()).unwrap();
        let fluids = fluids(&trip);
        let mut saved = Vec::new();
        for transfer in COURSE.transfers(Workload::Downloads) {
            let Bound { fluid, split } = transfer.bound(&fluids);
            assert!(split > 0.1 && fluid.is_finite(), "{transfer:?}");
            saved.push(fluid - split);
        }
        saved.sort_by(f64::total_cmp);
        let median = saved[saved.len() / 2];
        assert!((0.08..0.2).contains(&median), "an RTT of about 114 ms: {median}");
    }

    #[test]
    fn factor_scales_the_share_of_failed_handovers() {
        let share = |failures: f64, speed_kmh: u32| {
            let (mut all, mut failed) = (0, 0);
            for seed in 0..60 {
                let course = Course { seed, failures, speed_kmh, ..COURSE };
                let trip = course.trip(&course.route().unwrap()).unwrap();
                for handover in trip.carriers.iter().flat_map(|carrier| &carrier.handovers) {
                    all += 1;
                    failed += u32::from(handover.outcome != super::super::HandoverResult::Success);
                }
            }
            f64::from(failed) / f64::from(all)
        };
        let (six, sixteen) = (share(6.0, 300), share(16.0, 300));
        assert!((0.04..0.08).contains(&six), "{six}");
        assert!((0.13..0.19).contains(&sixteen), "{sixteen}");
        assert!((0.05..0.10).contains(&share(6.0, 350)));
    }
}

//! Users by table, with a neighbour table that the test fills.

use std::collections::BTreeMap;

use super::*;

#[derive(Default)]
struct Fake {
    known: BTreeMap<IpAddr, [u8; 6]>,
    questions: usize,
    lists: usize,
}

impl Neighbours for Fake {
    fn origin(&mut self, address: IpAddr) -> Origin {
        self.questions += 1;
        match self.known.get(&address) {
            Some(link) => Origin::Neighbour(link.to_vec()),
            None if address.to_string().starts_with("10.9") => Origin::Unresolved,
            None => Origin::Elsewhere,
        }
    }

    fn questions(&self) -> usize {
        3
    }

    fn list(&mut self) -> HashMap<IpAddr, [u8; 6]> {
        self.lists += 1;
        self.known.clone().into_iter().collect()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn users(kind: UserKey) -> Users<Fake> {
    let known = [
        ("10.9.0.2", [2, 0, 0, 0, 0, 1]),
        ("fd09::1111", [2, 0, 0, 0, 0, 1]),
        ("fd09::2222", [2, 0, 0, 0, 0, 1]),
        ("10.9.0.3", [2, 0, 0, 0, 0, 3]),
    ];
    let known = known.into_iter().map(|(address, link)| (ip(address), link)).collect();
    Users::with_neighbours(kind, Fake { known, questions: 0, lists: 0 }).unwrap()
}

#[test]
fn addresses_with_one_link_address_are_one_user() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    let mut of = |address| users.user(now, ip(address));
    let device = of("10.9.0.2");
    for address in ["fd09::1111", "fd09::2222", "::ffff:10.9.0.2", "10.9.0.2"] {
        assert_eq!(of(address), device, "{address}");
    }
    assert_ne!(of("10.9.0.3"), device);
    // Behind a router: the address is the user.
    let routed = of("10.77.0.1");
    assert_eq!(of("10.77.0.1"), routed);
    assert_ne!(of("10.77.0.2"), routed);
}

#[test]
fn unresolved_addresses_of_a_link_are_one_user() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    let strangers = users.user(now, ip("10.9.0.77"));
    assert_eq!(users.user(now, ip("10.9.0.78")), strangers);
    assert_ne!(users.user(now, ip("10.77.0.1")), strangers);
    users.neighbours.known.insert(ip("10.9.0.77"), [2, 0, 0, 0, 0, 1]);
    let device = users.user(now, ip("10.9.0.2"));
    assert_eq!(users.user(now + UNRESOLVED_AGE / 2, ip("10.9.0.77")), strangers);
    assert_eq!(users.user_of_connection(now, ip("10.9.0.77")), device, "it has just resolved");
    users.user(now, ip("10.9.0.78"));
    users.neighbours.known.insert(ip("10.9.0.78"), [2, 0, 0, 0, 0, 1]);
    let of = |users: &mut Users<Fake>, age| users.user(now + age, ip("10.9.0.78"));
    assert_eq!(of(&mut users, UNRESOLVED_AGE), device, "soon after its resolution");
}

#[test]
fn floods_of_unanswered_datagrams_ask_little() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    for datagram in 0..1_000 {
        users.user(now + Duration::from_micros(datagram * 19), ip("10.9.0.77"));
    }
    assert_eq!(users.neighbours.questions, 1, "one address");
    // Four seconds of forged addresses: 100 at once and 500 a second.
    for number in 0..40_000_u32 {
        let [_, first, second, third] = number.to_be_bytes();
        let forged = IpAddr::from([10, 90 + first, second, third]);
        users.user(now + Duration::from_micros(100) * number, forged);
    }
    let asked = users.neighbours.questions;
    assert!((2_050..2_150).contains(&asked), "{asked}");
}

#[test]
fn floods_of_new_addresses_leave_others_their_users() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    let routed = users.user(now, ip("10.77.0.1"));
    let strangers = users.user(now, ip("10.9.0.77"));
    let bytes = |number: u32| number.to_be_bytes();
    let devices: Vec<IpAddr> = (0..4_000)
        .map(|number| {
            let [.., high, low] = bytes(number);
            let address = IpAddr::from([10, 80, high, low]);
            users.neighbours.known.insert(address, [4, 0, 0, 0, high, low]);
            address
        })
        .collect();
    let names: Vec<UserId> = devices.iter().map(|one| users.user(now, *one)).collect();
    assert!(!names.contains(&strangers), "a restart with many devices");
    assert_eq!((users.neighbours.questions, users.neighbours.lists), (100, 1));
    // A device takes ever new addresses for 50 s, then forges those of nobody on the link.
    for number in 0..100_000_u32 {
        let at = now + Duration::from_millis(number.into());
        let [_, third, high, low] = bytes(number);
        let address = IpAddr::from([10, 90 + third, high, low]);
        if number < 50_000 {
            users.neighbours.known.insert(address, [2, 0, 0, 0, 0, 7]);
        }
        users.user(at, address);
        assert!(users.cache.len() <= CACHE_MAX);
        let one = number as usize % devices.len();
        assert_eq!(users.user(at, devices[one]), names[one], "{number}");
        if number % 10_000 == 9_999 {
            assert_eq!(users.user(at, ip("10.77.0.1")), routed, "{number}");
            let new = IpAddr::from([10, 78, high, low]);
            assert_eq!(users.user(at, new), strangers, "{number}: no question is left");
            assert_ne!(users.user_of_connection(at, new), strangers, "{number}");
        }
    }
    assert!(users.neighbours.lists <= 101, "one a second");
}

#[test]
fn users_are_addresses_if_configured() {
    let (mut users, now) = (users(UserKey::Address), Instant::now());
    assert_ne!(users.user(now, ip("10.9.0.2")), users.user(now, ip("fd09::1111")));
    assert_eq!(users.user(now, ip("10.9.0.2")), users.user(now, ip("::ffff:10.9.0.2")));
    assert_eq!(users.neighbours.questions, 0);
}

#[test]
fn user_numbers_differ_between_processes() {
    let now = Instant::now();
    let of = || users(UserKey::LinkAddress).user(now, ip("10.9.0.2"));
    assert_ne!(of(), of());
}

#[test]
fn cache_expires_and_is_bounded() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    let first = users.user(now, ip("10.9.0.2"));
    users.neighbours.known.insert(ip("10.9.0.2"), [2, 0, 0, 0, 0, 9]);
    assert_eq!(users.user(now + CACHE_AGE / 2, ip("10.9.0.2")), first);
    assert_eq!(users.neighbours.questions, 1);
    assert_ne!(users.user(now + CACHE_AGE, ip("10.9.0.2")), first, "another device has it now");
    for number in 0..20_000u32 {
        let age = CACHE_AGE + number * Duration::from_millis(2);
        users.user(now + age, IpAddr::from(number.to_be_bytes()));
        assert!(users.cache.len() <= CACHE_MAX);
    }
    assert!(users.neighbours.questions > 20_000, "each was asked for");
}

#[test]
fn addresses_behind_routers_that_are_long_gone_make_room() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    let at = |number: usize| now + number as u32 * Duration::from_millis(2);
    for number in 0..CACHE_MAX {
        let [.., high, low] = (number as u32).to_be_bytes();
        users.user(at(number), IpAddr::from([10, 77, high, low]));
    }
    assert_eq!(users.cache.len(), CACHE_MAX);
    let half = CACHE_MAX / 2;
    users.user(at(half) + CACHE_AGE + ROUTED_KEPT, ip("10.76.0.1"));
    assert_eq!(users.cache.len(), half, "the first half are gone");
}

#[test]
fn programs_on_the_gateway_are_not_asked_for() {
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    assert_ne!(users.user(now, ip("127.0.0.1")), users.user(now, ip("10.9.0.77")));
    assert_eq!(users.neighbours.questions, 1);
}

#[test]
fn numbers_reach_the_cloud_whole() {
    let mut users = users(UserKey::Address);
    let now = Instant::now();
    let numbers = (0..64_u8).map(|host| users.user(now, IpAddr::from([10, 9, 1, host])).0);
    assert!(numbers.max().is_some_and(|most| most <= NUMBER_MAX));
}

#[test]
fn first_group_that_names_a_user_decides_its_weight() {
    let group = |name: &str, weight, links: &[&str], sources: &[&str]| GroupConfig {
        name: name.parse().unwrap(),
        weight,
        sources: sources.iter().map(|source| source.parse().unwrap()).collect(),
        link_addresses: links.iter().map(|link| link.parse().unwrap()).collect(),
    };
    let (mut users, now) = (users(UserKey::LinkAddress), Instant::now());
    users.user(now, ip("10.9.0.2"));
    assert!(users.take_weights().is_empty(), "without groups all are equal");
    users.set_groups(&[
        group("crew", 4, &["02:00:00:00:00:01"], &["10.77.1.0/24"]),
        group("staff", 2, &["02:00:00:00:00:01"], &["10.77.0.0/16", "fd77::/16"]),
    ]);
    let [(device, weight)] = users.take_weights()[..] else { panic!("one user is known") };
    assert_eq!((weight.get(), users.group_of(device)), (4, Some("crew")), "by link address");
    for (address, group, weight) in [
        ("10.77.1.9", Some("crew"), 4),
        ("10.77.2.9", Some("staff"), 2),
        ("fd77::1", Some("staff"), 2),
        ("10.9.0.3", None, 1),
    ] {
        let user = users.user(now, ip(address));
        assert_eq!(users.take_weights(), [(user, Weight::new(weight))], "{address}");
        assert_eq!(users.group_of(user), group, "{address}");
        users.user(now, ip(address));
        assert!(users.take_weights().is_empty(), "it is known");
    }
    users.set_groups(&[]);
    let weights = users.take_weights();
    assert!(weights.len() == 5 && weights.iter().all(|(_, weight)| weight.get() == 1));
}

//! Clouds that go dark, come back, drain and flap, against the rules of `docs/carriers.md`.

use super::*;

/// A choice between clouds whose state a test sets.
struct World {
    base: Instant,
    now: Instant,
    choice: Choice,
    views: Vec<View>,
    moves: Vec<(u64, Move)>,
}

fn up() -> View {
    View { reachable: true, srtt: Duration::from_millis(50), ..View::default() }
}

impl World {
    /// The first cloud is reachable, the others are not connected.
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let mut views = vec![View::default(); count];
        views[0] = up();
        let choice = Choice::new(now, count);
        let mut world = Self { base: now, now, choice, views, moves: Vec::new() };
        world.run(1_000);
        world
    }

    /// Looks every 100 ms.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            let moved = self.choice.look(self.now, &self.views);
            let at = self.now.duration_since(self.base).as_millis() as u64;
            self.moves.extend(moved.map(|moved| (at, moved)));
            self.now += Duration::from_millis(100);
        }
    }

    /// Runs until a cloud has this effort, at most a minute; returns the time in milliseconds.
    fn until(&mut self, cloud: usize, effort: Effort) -> u64 {
        let begun = self.now;
        while self.choice.effort(cloud) != effort {
            assert!(self.now - begun < Duration::from_secs(60), "{:?}", self.choice);
            self.run(100);
        }
        (self.now - begun).as_millis() as u64
    }

    fn take(&mut self) -> Vec<(usize, Reason)> {
        self.moves.drain(..).map(|(_, moved)| (moved.to, moved.reason)).collect()
    }
}

#[test]
fn single_cloud_never_moves_and_never_holds() {
    let mut world = World::new(1);
    world.views[0] = View { going: true, ..View::default() };
    world.run(60_000);
    assert_eq!(world.take(), []);
    assert!(!world.choice.holds_new(world.now));
    assert_eq!(world.choice.effort(0), Effort::Full);
}

#[test]
fn blackout_of_all_carriers_moves_nothing_although_the_other_cloud_answers_first() {
    for dark in [500, 1_600, 10_000, 60_000, 300_000] {
        let mut world = World::new(2);
        world.views[0].reachable = false;
        world.views[0].flows = 3;
        world.run(dark);
        world.views[1] = up();
        world.run(800);
        world.views[0].reachable = true;
        world.run(1_000);
        assert_eq!(world.take(), [], "{dark} ms");
        // The other cloud is left as soon as this one is steady.
        assert!(world.until(1, Effort::Off) <= 5_000);
        assert!(world.choice.is_calm());
    }
}

#[test]
fn new_flows_move_to_a_cloud_that_answers_where_the_current_one_does_not() {
    let mut world = World::new(3);
    assert_eq!(world.choice.effort(1), Effort::Off, "a standby cloud costs nothing");
    world.views[0].reachable = false;
    world.run(300);
    assert!(world.choice.holds_new(world.now), "new connections wait");
    assert_eq!(world.until(1, Effort::Full), 1_300);
    assert_eq!(world.choice.effort(2), Effort::Off);
    world.views[1] = up();
    world.run(1_300);
    assert_eq!(world.take(), [(1, Reason::Unreachable)]);
    assert!(!world.choice.holds_new(world.now));
    assert_eq!(world.choice.current(), 1);
    assert_eq!(world.choice.effort(0), Effort::Probe, "it has no flows");
    world.views[0].flows = 1;
    world.run(100);
    assert_eq!(world.choice.effort(0), Effort::Full, "its flows may resume");
}

#[test]
fn next_cloud_is_tried_if_the_first_standby_is_unreachable_too() {
    let mut world = World::new(3);
    world.views[0].reachable = false;
    let first = world.until(1, Effort::Full);
    let second = world.until(2, Effort::Full);
    assert_eq!((first, second), (1_600, 1_500));
    world.views[2] = up();
    world.run(1_500);
    assert_eq!(world.take(), [(2, Reason::Unreachable)]);
    assert_eq!(world.choice.effort(1), Effort::Probe, "it is preferred to the current one");
    world.run(20_000);
    assert!(!world.choice.holds_new(world.now));
}

#[test]
fn connections_wait_for_a_bounded_time() {
    let mut world = World::new(2);
    world.views[0].reachable = false;
    world.run(9_900);
    assert!(world.choice.holds_new(world.now));
    world.run(300);
    assert!(!world.choice.holds_new(world.now));
}

#[test]
fn cloud_that_is_going_away_keeps_its_flows_and_gets_no_new_ones() {
    let mut world = World::new(2);
    world.views[0] = View { going: true, flows: 2, ..up() };
    world.run(100);
    assert_eq!(world.choice.effort(1), Effort::Full, "at once");
    world.views[1] = up();
    world.run(100);
    assert_eq!(world.take(), [(1, Reason::Going)]);
    assert_eq!(world.choice.effort(0), Effort::Full);
    world.run(60_000);
    assert_eq!(world.take(), [], "it is reachable, but still going away");
    // It ends, and comes back.
    world.views[0] = View::default();
    world.run(1_000);
    assert_eq!(world.choice.effort(0), Effort::Probe);
    world.views[0] = up();
    world.run(9_900);
    assert_eq!(world.take(), []);
    world.run(300);
    assert_eq!(world.take(), [(0, Reason::Back)]);
    assert!(world.until(1, Effort::Off) <= 100, "without flows it is left");
}

#[test]
fn standby_cloud_is_kept_while_it_has_flows() {
    let mut world = World::new(2);
    world.views[0].reachable = false;
    world.views[1] = View { flows: 1, ..up() };
    world.run(4_000);
    world.views[0].reachable = true;
    world.run(30_000);
    assert_eq!(world.take(), [(1, Reason::Unreachable), (0, Reason::Back)]);
    assert_eq!(world.choice.effort(1), Effort::Full);
    world.views[1].flows = 0;
    world.run(100);
    assert_eq!(world.choice.effort(1), Effort::Off);
}

#[test]
fn preferred_cloud_that_keeps_failing_comes_back_ever_later() {
    let mut world = World::new(2);
    world.views[1] = up();
    let mut stays = Vec::new();
    for _ in 0..8 {
        world.views[0].reachable = false;
        world.run(5_000);
        world.views[0].reachable = true;
        let begun = world.now;
        while world.choice.current() == 1 {
            world.run(100);
        }
        stays.push((world.now - begun).as_secs());
    }
    assert_eq!(stays, [10, 20, 40, 80, 160, 320, 320, 320]);
    assert_eq!(world.take().len(), 16, "each failure moves twice");
    // After a good minute it counts as sound again.
    world.run(61_000);
    world.views[0].reachable = false;
    world.run(5_000);
    world.views[0].reachable = true;
    world.run(10_300);
    assert_eq!(world.choice.current(), 0);
}

#[test]
fn failure_of_another_cloud_does_not_shorten_the_wait_for_the_preferred_one() {
    let mut world = World::new(3);
    (world.views[1], world.views[2]) = (up(), up());
    world.views[0].reachable = false;
    world.run(5_000);
    world.views[0].reachable = true;
    world.run(10_300);
    assert_eq!(world.choice.current(), 0);
    world.views[0].reachable = false;
    world.run(5_000);
    world.views[1].reachable = false;
    world.run(5_000);
    assert_eq!(world.choice.current(), 2);
    world.views[0].reachable = true;
    world.run(18_000);
    assert_eq!(world.choice.current(), 2, "it had failed within a minute");
    world.run(3_000);
    assert_eq!(world.choice.current(), 0);
}

//! A train on its track: position, velocity and direction of travel, filtered.

use std::time::Instant;

use polyrail_model::Direction;

use crate::track::Spread;

/// The state after the last reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Along {
    pub at: Instant,
    pub metres: f64,
    /// Metres a second; less than zero towards the beginning.
    pub velocity: f64,
    spread: Spread,
    /// What the receiver errs for long.
    bias: f64,
    /// Which way it goes, kept while it stands; none before it has moved.
    pub direction: Option<Direction>,
    /// How far it has come that way.
    farthest: f64,
}

impl Along {
    pub fn new(at: Instant, metres: f64, error: f64) -> Self {
        let spread = Spread::new(error, VELOCITY);
        let (velocity, bias) = (0.0, BIAS * error);
        Self { at, metres, velocity, spread, bias, direction: None, farthest: metres }
    }

    /// With a direction and a velocity in it, of this deviation.
    pub fn moving(self, direction: Direction, speed: f64, deviation: f64) -> Self {
        let velocity = speed * direction.sign();
        let spread = Spread::new(self.spread.position.sqrt(), deviation);
        Self { velocity, spread, direction: Some(direction), ..self }
    }

    /// The state at a later time, as far as it is known.
    pub fn at(&self, now: Instant) -> Self {
        let time = now.saturating_duration_since(self.at).as_secs_f64();
        let mut later = *self;
        later.spread.grow(time);
        later.metres += later.velocity * time;
        later.at = self.at.max(now);
        later
    }

    /// One deviation of the position, in metres.
    pub fn error(&self) -> f64 {
        self.spread.position.max(0.0).sqrt().hypot(self.bias)
    }

    /// How far a reading of this error may be from the position.
    pub fn gate(&self, error: f64) -> f64 {
        (GATE * (self.spread.position + error * error).sqrt()).max(GATE_MIN)
    }

    /// A position of this error is read. True when the train has turned.
    pub fn read_position(&mut self, metres: f64, error: f64) -> bool {
        let miss = metres - self.metres;
        self.bias = BIAS * error;
        let [position, velocity] = self.spread.read_position(error);
        self.metres += position * miss;
        self.velocity += velocity * miss;
        self.turns()
    }

    /// A velocity of this error is read.
    pub fn read_velocity(&mut self, velocity: f64, error: f64) {
        let miss = velocity - self.velocity;
        let [position, change] = self.spread.read_velocity(error);
        self.metres += position * miss;
        self.velocity += change * miss;
    }

    /// Whether the sign of the velocity is known well.
    pub fn surely_moves(&self) -> bool {
        let speed = self.velocity.abs();
        speed > MOVES && speed > 3.0 * self.spread.velocity.max(0.0).sqrt()
    }

    /// Whether it surely goes against its direction: it shunts, or has not turned for good yet.
    pub fn reverses(&self) -> bool {
        let back = self.direction.map_or(0.0, |direction| -direction.sign() * self.velocity);
        back > BACK && back > 2.0 * self.spread.velocity.max(0.0).sqrt()
    }

    /// It is somewhere else on the track than was thought; speed and direction hold.
    pub fn jump(&mut self, metres: f64, error: f64) {
        self.spread = Spread::new(error, self.spread.velocity.max(0.0).sqrt().max(VELOCITY_JUMP));
        self.metres = metres;
        self.farthest = metres;
    }

    fn turns(&mut self) -> bool {
        let Some(direction) = self.direction else {
            let way = self.metres - self.farthest;
            if way.abs() > STARTS && self.velocity * way > 0.0 {
                self.direction = Some(if way < 0.0 { Direction::Down } else { Direction::Up });
                self.farthest = self.metres;
            }
            return false;
        };
        let sign = direction.sign();
        if (self.metres - self.farthest) * sign >= 0.0 {
            self.farthest = self.metres;
            return false;
        }
        let back = (self.farthest - self.metres) * sign;
        if back < TURN + 3.0 * self.spread.position.max(0.0).sqrt() || self.velocity * sign > -1.0 {
            return false;
        }
        self.farthest = self.metres;
        self.direction = Some(match direction {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        });
        true
    }
}

/// What a train's velocity may be before it is known: one deviation, in metres a second.
const VELOCITY: f64 = 30.0;
const VELOCITY_JUMP: f64 = 3.0;
/// The share of a reading's error that lasts for minutes, so that no filter averages it away.
const BIAS: f64 = 0.5;
/// A reading so many deviations off is refused, if it is this many metres off as well.
const GATE: f64 = 5.0;
const GATE_MIN: f64 = 40.0;
/// Faster than this, in metres a second, a train moves.
const MOVES: f64 = 2.0;
/// Faster than this against its direction, in metres a second, it reverses.
const BACK: f64 = 1.0;
/// So far a train moves before it has a direction, in metres.
const STARTS: f64 = 50.0;
/// So far a train goes back before it has turned and does not shunt, in metres.
const TURN: f64 = 100.0;

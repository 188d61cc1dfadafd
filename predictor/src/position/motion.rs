//! The filtered position, velocity and direction of a train on its track.

use std::time::Instant;

use polyrail_model::Direction;

use crate::track::Covariance;

/// The state after the last reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Motion {
    pub at: Instant,
    pub metres: f64,
    /// Metres per second; negative towards the beginning.
    pub velocity: f64,
    covariance: Covariance,
    /// The persistent part of the receiver's error.
    bias: f64,
    /// The direction of travel, kept while the train stands; none before it has moved.
    pub direction: Option<Direction>,
    /// The farthest position in that direction.
    farthest: f64,
}

impl Motion {
    pub fn new(at: Instant, metres: f64, error: f64) -> Self {
        let covariance = Covariance::new(error, VELOCITY);
        let (velocity, bias) = (0.0, BIAS * error);
        Self { at, metres, velocity, covariance, bias, direction: None, farthest: metres }
    }

    /// The state with a direction and a speed of this deviation.
    pub fn moving(self, direction: Direction, speed: f64, deviation: f64) -> Self {
        let velocity = speed * direction.sign();
        let covariance = Covariance::new(self.covariance.position.sqrt(), deviation);
        Self { velocity, covariance, direction: Some(direction), ..self }
    }

    /// The predicted state at a later time.
    pub fn at(&self, now: Instant) -> Self {
        let time = now.saturating_duration_since(self.at).as_secs_f64();
        let mut later = *self;
        later.covariance.grow(time);
        later.metres += later.velocity * time;
        later.at = self.at.max(now);
        later
    }

    /// One deviation of the position, in metres.
    pub fn error(&self) -> f64 {
        self.covariance.position.max(0.0).sqrt().hypot(self.bias)
    }

    /// The largest distance of a valid reading with this error.
    pub fn gate(&self, error: f64) -> f64 {
        (GATE * (self.covariance.position + error * error).sqrt()).max(GATE_MIN)
    }

    /// Takes a position with this error.
    pub fn read_position(&mut self, metres: f64, error: f64) {
        let miss = metres - self.metres;
        self.bias = BIAS * error;
        let [position, velocity] = self.covariance.read_position(error);
        self.metres += position * miss;
        self.velocity += velocity * miss;
        self.turn();
    }

    /// Takes a velocity with this error.
    pub fn read_velocity(&mut self, velocity: f64, error: f64) {
        let miss = velocity - self.velocity;
        let [position, change] = self.covariance.read_velocity(error);
        self.metres += position * miss;
        self.velocity += change * miss;
    }

    /// Whether the sign of the velocity is certain.
    pub fn surely_moves(&self) -> bool {
        let speed = self.velocity.abs();
        speed > MOVES && speed > 3.0 * self.covariance.velocity.max(0.0).sqrt()
    }

    /// Whether the train certainly moves against its direction: it shunts, or has not turned yet.
    pub fn reverses(&self) -> bool {
        let back = self.direction.map_or(0.0, |direction| -direction.sign() * self.velocity);
        back > BACK && back > 2.0 * self.covariance.velocity.max(0.0).sqrt()
    }

    /// Moves the train to another position of the track; speed and direction stay.
    pub fn jump(&mut self, metres: f64, error: f64) {
        self.covariance =
            Covariance::new(error, self.covariance.velocity.max(0.0).sqrt().max(VELOCITY_JUMP));
        self.metres = metres;
        self.farthest = metres;
    }

    fn turn(&mut self) {
        let way = self.metres - self.farthest;
        let Some(direction) = self.direction else {
            if way.abs() > STARTS && self.velocity * way > 0.0 {
                self.direction = Some(if way < 0.0 { Direction::Down } else { Direction::Up });
                self.farthest = self.metres;
            }
            return;
        };
        let sign = direction.sign();
        let enough = TURN + 3.0 * self.covariance.position.max(0.0).sqrt();
        if way * sign >= 0.0 {
            self.farthest = self.metres;
        } else if -way * sign >= enough && self.velocity * sign <= -1.0 {
            self.farthest = self.metres;
            self.direction = Some(match direction {
                Direction::Up => Direction::Down,
                Direction::Down => Direction::Up,
            });
        }
    }
}

/// The deviation of an unknown velocity, in metres per second; then the least after a jump.
const VELOCITY: f64 = 30.0;
const VELOCITY_JUMP: f64 = 3.0;
/// The share of a reading's error that persists for minutes, so that no filter removes it.
const BIAS: f64 = 0.5;
/// A reading is rejected if it is off by this many deviations and this many metres.
const GATE: f64 = 5.0;
const GATE_MIN: f64 = 40.0;
/// A faster train moves, in metres per second.
const MOVES: f64 = 2.0;
/// A train that is faster against its direction reverses, in metres per second.
const BACK: f64 = 1.0;
/// How far a train moves before it has a direction, in metres.
const STARTS: f64 = 50.0;
/// How far a train reverses before it has turned, in metres; less is shunting.
const TURN: f64 = 100.0;

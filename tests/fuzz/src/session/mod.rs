//! The input of a session: a peer with a valid certificate sends any frames, while users read and
//! write and time passes.
//!
//! Promises: nothing panics; the neighbour's flow continues; and the memory oracle: the endpoint
//! allocates at most what `session.memory` and its flows permit, counted by the allocator. So a
//! frame that allocates more than its credit is found, as are flows that are never released.

mod frames;
mod world;

use std::time::Duration;

use polyrail_model::NodeRole;
use polyrail_session::wire::encode;

use crate::input::Input;
use world::World;

/// Attacks a cloud as its gateway, or a gateway as its cloud.
pub fn session(data: &[u8]) {
    let mut input = Input(data);
    let target = if input.flag() { NodeRole::Gateway } else { NodeRole::Cloud };
    let reads = input.flag();
    let mut world = World::new(target, reads);
    let mut unit = Vec::new();
    let mut budget = BYTES_MAX;
    for _ in 0..OPERATIONS_MAX {
        if input.is_over() || budget == 0 {
            break;
        }
        match input.byte() % 32 {
            0..=11 => encode(&frames::frame(&mut input), &mut unit),
            12..=15 => flood(&mut input, &mut unit, budget),
            16 => unit.extend_from_slice(input.part()),
            17..=20 => {
                world.pass(Duration::from_millis(input.short().into()));
                world.check();
            }
            21..=25 => {
                world.act(&mut input);
                world.check();
            }
            26 => world.reconnect(),
            _ => deliver(&mut world, &mut unit, &mut budget),
        }
    }
    deliver(&mut world, &mut unit, &mut budget);
    world.end();
}

/// One frame many times, each for another flow or another offset.
fn flood(input: &mut Input<'_>, unit: &mut Vec<u8>, budget: usize) {
    let (count, flows, numbers) = (input.short() % 2_048, input.byte() % 3, input.short());
    let mut frame = frames::frame(input);
    for _ in 0..count {
        if unit.len() >= budget {
            return;
        }
        encode(&frame, unit);
        frames::step(&mut frame, flows.into(), numbers.into());
    }
}

fn deliver(world: &mut World, unit: &mut Vec<u8>, budget: &mut usize) {
    *budget = budget.saturating_sub(unit.len());
    world.receive(unit);
    unit.clear();
    world.check();
}

/// Hostile bytes of one input: several times the memory of the session.
const BYTES_MAX: usize = 6 << 20;
const OPERATIONS_MAX: usize = 400;

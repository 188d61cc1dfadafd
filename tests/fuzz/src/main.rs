//! libFuzzer around one surface, which the variable `POLYRAIL_SURFACE` names. `make fuzz` runs it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use polyrail_fuzz::{SURFACES, Surface};

static CHOSEN: OnceLock<&Surface> = OnceLock::new();

fn choose() -> &'static Surface {
    let name = std::env::var("POLYRAIL_SURFACE").unwrap_or_default();
    SURFACES.iter().find(|surface| surface.name == name).unwrap_or_else(|| {
        let names: Vec<&str> = SURFACES.iter().map(|surface| surface.name).collect();
        panic!("set POLYRAIL_SURFACE to one of {}", names.join(", "))
    })
}

fuzz_target!(|data: &[u8]| {
    (CHOSEN.get_or_init(choose).run)(data);
});

//! The command `polyrail-emulator`.

fn main() {}

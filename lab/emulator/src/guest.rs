//! The kernel of Debian's package `user-mode-linux`, which tests boot as a process, and what it
//! cannot do.

/// Whether a guest that said this died because the processor has tile registers (AMX). Linux 6.1 as
/// a process saves registers into a buffer that has no room for them, so its first process dies at
/// once; Linux 6.5 and later asks how large they are. Nothing in the guest can help that.
pub fn died_of_tiles(said: &str) -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    said.contains(DEATH) && processors.split_whitespace().any(|flag| flag == "amx_tile")
}

/// The reason, for who skips a test because of it.
pub const TILES: &str = "the kernel of user-mode-linux cannot run on a processor with AMX";

/// What it says then.
const DEATH: &str = "ptrace set fp regs failed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_deaths_are_no_excuse() {
        assert!(!died_of_tiles("Kernel panic - not syncing: VFS"));
        assert!(!died_of_tiles(""));
    }
}

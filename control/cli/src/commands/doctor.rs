//! `polyrail doctor`: the kernel's settings, good and bad, with remedies.

use std::io::Write;

use polyrail_config::kernel;

/// Prints each setting; true when none is bad.
pub(crate) fn run(out: &mut dyn Write) -> anyhow::Result<bool> {
    let readings = kernel::readings();
    for reading in &readings {
        let mark = match (reading.good, &reading.found) {
            (false, _) => "BAD ",
            (true, None) => "?   ",
            (true, Some(_)) => "good",
        };
        writeln!(out, "{mark} {reading}")?;
    }
    let bad = readings.iter().filter(|reading| !reading.good).count();
    if bad > 0 {
        let file = "/usr/lib/sysctl.d/60-polyrail.conf";
        writeln!(out, "{bad} bad settings; {file} sets them at each boot")?;
    }
    Ok(bad == 0)
}

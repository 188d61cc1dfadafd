//! The simulator's trials with real transports: the kernel's TCP and a QUIC tunnel.
//!
//! `polyrail-sim validate` compares the samples written here with its own. A few trials are played
//! at the same time; namespaces are anonymous and children die with their parent.

mod kernel;
mod tunnel;

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::trials::{Played, Sample, TUNNEL_LEAD, Trial, trials};

use crate::privilege;
use crate::report::results_folder;

/// The trials to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How often to run each trial, each time with another seed
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Only trials whose name has this prefix
    #[arg(long, default_value = "")]
    only: String,
}

/// One flow to be played.
#[derive(Clone, Debug)]
struct Job {
    trial: Trial,
    control: &'static str,
    seed: u64,
}

/// One of the two players.
struct Player {
    /// The file of its samples, in the folder `sim` of the results.
    file: &'static str,
    controls: &'static [&'static str],
    /// How many trials it plays at the same time.
    together: usize,
    /// The duration of a trial beyond its own length.
    lead: Duration,
    play: fn(&[Job]) -> Result<Vec<Played>>,
}

const PLAYERS: [Player; 2] = [
    Player {
        file: "kernel.json",
        controls: &["cubic", "bbr"],
        together: 6,
        lead: Duration::ZERO,
        play: kernel::play,
    },
    Player {
        file: "tunnel.json",
        controls: &["quic"],
        together: 4,
        lead: TUNNEL_LEAD,
        play: tunnel::play,
    },
];

/// Plays all trials with both players and writes their samples to the results.
pub fn play(options: &Options) -> Result<()> {
    privilege::become_root()?;
    let folder = results_folder()?.join("sim");
    std::fs::create_dir_all(&folder)?;
    for player in PLAYERS {
        let out = folder.join(player.file);
        let played = play_with(&player, options)?;
        std::fs::write(&out, serde_json::to_vec(&played)?)
            .with_context(|| out.display().to_string())?;
        println!("written to {}", out.display());
    }
    Ok(())
}

fn play_with(player: &Player, options: &Options) -> Result<Vec<Played>> {
    let mut jobs = Vec::new();
    for trial in trials()?.into_iter().filter(|trial| trial.name.starts_with(&options.only)) {
        for seed in 1..=options.runs {
            let job = |control: &&'static str| Job { trial: trial.clone(), control, seed };
            jobs.extend(player.controls.iter().map(job));
        }
    }
    ensure!(!jobs.is_empty(), "there is no trial {:?}", options.only);
    // A batch takes as long as its longest trial, so trials of one length run together.
    jobs.sort_by_key(|job| job.trial.length);
    let batches: Vec<_> = jobs.chunks(player.together).collect();
    let mut all = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        let longest = longest(batch) + player.lead;
        let (number, seconds) = (number + 1, longest.as_secs());
        eprintln!("{}: batch {number} of {}, {seconds} s", player.file, batches.len());
        // A lab moves its thread to other namespaces.
        let played = std::thread::scope(|scope| scope.spawn(|| (player.play)(batch)).join());
        all.extend(played.map_err(|_| anyhow!("a trial panicked"))??);
    }
    Ok(all)
}

fn longest(batch: &[Job]) -> Duration {
    batch.iter().map(|job| job.trial.length).max().unwrap_or_default()
}

impl Job {
    /// The samples of `trial` as it ran.
    fn played(&self, trial: &Trial, samples: Vec<Sample>) -> Played {
        Played {
            trial: trial.name.to_owned(),
            control: self.control.to_owned(),
            seed: self.seed,
            mark: trial.mark(),
            samples,
        }
    }
}

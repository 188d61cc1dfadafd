//! The events of a world, counted, so that many worlds can show that they covered everything.

/// Declares [`Coverage`] with its counters, their names and their sum.
macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often each event happened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Coverage {
            /// The counts by name.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds the counts of another world.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

coverage! {
    /// Flows that a side closed in order.
    closed,
    /// Flows that one side reset, with the reset received by the other.
    reset,
    /// Flows refused by the session itself.
    refused,
    /// Flows that lost their session.
    lost,
    /// Sessions that ended because they had no path.
    lingered,
    /// Tunnels that became paths.
    paths,
    /// Tunnels that the session wanted closed.
    dismissed,
    /// Blocked writers.
    held_back,
    /// Checks of a session with three eighths of its memory full of received bytes: nearly all that
    /// stalled readers may hold.
    full_received,
    /// The same for written bytes.
    full_sent,
    /// Checks that found a stalled path.
    stalled,
    /// Checks that found reinjected data.
    reinjected,
    /// Reports of one side to the other about a path.
    reported,
    /// Tunnels that sent early data.
    early,
    /// Attempts of races for a carrier.
    attempts,
    /// Withdrawn units.
    withdrawn,
    /// Replays of early data.
    replayed,
}

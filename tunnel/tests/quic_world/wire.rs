//! A relay of datagrams between two ends that delays, loses, repeats and reorders them by a seed.

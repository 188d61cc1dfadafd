//! How a bounded number of entries is shared among logs.

/// The most entries of each log, so that all together have at most `room`: small logs are complete,
/// and large ones have as many each.
pub(super) fn share(sizes: impl Iterator<Item = u64>, room: u64) -> u64 {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    let mut left = room;
    for (index, size) in sizes.iter().enumerate() {
        let each = left / (sizes.len() - index) as u64;
        if *size > each {
            return each;
        }
        left -= size;
    }
    u64::MAX
}

#[test]
fn small_logs_are_complete_and_large_ones_share_the_rest() {
    for (sizes, room, most) in [
        (vec![], 10, u64::MAX),
        (vec![3, 7], 10, u64::MAX),
        (vec![3, 8], 10, 7),
        (vec![100, 1, 100], 11, 5),
        (vec![5, 5], 0, 0),
    ] {
        let share = share(sizes.iter().copied(), room);
        assert_eq!(share, most, "{sizes:?} {room}");
        assert!(sizes.iter().map(|size| share.min(*size)).sum::<u64>() <= room);
    }
}

//! The decoder of the wire: no bytes make it panic, cuts do not matter, and each decoded frame
//! survives encoding.

use polyrail_session::wire::{Decoder, Frame, PAYLOAD_MAX, WireError, encode};

/// Decodes the bytes behind the first at once and in parts, whose size is the first byte.
pub fn wire(data: &[u8]) {
    let [cut, stream @ ..] = data else { return };
    let mut parts = Decoder::default();
    let mut texts = Vec::new();
    let mut fed = Ok(());
    for part in stream.chunks(usize::from(*cut).max(1)) {
        fed = fed.and_then(|()| parts.feed(part, |frame| texts.push(format!("{frame:?}"))));
    }
    let mut whole = texts.iter();
    let fed_whole = Decoder::default().feed(stream, |frame| {
        assert_eq!(whole.next(), Some(&format!("{frame:?}")), "the cuts change the frames");
        survives_encoding(&frame);
    });
    assert_eq!((whole.next(), same(&fed)), (None, same(&fed_whole)), "the cuts change the result");
}

/// An error stops the decoder, whatever is behind.
fn same(fed: &Result<(), WireError>) -> Option<String> {
    fed.as_ref().err().map(ToString::to_string)
}

fn survives_encoding(frame: &Frame<'_>) {
    if matches!(frame, Frame::Unknown { .. }) {
        return;
    }
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    assert!(bytes.len() <= PAYLOAD_MAX + 4);
    let mut count = 0;
    let again = Decoder::default().feed(&bytes, |decoded| {
        assert_eq!(&decoded, frame);
        count += 1;
    });
    assert_eq!((again, count), (Ok(()), 1));
}

//! The checksum of HDF5's metadata: Bob Jenkins's lookup3, with an initial value of 0.

/// Returns the checksum of bytes.
pub(super) fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = bytes;
    while rest.len() > 12 {
        let (x, y, z) = words(rest);
        (a, b, c) = (a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z));
        (a, c) = mix(a, c, b, 4);
        (b, a) = mix(b, a, c, 6);
        (c, b) = mix(c, b, a, 8);
        (a, c) = mix(a, c, b, 16);
        (b, a) = mix(b, a, c, 19);
        (c, b) = mix(c, b, a, 4);
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return c;
    }
    let mut last = [0; 12];
    last[..rest.len()].copy_from_slice(rest);
    let (x, y, z) = words(&last);
    (a, b, c) = (a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z));
    let turn = |to: u32, by: u32, bits: u32| (to ^ by).wrapping_sub(by.rotate_left(bits));
    c = turn(c, b, 14);
    a = turn(a, c, 11);
    b = turn(b, a, 25);
    c = turn(c, b, 16);
    a = turn(a, c, 4);
    b = turn(b, a, 14);
    turn(c, b, 24)
}

fn words(bytes: &[u8]) -> (u32, u32, u32) {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (word(0), word(4), word(8))
}

fn mix(x: u32, y: u32, z: u32, bits: u32) -> (u32, u32) {
    (x.wrapping_sub(y) ^ y.rotate_left(bits), y.wrapping_add(z))
}

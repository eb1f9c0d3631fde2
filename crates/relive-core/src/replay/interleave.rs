//! Puts the bytes of four planes side by side: the usual stack of pictures, on its last axis.
//!
//! This writes four times what it reads of a plane. So a large batch is written past the caches,
//! which saves reading the memory that is written, and leaves the planes in them.

/// Writes of at least this many bytes are made past the caches: the reader of so large a batch would
/// not find it there either.
pub(super) const PAST_CACHES: usize = 512 << 10;

/// Writes byte `k` of each plane to bytes `4 k` to `4 k + 3`. Planes that are longer than a quarter of
/// `out`, or of different lengths, are cut to the shortest.
///
/// With `past_caches`, other threads may see the result only after [`fence`].
pub(super) fn four(planes: [&[u8]; 4], past_caches: bool, out: &mut [u8]) {
    let bytes = planes.iter().fold(out.len() / 4, |least, plane| least.min(plane.len()));
    let (planes, out) = (planes.map(|plane| &plane[..bytes]), &mut out[..4 * bytes]);
    let done = blocks(planes, past_caches, out);
    let [a, b, c, d] = planes.map(|plane| &plane[done..]);
    let (rest, _) = out[4 * done..].as_chunks_mut::<4>();
    for (out, (((a, b), c), d)) in rest.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
        *out = [*a, *b, *c, *d];
    }
}

/// Makes what was written past the caches visible before anything that is written later.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: has no conditions.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Writes whole blocks, and returns how many bytes of each plane that was. All planes have a quarter
/// of the bytes of `out`.
#[cfg(target_arch = "x86_64")]
fn blocks(planes: [&[u8]; 4], past_caches: bool, out: &mut [u8]) -> usize {
    let address = out.as_ptr().addr();
    let ahead = planes.map(<[u8]>::as_ptr);
    let bytes = planes[0].len();
    // SAFETY: the planes have this many bytes and `out` four times as many; the processor has the
    // instructions, and streamed addresses are aligned.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx2") {
            if past_caches && address.is_multiple_of(32) {
                wide_blocks::<true>(ahead, bytes, out.as_mut_ptr())
            } else {
                wide_blocks::<false>(ahead, bytes, out.as_mut_ptr())
            }
        } else if past_caches && address.is_multiple_of(16) {
            narrow_blocks::<true>(ahead, bytes, out.as_mut_ptr())
        } else {
            narrow_blocks::<false>(ahead, bytes, out.as_mut_ptr())
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn blocks(planes: [&[u8]; 4], _past_caches: bool, out: &mut [u8]) -> usize {
    const BLOCK: usize = 16;
    let [a, b, c, d] = planes.map(|plane| plane.as_chunks::<BLOCK>().0);
    let (outs, _) = out.as_chunks_mut::<{ 4 * BLOCK }>();
    for ((((out, a), b), c), d) in outs.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        for place in 0..BLOCK {
            for (number, plane) in [a, b, c, d].into_iter().enumerate() {
                out[4 * place + number] = plane[place];
            }
        }
    }
    a.len() * BLOCK
}

/// Blocks of 32 bytes, with AVX2.
///
/// # Safety
/// The planes have `bytes` bytes and `out` four times as many; the processor has AVX2, and `out` is
/// aligned to 32 bytes if it is streamed to.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn wide_blocks<const STREAM: bool>(
    planes: [*const u8; 4],
    bytes: usize,
    out: *mut u8,
) -> usize {
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_storeu_si256, _mm256_stream_si256,
        _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16,
    };
    let whole = bytes - bytes % 32;
    for at in (0..whole).step_by(32) {
        // SAFETY: the block is inside of the planes and of `out`.
        let ([a, b, c, d], out) = unsafe {
            (planes.map(|plane| _mm256_loadu_si256(plane.add(at).cast())), out.add(4 * at))
        };
        let (low, low_next) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
        let (high, high_next) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
        // Each of these has a quarter of the lower half, and one of the upper half.
        let first = _mm256_unpacklo_epi16(low, low_next);
        let second = _mm256_unpackhi_epi16(low, low_next);
        let third = _mm256_unpacklo_epi16(high, high_next);
        let fourth = _mm256_unpackhi_epi16(high, high_next);
        let joined = [
            _mm256_permute2x128_si256::<0x20>(first, second),
            _mm256_permute2x128_si256::<0x20>(third, fourth),
            _mm256_permute2x128_si256::<0x31>(first, second),
            _mm256_permute2x128_si256::<0x31>(third, fourth),
        ];
        for (place, block) in joined.into_iter().enumerate() {
            // SAFETY: as above; the address is aligned if it must be, as the caller promises.
            unsafe {
                let out = out.add(32 * place).cast();
                if STREAM {
                    _mm256_stream_si256(out, block);
                } else {
                    _mm256_storeu_si256(out, block);
                }
            }
        }
    }
    whole
}

/// Blocks of 16 bytes, with what every x86-64 processor has.
///
/// # Safety
/// The planes have `bytes` bytes and `out` four times as many; `out` is aligned to 16 bytes if it is
/// streamed to.
#[cfg(target_arch = "x86_64")]
unsafe fn narrow_blocks<const STREAM: bool>(
    planes: [*const u8; 4],
    bytes: usize,
    out: *mut u8,
) -> usize {
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128, _mm_unpackhi_epi8, _mm_unpackhi_epi16,
        _mm_unpacklo_epi8, _mm_unpacklo_epi16,
    };
    let whole = bytes - bytes % 16;
    for at in (0..whole).step_by(16) {
        // SAFETY: SSE2 is part of x86-64; the block is inside of the planes and of `out`, whose
        // address is aligned if it must be, as the caller promises.
        unsafe {
            let [a, b, c, d] = planes.map(|plane| _mm_loadu_si128(plane.add(at).cast()));
            let (low, low_next) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
            let (high, high_next) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
            let joined = [
                _mm_unpacklo_epi16(low, low_next),
                _mm_unpackhi_epi16(low, low_next),
                _mm_unpacklo_epi16(high, high_next),
                _mm_unpackhi_epi16(high, high_next),
            ];
            for (place, block) in joined.into_iter().enumerate() {
                let out = out.add(4 * at + 16 * place).cast();
                if STREAM {
                    _mm_stream_si128(out, block);
                } else {
                    _mm_storeu_si128(out, block);
                }
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_planes_are_side_by_side() {
        for bytes in [0, 1, 15, 16, 31, 32, 33, 63, 64, 100, 7056] {
            let made: Vec<Vec<u8>> = (0..4_usize)
                .map(|plane| (0..bytes).map(|byte| (byte * 7 + plane * 61) as u8).collect())
                .collect();
            let planes = [&made[0][..], &made[1], &made[2], &made[3]];
            let expected: Vec<u8> =
                (0..4 * bytes).map(|place| planes[place % 4][place / 4]).collect();
            for (offset, past_caches) in [(0, false), (0, true), (1, true), (16, true), (32, true)]
            {
                // Somewhere in here, addresses are aligned to 64 bytes.
                let mut room = vec![9; 4 * bytes + 128];
                let start = room.as_ptr().align_offset(64) + offset;
                four(planes, past_caches, &mut room[start..start + 4 * bytes]);
                fence();
                assert_eq!(room[start..start + 4 * bytes], expected, "{bytes} {offset}");
                assert!(room[..start].iter().all(|&byte| byte == 9));
                assert!(room[start + 4 * bytes..].iter().all(|&byte| byte == 9));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_kind_of_block_is_the_same() {
        let made: Vec<Vec<u8>> =
            (0..4_u8).map(|plane| (0..64_u8).map(|byte| byte ^ (plane << 6)).collect()).collect();
        let planes = [0, 1, 2, 3].map(|plane: usize| made[plane].as_ptr());
        let mut narrow = vec![0; 256];
        // SAFETY: there are 64 bytes in each plane, and 256 in the others.
        unsafe {
            assert_eq!(narrow_blocks::<false>(planes, 64, narrow.as_mut_ptr()), 64);
            if std::arch::is_x86_feature_detected!("avx2") {
                let mut wide = vec![0; 256];
                assert_eq!(wide_blocks::<false>(planes, 64, wide.as_mut_ptr()), 64);
                assert_eq!(narrow, wide);
            }
        }
    }
}

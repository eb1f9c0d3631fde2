//! CRC-32C (Castagnoli), the one checksum of everything that is stored.

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm gives 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of the bytes behind `first` followed by `second_bytes` bytes behind `second`.
pub fn crc32c_combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_bytes) as u32
}

/// CRC-32C of bytes that come in pieces.
#[derive(Clone)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Takes in further bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crcs_combine() {
        let (first, second) = (b"what agents live".as_slice(), b" through".as_slice());
        let whole = [first, second].concat();
        let combined = crc32c_combine(crc32c(first), crc32c(second), second.len() as u64);
        assert_eq!(combined, crc32c(&whole));
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let mut digest = Crc32c::default();
        digest.update(first);
        digest.update(second);
        assert_eq!(digest.value(), crc32c(&whole));
    }
}

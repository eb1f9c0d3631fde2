//! The live lane: the newest frames of a writer in shared memory, for any number of readers.
//!
//! A segment has a header and a few slots; `docs/format/ring.md` is its format. The writer goes
//! round the slots. It never waits: a slow reader misses frames. Each slot has a sequence number
//! that is odd while the slot is written, so a reader knows whether the frame that it copied is
//! whole. Either side may be killed at any moment.

mod layout;
#[cfg(all(test, loom))]
mod models;
mod scalars;
mod slots;
#[cfg(test)]
mod tests;

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::layout::Geometry;
use self::layout::{FLAGS_AT, HEAD_AT, HEADER_BYTES};
pub use self::scalars::Scalar;
use self::slots::Slot;
use crate::durable;
use crate::fork::OwnerProcess;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Error, Result};

/// Set in the flags of a segment when its writer has closed it, or has made another one.
const ENDED: u64 = 1;

/// How long a reader tries to copy the newest frame.
const PATIENCE: Duration = Duration::from_secs(1);

/// How fast the step rate follows: after this many seconds, a change is 63 % visible.
const RATE_TIME_S: f64 = 1.0;

/// Publishes frames. One thread at a time calls it.
#[derive(Debug)]
pub struct RingWriter {
    segment: Segment,
    owner: OwnerProcess,
    published: u64,
    scalars: Vec<u8>,
    rate: StepRate,
}

impl RingWriter {
    /// Reserves memory for a segment in an empty file and writes its header.
    ///
    /// `description` is text for readers: what the frames are. A disk or memory that is full is an
    /// error here, and never a signal later. Other users cannot open the file.
    pub fn create(
        file: &File,
        path: &Path,
        geometry: Geometry,
        description: &[u8],
    ) -> Result<Self> {
        let header = layout::header(&geometry, description)?;
        let bytes = geometry.segment_bytes()?;
        reserve(file, bytes).map_err(|error| {
            let text = format!("cannot reserve {bytes} bytes for `{}`: {error}", path.display());
            Error::Io(io::Error::new(error.kind(), text))
        })?;
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.write_all_at(&header, 0))
            .map_err(|error| durable::about(path, &error))?;
        let segment = Segment::map(file, geometry, true).map_err(|e| durable::about(path, &e))?;
        Ok(Self {
            segment,
            owner: OwnerProcess::current(),
            published: 0,
            scalars: Vec::new(),
            rate: StepRate::default(),
        })
    }

    /// Publishes a frame with its scalars, and the rate at which frames are published. Takes no
    /// lock and makes no system call.
    pub fn publish<'a>(
        &mut self,
        frame: &[u8],
        scalars: impl Iterator<Item = (&'a str, Scalar)>,
    ) -> Result<u64> {
        self.owner.check("this live lane")?;
        let geometry = &self.segment.geometry;
        if frame.len() != geometry.frame_bytes {
            return Err(Error::Invalid(format!(
                "a frame has {} bytes, but the lane has frames of {} bytes",
                frame.len(),
                geometry.frame_bytes
            )));
        }
        let rate = self.rate.after(Instant::now());
        self.scalars.clear();
        // A writer that does not publish every step says itself how many there are.
        let all = [("step_rate", Scalar::Float(rate))].into_iter().chain(scalars);
        scalars::encode(all, &mut self.scalars, geometry.scalar_bytes)?;
        let number = self.published;
        self.segment.slot(number).write(number, &self.scalars, frame);
        self.published = number + 1;
        self.segment.head().store(self.published, Ordering::Release);
        Ok(number)
    }

    /// Returns how many frames were published.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Tells readers that no more frames come. In a forked child it does nothing.
    pub fn end(&self) {
        if self.owner.is_current() {
            self.segment.flags().store(ENDED, Ordering::Release);
        }
    }
}

/// Reads the newest frame. Thread-safe.
#[derive(Debug)]
pub struct RingReader {
    path: PathBuf,
    file: File,
    segment: Segment,
    description: Vec<u8>,
}

/// A frame that was read.
#[derive(Debug, PartialEq)]
pub struct Latest {
    /// The number of the frame, from 0 on.
    pub number: u64,
    /// Its scalars, in the order of the writer.
    pub scalars: Vec<(String, Scalar)>,
}

impl RingReader {
    /// Maps the segment in a file.
    pub fn open(file: &File, path: &Path) -> Result<Self> {
        let (geometry, description) = layout::read_header(file).map_err(|e| e.in_file(path))?;
        let segment = Segment::map(file, geometry, false).map_err(|e| durable::about(path, &e))?;
        let file = file.try_clone().map_err(|error| durable::about(path, &error))?;
        Ok(Self { path: path.to_path_buf(), file, segment, description })
    }

    /// Returns the text that the writer gave.
    pub fn description(&self) -> &[u8] {
        &self.description
    }

    /// Returns the sizes of the segment.
    pub fn geometry(&self) -> &Geometry {
        &self.segment.geometry
    }

    /// Returns how many frames were published.
    pub fn published(&self) -> Result<u64> {
        self.check_size()?;
        Ok(load(self.segment.head()))
    }

    /// Returns whether the writer has closed this segment or replaced it.
    pub fn has_ended(&self) -> Result<bool> {
        self.check_size()?;
        Ok(load(self.segment.flags()) & ENDED != 0)
    }

    /// Copies the newest frame into a buffer of its size; None if there is none.
    ///
    /// A frame that the writer overwrites meanwhile is read again, from the slot that is the
    /// newest then.
    pub fn latest(&self, frame: &mut [u8]) -> Result<Option<Latest>> {
        self.latest_within(frame, PATIENCE)
    }

    /// As [`latest`](Self::latest), which tries for one second.
    pub fn latest_within(&self, frame: &mut [u8], patience: Duration) -> Result<Option<Latest>> {
        let frame_bytes = self.segment.geometry.frame_bytes;
        if frame.len() != frame_bytes {
            let text = format!("a frame has {frame_bytes} bytes, the buffer has {}", frame.len());
            return Err(Error::Invalid(text));
        }
        let mut encoded = Vec::new();
        let mut first = None;
        loop {
            let published = self.published()?;
            let Some(number) = published.checked_sub(1) else { return Ok(None) };
            if self.segment.slot(number).read(number, &mut encoded, frame) {
                return Ok(Some(Latest { number, scalars: scalars::decode(&encoded)? }));
            }
            let (since, count) = *first.get_or_insert_with(|| (Instant::now(), published));
            if since.elapsed() >= patience {
                return Err(self.unread(published != count));
            }
            std::hint::spin_loop();
        }
    }

    /// Returns the error for a frame that could not be copied in all that time.
    fn unread(&self, is_overwritten: bool) -> Error {
        let path = self.path.display();
        if !is_overwritten {
            // A writer completes a frame before it publishes the number of it.
            return Error::Corrupt(format!("`{path}`: the newest frame is not whole"));
        }
        let Geometry { slots, frame_bytes, .. } = self.segment.geometry;
        let text = format!(
            "`{path}`: frames of {frame_bytes} bytes in {slots} slots are overwritten before they \
             are read: make the lane with more slots"
        );
        Error::Io(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Refuses a file that was truncated: to read after its end would end the process by a signal.
    /// Nothing but an attack or a mistake truncates a segment.
    fn check_size(&self) -> Result<()> {
        let found = self.file.metadata().map_err(|error| durable::about(&self.path, &error))?;
        if (found.len() as u128) < self.segment.bytes as u128 {
            let (path, bytes) = (self.path.display(), found.len());
            return Err(Error::Corrupt(format!("`{path}` was truncated to {bytes} bytes")));
        }
        Ok(())
    }
}

/// Loads a word, and orders what is read later after it. Only a relaxed load is sure not to write
/// to memory, and a reader must not write to its mapping.
fn load(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// A mapped segment.
#[derive(Debug)]
struct Segment {
    base: *mut u8,
    geometry: Geometry,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process; all of it but the header is accessed as atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    fn map(file: &File, geometry: Geometry, writable: bool) -> io::Result<Self> {
        let bytes = geometry.segment_bytes().map_err(|_| io::ErrorKind::InvalidInput)?;
        let access = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let fd = file.as_raw_fd();
        // The writer's pages are all present from now on: a page fault would be a pause in
        // `publish`. A reader must not fill the holes of a file that only claims to be large.
        #[cfg(target_os = "linux")]
        let present = if writable { libc::MAP_POPULATE } else { 0 };
        #[cfg(not(target_os = "linux"))]
        let present = 0;
        let flags = libc::MAP_SHARED | present;
        // SAFETY: the kernel picks addresses that nothing else has.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), geometry, bytes })
    }

    fn head(&self) -> &AtomicU64 {
        &self.words(HEAD_AT, 1)[0]
    }

    fn flags(&self) -> &AtomicU64 {
        &self.words(FLAGS_AT, 1)[0]
    }

    /// Returns the slot of a frame.
    fn slot(&self, number: u64) -> Slot<'_> {
        let slot_bytes = self.geometry.slot_bytes();
        let at = HEADER_BYTES + (number % self.geometry.slots as u64) as usize * slot_bytes;
        Slot::new(self.words(at, slot_bytes / 8), self.geometry.scalar_bytes)
    }

    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        debug_assert!(at.is_multiple_of(8) && at + 8 * count <= self.bytes);
        // SAFETY: these bytes are mapped, and aligned as pages and words are; every access to them
        // is atomic, and those of a reader are relaxed loads, which do not write.
        unsafe { std::slice::from_raw_parts(self.base.add(at).cast(), count) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: every user of the addresses borrows this object.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Reserves the bytes of a file, all of them.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    #[cfg(target_os = "linux")]
    // SAFETY: the descriptor is open; the call touches no memory of this process.
    while unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    file.set_len(length as u64)
}

/// Steps per second, as an average that forgets.
#[derive(Debug, Default)]
struct StepRate {
    last: Option<Instant>,
    pause_s: f64,
}

impl StepRate {
    /// Returns the rate after one more step, which happens now.
    fn after(&mut self, now: Instant) -> f64 {
        if let Some(last) = self.last.replace(now) {
            let pause = now.duration_since(last).as_secs_f64();
            let share = if self.pause_s == 0.0 { 1.0 } else { 1.0 - (-pause / RATE_TIME_S).exp() };
            self.pause_s += share * (pause - self.pause_s);
        }
        if self.pause_s > 0.0 { 1.0 / self.pause_s } else { 0.0 }
    }
}

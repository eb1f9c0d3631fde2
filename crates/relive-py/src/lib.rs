//! `relive._native`: converts arguments, releases the GIL, maps errors; no logic.

#![allow(clippy::needless_pass_by_value, reason = "arguments arrive from Python by value")]

use pyo3::prelude::*;

mod arrays;
mod codec;
mod crc;
mod errors;
mod pack;
mod pack_writer;
mod prefetch;
mod priority;
mod records;
mod records_value;
mod records_writer;
mod replay;
mod ring;
mod runs;
mod sample;
mod signals;
mod step_arrays;
mod steps;
mod table;
mod tape;

#[pymodule]
mod _native {
    use pyo3::prelude::*;

    /// Loads the API of NumPy: later, Ctrl-C could interrupt that.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let _loaded = numpy::dtype::<u8>(module.py());
        Ok(())
    }

    #[pymodule_export]
    use super::codec::{Codec, codec_names, train_dictionary};
    #[pymodule_export]
    use super::crc::crc32c;
    #[pymodule_export]
    use super::errors::error_kinds;
    #[pymodule_export]
    use super::pack::{Pack, pack_stats, pack_steps, validate_pack, write_jsonl};
    #[pymodule_export]
    use super::pack_writer::{
        PackWriter, check_kind_name, common_dictionary, recover_pack, unfinished_packs,
        unfinished_target,
    };
    #[pymodule_export]
    use super::prefetch::{Buffer, Prefetch};
    #[pymodule_export]
    use super::priority::Priorities;
    #[pymodule_export]
    use super::records::{Mapped, RecordSnapshot, Records, validate_records};
    #[pymodule_export]
    use super::records_writer::RecordWriter;
    #[pymodule_export]
    use super::replay::{
        MemoryPlanes, RecentArrays, RunArraysReader, RunArraysWriter, RunPlanes, RunTransitions,
    };
    #[pymodule_export]
    use super::ring::{RingReader, RingWriter};
    #[pymodule_export]
    use super::runs::{parse_run, run_to_bytes};
    #[pymodule_export]
    use super::sample::Sampler;
    #[pymodule_export]
    use super::signals::wait_through_signals;
    #[pymodule_export]
    use super::step_arrays::{PlainColumns, StepArrays, constant_copy};
    #[pymodule_export]
    use super::steps::{AddedSteps, Step, StepRows, json_crc, plain_json, timestamp};
    #[pymodule_export]
    use super::table::{Table, default_threads};
    #[pymodule_export]
    use super::tape::{TapeReader, TapeWriter, find_time, tape_damage};
}

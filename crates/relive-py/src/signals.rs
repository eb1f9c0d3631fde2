//! Signals: work that the main thread waits for, whatever signal handlers raise meanwhile.

use pyo3::exceptions::{PyBaseException, PyRuntimeError};
use pyo3::prelude::*;

/// How long a signal may wait for its handler: one that arrives just before a wait does not end it.
const POLL_S: f64 = 0.05;

/// How often a start is tried: an audit hook may refuse every one.
const MAX_STARTS: usize = 100;

/// Call `start`, or `run` if there are no more threads, and wait until the lock `end` is released.
///
/// Returns the first exception that a signal handler raised meanwhile, after a call of
/// `on_interrupt` with it. Python code that waits can be left by a second exception between any
/// two of its steps, its `except` clauses included; this cannot.
#[pyfunction]
pub(crate) fn wait_through_signals(
    py: Python<'_>,
    start: Bound<'_, PyAny>,
    run: Bound<'_, PyAny>,
    end: Bound<'_, PyAny>,
    on_interrupt: Option<Bound<'_, PyAny>>,
) -> Option<Py<PyBaseException>> {
    let mut interrupt: Option<Py<PyBaseException>> = None;
    let mut keep = |error: PyErr| {
        if interrupt.is_some() {
            return;
        }
        let error = error.into_value(py);
        if let Some(callback) = &on_interrupt {
            drop(callback.call1((&error,)));
        }
        interrupt = Some(error);
    };
    let mut is_started = false;
    for _ in 0..MAX_STARTS {
        match start.call0() {
            Ok(_) => is_started = true,
            // No more threads, or the interpreter is exiting.
            Err(error) if error.is_instance_of::<PyRuntimeError>(py) => {}
            // Starting a thread calls audit hooks. In one that is written in Python, such as that
            // of filelock, signal handlers run.
            Err(error) => {
                keep(error);
                continue;
            }
        }
        break;
    }
    if !is_started && let Err(error) = run.call0() {
        keep(error);
    }
    loop {
        let released =
            end.call_method1("acquire", (true, POLL_S)).and_then(|held| held.is_truthy());
        match released {
            Ok(true) => break,
            Ok(false) => {
                if let Err(error) = py.check_signals() {
                    keep(error);
                }
            }
            Err(error) => keep(error),
        }
    }
    interrupt
}

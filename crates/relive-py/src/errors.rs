//! Converts errors of the core to exceptions of `relive.errors`, by their kind.

use pyo3::prelude::*;
use relive_core::error::{Error, KINDS};

/// Returns the Python exception for a core error: the class with the same kind.
pub fn to_py(error: Error) -> PyErr {
    Python::attach(|py| {
        // An exception of Python code that was passed through the core.
        if let Error::Io(inner) = &error
            && let Some(raised) = inner.get_ref().and_then(|inner| inner.downcast_ref::<PyErr>())
        {
            return raised.clone_ref(py);
        }
        let raise = || -> PyResult<PyErr> {
            let class = py.import("relive.errors")?.getattr("BY_KIND")?.get_item(error.kind())?;
            Ok(PyErr::from_value(class.call1((error.to_string(),))?))
        };
        raise().unwrap_or_else(|failure| failure)
    })
}

/// Returns the value of the choice with this name; other names are `Invalid`.
pub fn choice<T: Copy>(what: &str, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
    choices.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = choices.iter().map(|(known, _)| format!("'{known}'")).collect();
        let text = format!("`{what}` must be one of {}, got '{name}'", names.join(", "));
        to_py(Error::Invalid(text))
    })
}

/// Return every kind of error that the core can raise.
#[pyfunction]
pub fn error_kinds() -> Vec<&'static str> {
    KINDS.to_vec()
}

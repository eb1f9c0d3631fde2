//! Converts values of records from Python to bytes, without a copy if they have the stored dtype.

use std::slice;

use numpy::ndarray::ArrayView1;
use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API};
use numpy::{
    PyArrayDescr, PyArrayDescrMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple, PyType};
use relive_core::Error;
use relive_core::records::{Column, Value};

use crate::arrays::data_of;
use crate::errors::to_py;
use crate::records::no_field;

/// A field: name, kind, dtype (None for bytes, text and JSON), shape, number of varying leading
/// dimensions, and the function that converts values to what is stored.
pub type FieldArgument<'py> = (
    Bound<'py, PyString>,
    String,
    Option<Bound<'py, PyArrayDescr>>,
    Vec<usize>,
    usize,
    Bound<'py, PyAny>,
);

/// A column of a ragged field: concatenated values, their offsets, and if several dimensions vary
/// those of each value.
type RaggedArgument<'py> =
    (Bound<'py, PyUntypedArray>, PyReadonlyArray1<'py, i64>, Option<PyReadonlyArray2<'py, i64>>);

/// How values of all fields are converted.
pub struct Plan {
    fields: Vec<FieldPlan>,
    /// Called with a record that has an unknown field; raises.
    refuse: Py<PyAny>,
    /// The description of these fields in Python.
    described: Py<PyAny>,
    memmap: Py<PyType>,
}

struct FieldPlan {
    name: Py<PyString>,
    kind: FieldKind,
    prepare: Py<PyAny>,
}

enum FieldKind {
    Bytes,
    Text,
    /// All values are converted by `prepare`.
    Other,
    Array(ArrayPlan),
}

struct ArrayPlan {
    dtype: Py<PyArrayDescr>,
    shape: Vec<usize>,
    varying: usize,
    /// Kind and size of the dtype if each value is one number in native byte order.
    number: Option<(u8, usize)>,
}

/// The bytes of a value, and the Python object that keeps them.
pub struct StoredValue<'py> {
    bytes: ValueBytes,
    dims: Vec<u64>,
    _object: Option<Bound<'py, PyAny>>,
}

enum ValueBytes {
    Missing,
    Inline([u8; 8], usize),
    Memory(*const u8, usize),
}

impl StoredValue<'_> {
    const MISSING: Self = Self { bytes: ValueBytes::Missing, dims: Vec::new(), _object: None };

    /// Returns the value for the core.
    pub fn value(&self) -> Value<'_> {
        let bytes = match &self.bytes {
            ValueBytes::Missing => return Value::Missing,
            ValueBytes::Inline(bytes, size) => &bytes[..*size],
            // SAFETY: the object has this many bytes there. Writing to an array while it is stored
            // is a race that its owner must prevent, as with any copy.
            &ValueBytes::Memory(start, bytes) => unsafe { slice::from_raw_parts(start, bytes) },
        };
        Value::Bytes { bytes, dims: &self.dims }
    }
}

impl<'py> StoredValue<'py> {
    fn memory(object: Bound<'py, PyAny>, start: *const u8, bytes: usize) -> Self {
        Self { bytes: ValueBytes::Memory(start, bytes), dims: Vec::new(), _object: Some(object) }
    }

    fn number(bytes: [u8; 8], size: usize) -> Self {
        Self { bytes: ValueBytes::Inline(bytes, size), dims: Vec::new(), _object: None }
    }
}

impl Plan {
    pub fn new(
        py: Python<'_>,
        fields: Vec<FieldArgument<'_>>,
        refuse: Py<PyAny>,
        described: Py<PyAny>,
    ) -> PyResult<Self> {
        let fields = fields.into_iter().map(FieldPlan::new).collect();
        let memmap = py.import("numpy")?.getattr("memmap")?.cast_into::<PyType>()?;
        Ok(Self { fields, refuse, described, memmap: memmap.unbind() })
    }

    /// Returns the description of these fields in Python.
    pub fn described(&self, py: Python<'_>) -> Py<PyAny> {
        self.described.clone_ref(py)
    }

    /// Checks that columns were made for these fields.
    pub fn check(&self, described: &Bound<'_, PyAny>) -> PyResult<()> {
        if described.is(&self.described) {
            return Ok(());
        }
        Err(to_py(Error::Invalid(
            "another thread changed the fields of the record store during the call".into(),
        )))
    }

    /// Returns the values of a record with the positions of their fields; with `whole`, a missing
    /// value for every other field.
    pub fn record<'py>(
        &self,
        record: &Bound<'py, PyDict>,
        whole: bool,
    ) -> PyResult<Vec<(usize, StoredValue<'py>)>> {
        let mut seen = 0;
        let mut values = Vec::with_capacity(self.fields.len());
        for (column, field) in self.fields.iter().enumerate() {
            if let Some(value) = record.get_item(field.name.bind(record.py()))? {
                seen += 1;
                values.push((column, self.value(field, value)?));
            } else if whole {
                values.push((column, StoredValue::MISSING));
            }
        }
        if seen != record.len() {
            self.refuse.bind(record.py()).call1((record,))?;
        }
        Ok(values)
    }

    /// Returns the values of a column: None, an array of all values, `(values, offsets, dims or
    /// None)` of a ragged one, or a list of values. Arrays must have the dtype of the field.
    pub fn column<'py>(
        &self,
        column: usize,
        given: &Bound<'py, PyAny>,
    ) -> PyResult<ColumnValues<'py>> {
        let field = self.fields.get(column);
        let field = field.ok_or_else(|| no_field(column, self.fields.len()))?;
        if given.is_none() {
            return Ok(ColumnValues::Missing);
        }
        if let Ok(array) = given.cast::<PyUntypedArray>() {
            return field.whole(array);
        }
        if let Ok(parts) = given.cast::<PyTuple>() {
            return field.ragged(parts);
        }
        let mut rows = Vec::with_capacity(given.len()?);
        for (row, value) in given.try_iter()?.enumerate() {
            rows.push(self.value(field, value?).inspect_err(|error| {
                // An exception that cannot take a note is raised without the row.
                let _ = error.value(given.py()).call_method1("add_note", (format!("row {row}"),));
            })?);
        }
        Ok(ColumnValues::Rows(rows))
    }

    fn value<'py>(
        &self,
        field: &FieldPlan,
        value: Bound<'py, PyAny>,
    ) -> PyResult<StoredValue<'py>> {
        let py = value.py();
        if value.is_none() {
            return Ok(StoredValue::MISSING);
        }
        let held = match &field.kind {
            FieldKind::Bytes => value.cast::<PyBytes>().ok().map(in_bytes),
            FieldKind::Text => value.cast::<PyString>().ok().and_then(|text| {
                let text = text.to_str().ok()?;
                Some(StoredValue::memory(value.clone(), text.as_ptr(), text.len()))
            }),
            FieldKind::Other => None,
            FieldKind::Array(plan) => plan.take(&value, self.memmap.bind(py)),
        };
        if let Some(held) = held {
            return Ok(held);
        }
        let prepared = field.prepare.bind(py).call1((value,))?;
        if prepared.is_none() {
            return Ok(StoredValue::MISSING);
        }
        let held = match &field.kind {
            FieldKind::Array(plan) => plan.take(&prepared, self.memmap.bind(py)),
            _ => prepared.cast::<PyBytes>().ok().map(in_bytes),
        };
        let text = "the converted value does not have the dtype and shape of the field";
        held.ok_or_else(|| field.misfit(py, text))
    }
}

impl FieldPlan {
    fn new((name, kind, dtype, shape, varying, prepare): FieldArgument<'_>) -> Self {
        let kind = match (dtype, kind.as_str()) {
            (Some(dtype), _) => {
                let number = number_of(&dtype).filter(|_| varying == 0 && shape.is_empty());
                FieldKind::Array(ArrayPlan { dtype: dtype.unbind(), shape, varying, number })
            }
            (None, "bytes") => FieldKind::Bytes,
            (None, "str") => FieldKind::Text,
            (None, _) => FieldKind::Other,
        };
        Self { name: name.unbind(), kind, prepare: prepare.unbind() }
    }

    fn wrong_column(&self, py: Python<'_>) -> PyErr {
        self.misfit(py, "the column does not have the dtype or shape of the field")
    }

    fn misfit(&self, py: Python<'_>, what: &str) -> PyErr {
        let name = self.name.bind(py);
        to_py(Error::Invalid(format!("field {name:?}: {what}")))
    }

    /// Returns all values of a field without varying dimensions.
    fn whole<'py>(&self, array: &Bound<'py, PyUntypedArray>) -> PyResult<ColumnValues<'py>> {
        let fits = match &self.kind {
            FieldKind::Array(plan) => {
                plan.varying == 0
                    && plan.is_of(array)
                    && array.shape().get(1..) == Some(&plan.shape[..])
            }
            _ => false,
        };
        if !fits {
            return Err(self.wrong_column(array.py()));
        }
        Ok(ColumnValues::Fixed(in_array(array.clone())))
    }

    /// Returns the values of a ragged field.
    fn ragged<'py>(&self, parts: &Bound<'py, PyTuple>) -> PyResult<ColumnValues<'py>> {
        let py = parts.py();
        let (values, offsets, dims): RaggedArgument<'py> = parts.extract()?;
        let offsets: Vec<usize> = offsets.as_array().iter().map(|&at| at as usize).collect();
        let dims: Option<Vec<Vec<u64>>> = dims.map(|dims| {
            let row = |row: ArrayView1<'_, i64>| row.iter().map(|&dim| dim as u64).collect();
            dims.as_array().outer_iter().map(row).collect()
        });
        let FieldKind::Array(plan) = &self.kind else {
            return Err(self.wrong_column(py));
        };
        let Some((&items, inner)) = values.shape().split_first() else {
            return Err(self.misfit(py, "the values must have at least one dimension"));
        };
        let unit = values.dtype().itemsize() * inner.iter().product::<usize>();
        let in_order = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let within = offsets.last().is_some_and(|&last| last <= items);
        let rows = offsets.len().saturating_sub(1);
        let sized = dims.as_ref().is_none_or(|dims| dims.len() == rows);
        if !plan.is_of(&values) || !in_order || !within || !sized {
            return Err(self.wrong_column(py));
        }
        let start = data_of(&values).cast_const();
        let mut dims = dims.unwrap_or_default().into_iter();
        let held = offsets.windows(2).map(|pair| StoredValue {
            // The offsets were checked above.
            bytes: ValueBytes::Memory(
                start.wrapping_add(pair[0] * unit),
                (pair[1] - pair[0]) * unit,
            ),
            dims: dims.next().unwrap_or_default(),
            _object: None,
        });
        Ok(ColumnValues::Ragged { rows: held.collect(), _array: values.into_any() })
    }
}

impl ArrayPlan {
    /// Returns whether the array is C-contiguous and has the dtype of the field.
    fn is_of(&self, array: &Bound<'_, PyUntypedArray>) -> bool {
        let (have, want) = (array.dtype(), self.dtype.bind(array.py()));
        array.is_c_contiguous() && (have.is(want) || have.is_equiv_to(want))
    }

    /// Returns the value if it needs no conversion.
    fn take<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        memmap: &Bound<'py, PyType>,
    ) -> Option<StoredValue<'py>> {
        if let Some((kind, size)) = self.number
            && let Some(held) = self.take_number(value, kind, size)
        {
            return Some(held);
        }
        let array = value.cast::<PyUntypedArray>().ok()?;
        let class = value.get_type();
        // SAFETY: the type object of arrays exists as long as NumPy is loaded.
        let plain = unsafe { npyffi::get_type_object(value.py(), NpyTypes::PyArray_Type) };
        // A subclass may give its bytes another meaning, such as a mask.
        if class.as_type_ptr() != plain && !class.is(memmap) {
            return None;
        }
        let (dims, inner) = array.shape().split_at_checked(self.varying)?;
        if inner != self.shape || !self.is_of(array) {
            return None;
        }
        let mut held = in_array(array.clone());
        if self.varying > 1 {
            held.dims = dims.iter().map(|&dim| dim as u64).collect();
        }
        Some(held)
    }

    /// Returns the bytes of a Python number, or of a NumPy number of the same dtype.
    fn take_number<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        kind: u8,
        size: usize,
    ) -> Option<StoredValue<'py>> {
        let is_int = value.is_exact_instance_of::<PyInt>();
        if is_int || value.is_exact_instance_of::<PyFloat>() {
            let bytes = match (kind, size) {
                (b'f', _) if is_int => float(exact(value.extract().ok()?)?, size),
                (b'f', _) => float(value.extract().ok()?, size),
                _ if !is_int => None,
                (b'i', 1) => Some(padded(value.extract::<i8>().ok()?.to_ne_bytes())),
                (b'i', 2) => Some(padded(value.extract::<i16>().ok()?.to_ne_bytes())),
                (b'i', 4) => Some(padded(value.extract::<i32>().ok()?.to_ne_bytes())),
                (b'i', _) => Some(value.extract::<i64>().ok()?.to_ne_bytes()),
                (b'u', 1) => Some(padded(value.extract::<u8>().ok()?.to_ne_bytes())),
                (b'u', 2) => Some(padded(value.extract::<u16>().ok()?.to_ne_bytes())),
                (b'u', 4) => Some(padded(value.extract::<u32>().ok()?.to_ne_bytes())),
                (b'u', _) => Some(value.extract::<u64>().ok()?.to_ne_bytes()),
                _ => None,
            };
            return bytes.map(|bytes| StoredValue::number(bytes, size));
        }
        if value.is_exact_instance_of::<PyBool>() {
            let bit = u8::from(value.is_truthy().ok()?);
            return (kind == b'b').then(|| StoredValue::number(padded([bit]), 1));
        }
        let py = value.py();
        // SAFETY: the type object exists as long as NumPy is loaded.
        let generic = unsafe {
            PyType::from_borrowed_type_ptr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyGenericArrType_Type),
            )
        };
        if !value.is_instance(&generic).unwrap_or(false) {
            return None;
        }
        // SAFETY: the value is a scalar of NumPy, and the call returns a new reference.
        let dtype = unsafe {
            let dtype = PY_ARRAY_API.PyArray_DescrFromScalar(py, value.as_ptr());
            Bound::from_owned_ptr_or_opt(py, dtype.cast())?
        };
        if !dtype.is(self.dtype.bind(py)) {
            return None;
        }
        let mut bytes = [0; 8];
        // SAFETY: a number of this dtype has `size` bytes, at most eight.
        unsafe {
            PY_ARRAY_API.PyArray_ScalarAsCtype(py, value.as_ptr(), bytes.as_mut_ptr().cast());
        };
        Some(StoredValue::number(bytes, size))
    }
}

/// Returns kind and size of a dtype whose values are numbers in native byte order.
fn number_of(dtype: &Bound<'_, PyArrayDescr>) -> Option<(u8, usize)> {
    let (kind, size) = (dtype.kind(), dtype.itemsize());
    let known = match kind {
        b'b' => size == 1,
        b'i' | b'u' => matches!(size, 1 | 2 | 4 | 8),
        b'f' => matches!(size, 4 | 8),
        _ => false,
    };
    // Dtypes of other packages may have the kind of a float.
    let is_own = dtype.num() < FIRST_USER_DTYPE && dtype.is_native_byteorder().unwrap_or(true);
    (is_own && known).then_some((kind, size))
}

/// Dtypes that other packages register have this number or a higher one.
const FIRST_USER_DTYPE: i32 = 256;

/// Returns the bytes of a number, followed by zeros.
fn padded<const N: usize>(number: [u8; N]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&number);
    bytes
}

/// Returns the float that is equal to this integer, if there is one.
fn exact(number: i64) -> Option<f64> {
    (number.unsigned_abs() <= 1 << 53).then_some(number as f64)
}

/// Returns the bytes of a float of `size` bytes; None if the number becomes infinite.
fn float(number: f64, size: usize) -> Option<[u8; 8]> {
    if size == 8 {
        return Some(number.to_ne_bytes());
    }
    let small = number as f32;
    (small.is_finite() || !number.is_finite()).then(|| padded(small.to_ne_bytes()))
}

fn in_bytes<'py>(bytes: &Bound<'py, PyBytes>) -> StoredValue<'py> {
    let data = bytes.as_bytes();
    StoredValue::memory(bytes.clone().into_any(), data.as_ptr(), data.len())
}

fn in_array(array: Bound<'_, PyUntypedArray>) -> StoredValue<'_> {
    let start = data_of(&array).cast_const();
    let bytes = array.len() * array.dtype().itemsize();
    StoredValue::memory(array.into_any(), start, bytes)
}

/// The values of a column, and the Python objects that keep them.
pub enum ColumnValues<'py> {
    Missing,
    Fixed(StoredValue<'py>),
    Rows(Vec<StoredValue<'py>>),
    /// Values that are parts of one array.
    Ragged {
        rows: Vec<StoredValue<'py>>,
        _array: Bound<'py, PyAny>,
    },
}

impl ColumnValues<'_> {
    /// Returns the single values; none if the column is one array.
    pub fn values(&self) -> Vec<Value<'_>> {
        match self {
            Self::Missing | Self::Fixed(_) => Vec::new(),
            Self::Rows(rows) | Self::Ragged { rows, .. } => {
                rows.iter().map(StoredValue::value).collect()
            }
        }
    }

    /// Returns the column for the core, given its values.
    pub fn column<'a>(&'a self, values: &'a [Value<'a>]) -> Column<'a> {
        match self {
            Self::Missing => Column::Missing,
            Self::Fixed(held) => Column::Fixed(held.value().bytes()),
            Self::Rows(_) | Self::Ragged { .. } => Column::Rows(values),
        }
    }
}

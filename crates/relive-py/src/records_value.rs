//! Values of records: from Python to bytes, without a copy where they fit as they are.

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

/// What a field takes: name, kind, dtype (none for values of any size), shape, how many
/// leading dimensions vary, and the function that makes other values fit.
pub type Taken<'py> = (
    Bound<'py, PyString>,
    String,
    Option<Bound<'py, PyArrayDescr>>,
    Vec<usize>,
    usize,
    Bound<'py, PyAny>,
);

/// Values of a ragged field: one behind the other, where each begins and ends, and the
/// dimensions that vary of each, where there are several.
type Parts<'py> =
    (Bound<'py, PyUntypedArray>, PyReadonlyArray1<'py, i64>, Option<PyReadonlyArray2<'py, i64>>);

/// How values of all fields come in.
pub struct Plan {
    fields: Vec<FieldPlan>,
    /// Says which name in a record is of no field.
    refuse: Py<PyAny>,
    /// What Python knows of these fields.
    described: Py<PyAny>,
    memmap: Py<PyType>,
}

struct FieldPlan {
    name: Py<PyString>,
    kind: Takes,
    prepare: Py<PyAny>,
}

enum Takes {
    Bytes,
    Text,
    /// Only what was prepared.
    Prepared,
    Array(ArrayPlan),
}

struct ArrayPlan {
    dtype: Py<PyArrayDescr>,
    shape: Vec<usize>,
    varying: usize,
    /// A number of this kind and size, where a value is one in the machine's own order.
    number: Option<(u8, usize)>,
}

/// A value on its way to the core, and what keeps its bytes.
pub struct Held<'py> {
    place: Place,
    dims: Vec<u64>,
    _object: Option<Bound<'py, PyAny>>,
}

enum Place {
    Missing,
    Inline([u8; 8], usize),
    Memory(*const u8, usize),
}

impl Held<'_> {
    const MISSING: Self = Self { place: Place::Missing, dims: Vec::new(), _object: None };

    /// The value as the core takes it.
    pub fn value(&self) -> Value<'_> {
        let bytes = match &self.place {
            Place::Missing => return Value::Missing,
            Place::Inline(bytes, size) => &bytes[..*size],
            // SAFETY: the object that is held has so many bytes there. That nobody writes to
            // an array while it is stored is up to its owner, as with any copy.
            &Place::Memory(start, bytes) => unsafe { slice::from_raw_parts(start, bytes) },
        };
        Value::Bytes { bytes, dims: &self.dims }
    }
}

impl<'py> Held<'py> {
    fn memory(object: Bound<'py, PyAny>, start: *const u8, bytes: usize) -> Self {
        Self { place: Place::Memory(start, bytes), dims: Vec::new(), _object: Some(object) }
    }

    fn number(bytes: [u8; 8], size: usize) -> Self {
        Self { place: Place::Inline(bytes, size), dims: Vec::new(), _object: None }
    }
}

impl Plan {
    pub fn new(
        py: Python<'_>,
        fields: Vec<Taken<'_>>,
        refuse: Py<PyAny>,
        described: Py<PyAny>,
    ) -> PyResult<Self> {
        let fields = fields.into_iter().map(FieldPlan::new).collect();
        let memmap = py.import("numpy")?.getattr("memmap")?.cast_into::<PyType>()?;
        Ok(Self { fields, refuse, described, memmap: memmap.unbind() })
    }

    /// What Python knows of these fields.
    pub fn described(&self, py: Python<'_>) -> Py<PyAny> {
        self.described.clone_ref(py)
    }

    /// Refuses columns that were made for other fields.
    pub fn check(&self, described: &Bound<'_, PyAny>) -> PyResult<()> {
        if described.is(&self.described) {
            return Ok(());
        }
        Err(to_py(Error::Invalid("the fields of the store changed during the call".into())))
    }

    /// Returns the values of a record with their columns; with `whole`, a missing value for every
    /// other field.
    pub fn record<'py>(
        &self,
        record: &Bound<'py, PyDict>,
        whole: bool,
    ) -> PyResult<Vec<(usize, Held<'py>)>> {
        let mut seen = 0;
        let mut values = Vec::with_capacity(self.fields.len());
        for (column, field) in self.fields.iter().enumerate() {
            if let Some(value) = record.get_item(field.name.bind(record.py()))? {
                seen += 1;
                values.push((column, self.value(field, value)?));
            } else if whole {
                values.push((column, Held::MISSING));
            }
        }
        if seen != record.len() {
            self.refuse.bind(record.py()).call1((record,))?;
        }
        Ok(values)
    }

    /// A column: none, an array of all values, `(values, offsets, dims or None)` of a ragged
    /// one, or a list of values. Arrays must fit as they are.
    pub fn column<'py>(&self, column: usize, given: &Bound<'py, PyAny>) -> PyResult<Columns<'py>> {
        let missing = || Error::out_of_range(column, self.fields.len(), "field", "fields");
        let field = self.fields.get(column).ok_or_else(|| to_py(missing()))?;
        if given.is_none() {
            return Ok(Columns::Missing);
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
                // Where it is matters more than that this could not be said.
                let _ = error.value(given.py()).call_method1("add_note", (format!("row {row}"),));
            })?);
        }
        Ok(Columns::Rows(rows))
    }

    fn value<'py>(&self, field: &FieldPlan, value: Bound<'py, PyAny>) -> PyResult<Held<'py>> {
        let py = value.py();
        if value.is_none() {
            return Ok(Held::MISSING);
        }
        let held = match &field.kind {
            Takes::Bytes => value.cast::<PyBytes>().ok().map(in_bytes),
            Takes::Text => value.cast::<PyString>().ok().and_then(|text| {
                let text = text.to_str().ok()?;
                Some(Held::memory(value.clone(), text.as_ptr(), text.len()))
            }),
            Takes::Prepared => None,
            Takes::Array(plan) => plan.take(&value, self.memmap.bind(py)),
        };
        if let Some(held) = held {
            return Ok(held);
        }
        let prepared = field.prepare.bind(py).call1((value,))?;
        if prepared.is_none() {
            return Ok(Held::MISSING);
        }
        let held = match &field.kind {
            Takes::Array(plan) => plan.take(&prepared, self.memmap.bind(py)),
            _ => prepared.cast::<PyBytes>().ok().map(in_bytes),
        };
        let text = "the prepared value does not have the dtype and shape of the field";
        held.ok_or_else(|| field.misfit(py, text))
    }
}

impl FieldPlan {
    fn new((name, kind, dtype, shape, varying, prepare): Taken<'_>) -> Self {
        let kind = match (dtype, kind.as_str()) {
            (Some(dtype), _) => {
                let number = number_of(&dtype).filter(|_| varying == 0 && shape.is_empty());
                Takes::Array(ArrayPlan { dtype: dtype.unbind(), shape, varying, number })
            }
            (None, "bytes") => Takes::Bytes,
            (None, "str") => Takes::Text,
            (None, _) => Takes::Prepared,
        };
        Self { name: name.unbind(), kind, prepare: prepare.unbind() }
    }

    fn misfit(&self, py: Python<'_>, what: &str) -> PyErr {
        let name = self.name.bind(py);
        to_py(Error::Invalid(format!("field {name:?}: {what}")))
    }

    /// All values of a fixed field.
    fn whole<'py>(&self, array: &Bound<'py, PyUntypedArray>) -> PyResult<Columns<'py>> {
        let fits = match &self.kind {
            Takes::Array(plan) => {
                plan.varying == 0
                    && plan.is_of(array)
                    && array.shape().get(1..) == Some(&plan.shape[..])
            }
            _ => false,
        };
        if !fits {
            return Err(
                self.misfit(array.py(), "the column does not have the dtype or shape of the field")
            );
        }
        Ok(Columns::Fixed(in_array(array.clone())))
    }

    /// Values of a ragged field, one behind the other.
    fn ragged<'py>(&self, parts: &Bound<'py, PyTuple>) -> PyResult<Columns<'py>> {
        let py = parts.py();
        let (values, offsets, dims): Parts<'py> = parts.extract()?;
        let offsets: Vec<usize> = offsets.as_array().iter().map(|&at| at as usize).collect();
        let dims: Option<Vec<Vec<u64>>> = dims.map(|dims| {
            let row = |row: ArrayView1<'_, i64>| row.iter().map(|&dim| dim as u64).collect();
            dims.as_array().outer_iter().map(row).collect()
        });
        let Takes::Array(plan) = &self.kind else {
            return Err(self.misfit(py, "the column does not have the dtype or shape of the field"));
        };
        let Some((&items, inner)) = values.shape().split_first() else {
            return Err(self.misfit(py, "values must have at least one dimension"));
        };
        let unit = values.dtype().itemsize() * inner.iter().product::<usize>();
        let in_order = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let within = offsets.last().is_some_and(|&last| last <= items);
        let rows = offsets.len().saturating_sub(1);
        let sized = dims.as_ref().is_none_or(|dims| dims.len() == rows);
        if !plan.is_of(&values) || !in_order || !within || !sized {
            return Err(self.misfit(py, "the column does not have the dtype or shape of the field"));
        }
        let start = data_of(&values).cast_const();
        let mut dims = dims.unwrap_or_default().into_iter();
        let held = offsets.windows(2).map(|pair| Held {
            // Inside of the array, as was looked at above.
            place: Place::Memory(start.wrapping_add(pair[0] * unit), (pair[1] - pair[0]) * unit),
            dims: dims.next().unwrap_or_default(),
            _object: None,
        });
        Ok(Columns::Ragged { rows: held.collect(), _array: values.into_any() })
    }
}

impl ArrayPlan {
    /// Whether the array holds items of the field, in one piece.
    fn is_of(&self, array: &Bound<'_, PyUntypedArray>) -> bool {
        let (have, want) = (array.dtype(), self.dtype.bind(array.py()));
        array.is_c_contiguous() && (have.is(want) || have.is_equiv_to(want))
    }

    /// The value, if it fits as it is.
    fn take<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        memmap: &Bound<'py, PyType>,
    ) -> Option<Held<'py>> {
        if let Some((kind, size)) = self.number
            && let Some(held) = self.take_number(value, kind, size)
        {
            return Some(held);
        }
        let array = value.cast::<PyUntypedArray>().ok()?;
        let class = value.get_type();
        // SAFETY: the type object of arrays lives as long as NumPy.
        let plain = unsafe { npyffi::get_type_object(value.py(), NpyTypes::PyArray_Type) };
        // What other classes of arrays mean by their bytes is theirs to say.
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

    /// A number of Python, or one of NumPy with the very dtype.
    fn take_number<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        kind: u8,
        size: usize,
    ) -> Option<Held<'py>> {
        if value.is_exact_instance_of::<PyInt>() {
            return match kind {
                b'i' => integer(value.extract::<i64>().ok()?, size),
                b'u' => unsigned(value.extract::<u64>().ok()?, size),
                b'f' => float(exact(value.extract::<i64>().ok()?)?, size),
                _ => None,
            };
        }
        if value.is_exact_instance_of::<PyFloat>() {
            return if kind == b'f' { float(value.extract::<f64>().ok()?, size) } else { None };
        }
        if value.is_exact_instance_of::<PyBool>() {
            let bit = u8::from(value.is_truthy().ok()?);
            return (kind == b'b').then(|| Held::number([bit, 0, 0, 0, 0, 0, 0, 0], 1));
        }
        let py = value.py();
        // SAFETY: the type object lives as long as NumPy.
        let generic = unsafe {
            PyType::from_borrowed_type_ptr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyGenericArrType_Type),
            )
        };
        if !value.is_instance(&generic).unwrap_or(false) {
            return None;
        }
        // SAFETY: the value is a scalar of NumPy, and the call gives a new reference.
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
        Some(Held::number(bytes, size))
    }
}

/// Kind and size of a dtype whose values are numbers in the machine's own order.
fn number_of(dtype: &Bound<'_, PyArrayDescr>) -> Option<(u8, usize)> {
    let own = dtype.is_native_byteorder().unwrap_or(true);
    // Somebody else's dtypes may call themselves floats.
    let numpys = dtype.num() < NUMPY_TYPES;
    let (kind, size) = (dtype.kind(), dtype.itemsize());
    let known = match kind {
        b'b' => size == 1,
        b'i' | b'u' => matches!(size, 1 | 2 | 4 | 8),
        b'f' => matches!(size, 4 | 8),
        _ => false,
    };
    (own && numpys && known).then_some((kind, size))
}

/// Numbers of types from here on are given to those that others add.
const NUMPY_TYPES: i32 = 256;

fn integer<'py>(number: i64, size: usize) -> Option<Held<'py>> {
    let bits = 8 * size as u32;
    let fits = bits == 64 || (number >> (bits - 1)) == 0 || (number >> (bits - 1)) == -1;
    fits.then(|| Held::number(little(number.to_ne_bytes(), size), size))
}

fn unsigned<'py>(number: u64, size: usize) -> Option<Held<'py>> {
    let fits = size == 8 || number >> (8 * size) == 0;
    fits.then(|| Held::number(little(number.to_ne_bytes(), size), size))
}

/// The low `size` bytes of a number, in front.
fn little(bytes: [u8; 8], size: usize) -> [u8; 8] {
    if cfg!(target_endian = "little") {
        return bytes;
    }
    let mut front = [0; 8];
    front[..size].copy_from_slice(&bytes[8 - size..]);
    front
}

/// The float that is this integer, if there is one.
fn exact(number: i64) -> Option<f64> {
    (number.unsigned_abs() <= 1 << 53).then_some(number as f64)
}

fn float<'py>(number: f64, size: usize) -> Option<Held<'py>> {
    if size == 8 {
        return Some(Held::number(number.to_ne_bytes(), 8));
    }
    let small = number as f32;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&small.to_ne_bytes());
    (small.is_finite() || !number.is_finite()).then(|| Held::number(bytes, 4))
}

fn in_bytes<'py>(bytes: &Bound<'py, PyBytes>) -> Held<'py> {
    let data = bytes.as_bytes();
    Held::memory(bytes.clone().into_any(), data.as_ptr(), data.len())
}

fn in_array(array: Bound<'_, PyUntypedArray>) -> Held<'_> {
    let start = data_of(&array).cast_const();
    let bytes = array.len() * array.dtype().itemsize();
    Held::memory(array.into_any(), start, bytes)
}

/// A column on its way to the core, and what keeps its bytes.
pub enum Columns<'py> {
    Missing,
    Fixed(Held<'py>),
    Rows(Vec<Held<'py>>),
    /// Values of one array, which is kept.
    Ragged {
        rows: Vec<Held<'py>>,
        _array: Bound<'py, PyAny>,
    },
}

impl Columns<'_> {
    /// Its values; of one that is not cut into values, none.
    pub fn values(&self) -> Vec<Value<'_>> {
        match self {
            Self::Missing | Self::Fixed(_) => Vec::new(),
            Self::Rows(rows) | Self::Ragged { rows, .. } => rows.iter().map(Held::value).collect(),
        }
    }

    /// The column as the core takes it, given its values.
    pub fn column<'a>(&'a self, values: &'a [Value<'a>]) -> Column<'a> {
        match self {
            Self::Missing => Column::Missing,
            Self::Fixed(held) => Column::Fixed(held.value().bytes()),
            Self::Rows(_) | Self::Ragged { .. } => Column::Rows(values),
        }
    }
}

//! Text that the database of a run has: JSON under checksums, and times.

/// JSON as Python's `json.dumps` writes it, without spaces and with characters as they are.
#[derive(Debug, Default)]
pub struct JsonText {
    text: Vec<u8>,
}

impl JsonText {
    /// Returns the text so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Removes all text.
    pub fn clear(&mut self) {
        self.text.clear();
    }

    /// Adds other text.
    pub fn push_json(&mut self, text: &Self) {
        self.text.extend_from_slice(&text.text);
    }

    /// Adds text that is JSON already: brackets, commas, integers, `null`.
    pub fn push_raw(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    /// Adds a float as Python does: the shortest text that reads back as the same float.
    pub fn push_float(&mut self, value: f64) {
        self.push_raw(&float_text(value));
    }

    /// Adds a string, given by its bytes in UTF-8, or in an encoding of text that is not Unicode.
    pub fn push_str(&mut self, value: &[u8]) {
        self.text.push(b'"');
        for &byte in value {
            match byte {
                b'"' => self.push_raw("\\\""),
                b'\\' => self.push_raw("\\\\"),
                b'\n' => self.push_raw("\\n"),
                b'\r' => self.push_raw("\\r"),
                b'\t' => self.push_raw("\\t"),
                8 => self.push_raw("\\b"),
                12 => self.push_raw("\\f"),
                0..32 => self.push_raw(&format!("\\u{byte:04x}")),
                _ => self.text.push(byte),
            }
        }
        self.text.push(b'"');
    }
}

/// Returns a float as Python's `repr` writes it, and as `json.dumps` does if it is not finite.
pub fn float_text(value: f64) -> String {
    if !value.is_finite() {
        let infinity = if value.is_sign_negative() { "-Infinity" } else { "Infinity" };
        return if value.is_nan() { "NaN" } else { infinity }.to_owned();
    }
    // The digits of the shortest text, and the exponent of the first of them.
    let mut shortest = format!("{:e}", value.abs());
    // Of two texts that are as near, Python has the one with an even last digit, Rust the larger.
    let digits = shortest.bytes().take_while(|&byte| byte != b'e').filter(u8::is_ascii_digit);
    let even = format!("{:.*e}", digits.count().saturating_sub(1), value.abs());
    if even.parse() == Ok(value.abs()) {
        shortest = even;
    }
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits = digits.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let mut text = String::with_capacity(24);
    if value.is_sign_negative() {
        text.push('-');
    }
    match exponent {
        -4..0 => {
            text.push_str("0.");
            text.extend(std::iter::repeat_n('0', (-exponent - 1) as usize));
            text.push_str(&digits);
        }
        0..16 => {
            let whole = exponent as usize + 1;
            text.push_str(&digits[..whole.min(digits.len())]);
            text.extend(std::iter::repeat_n('0', whole.saturating_sub(digits.len())));
            text.push('.');
            text.push_str(digits.get(whole..).filter(|rest| !rest.is_empty()).unwrap_or("0"));
        }
        _ => {
            text.push_str(&digits[..1]);
            if digits.len() > 1 {
                text.push('.');
                text.push_str(&digits[1..]);
            }
            let sign = if exponent < 0 { '-' } else { '+' };
            text.push_str(&format!("e{sign}{:02}", exponent.abs()));
        }
    }
    text
}

/// Returns a time in nanoseconds since 1970 as ISO-8601 in UTC, with microseconds, rounded down.
pub fn timestamp(ts_ns: i64) -> String {
    let (seconds, micros) =
        (ts_ns.div_euclid(1_000_000_000), ts_ns.rem_euclid(1_000_000_000) / 1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
}

/// Returns year, month and day of a day, counted from 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    // Years that begin in March end with the day that only some of them have.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_as_python_writes_them() {
        for (value, wanted) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_012, "1.2e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (5e-324, "5e-324"),
            (2.980_232_238_769_531_2e-8, "2.9802322387695312e-08"),
            (5.0 * f64::powi(2.0, -23), "5.960464477539062e-07"),
            (-1_113_178_120_592_002.0 - 0.25, "-1113178120592002.2"),
            (123_456.789, "123456.789"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(float_text(value), wanted);
        }
    }

    #[test]
    fn strings_are_escaped() {
        let mut text = JsonText::default();
        text.push_str("a\"b\\c\n\r\t\u{8}\u{c}\u{1}\u{7f}é".as_bytes());
        let wanted = "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\u{7f}é\"";
        assert_eq!(text.as_bytes(), wanted.as_bytes());
    }

    #[test]
    fn times_of_any_year() {
        for (ts_ns, wanted) in [
            (0, "1970-01-01T00:00:00.000000+00:00"),
            (-1, "1969-12-31T23:59:59.999999+00:00"),
            (951_782_400_000_001_999, "2000-02-29T00:00:00.000001+00:00"),
            (4_107_542_399_999_999_999, "2100-02-28T23:59:59.999999+00:00"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000+00:00"),
            (i64::MIN, "1677-09-21T00:12:43.145224+00:00"),
            (i64::MAX, "2262-04-11T23:47:16.854775+00:00"),
        ] {
            assert_eq!(timestamp(ts_ns), wanted);
        }
    }
}

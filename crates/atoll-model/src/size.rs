//! Sizes, CPU counts and durations with their text notation.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Size of memory or disk space in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 4] = [
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

impl FromStr for Bytes {
    type Err = Error;

    /// Parses `512M`, `2G`, `1.5GiB` or `1048576`. Units are powers of 1024.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            Error::invalid(
                "size",
                format!("{text:?} is not a size"),
                "write it like 512M or 2G",
            )
        };
        let upper = text.trim().to_ascii_uppercase();
        let plain = upper.trim_end_matches("IB").trim_end_matches('B');
        let unit = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((plain.strip_suffix(unit)?, *factor)));
        let (number, factor) = unit.unwrap_or((plain, 1));
        let number: f64 = number.trim().parse().map_err(|_| invalid())?;
        let bytes = number * factor as f64;
        if !(0.0..9e18).contains(&bytes) {
            return Err(invalid());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, factor)| self.0 >= *factor) {
            Some((unit, factor)) if self.0.is_multiple_of(*factor) => {
                write!(f, "{} {unit}iB", self.0 / factor)
            }
            Some((unit, factor)) => write!(f, "{:.1} {unit}iB", self.0 as f64 / *factor as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// CPU limit in thousandths of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cpus(pub u32);

impl FromStr for Cpus {
    type Err = Error;

    /// Parses `2` or `0.5`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let number: f64 = text.trim().parse().unwrap_or(-1.0);
        if !(0.0..=4096.0).contains(&number) {
            return Err(Error::invalid(
                "cpus",
                format!("{text:?} is not a number of cpus"),
                "write it like 2 or 0.5",
            ));
        }
        Ok(Self((number * 1000.0).round() as u32))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

/// Parses `30s`, `5m`, `2h`, `250ms`, or a plain number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let units = [
        ("ms", 0.001),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", 86400.0),
    ];
    let text = text.trim();
    let unit = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    let seconds = number
        .trim()
        .parse::<f64>()
        .map_or(-1.0, |number| number * factor);
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        Error::invalid(
            "duration",
            format!("{text:?} is not a duration"),
            "write it like 30s, 5m or 250ms",
        )
    })
}

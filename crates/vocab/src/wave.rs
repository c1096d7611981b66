//! The waves of a batch: how many servers start together, and what must happen before the next.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::quote_input;
use crate::{Portion, PortionError};

/// One wave of a batch, as a user defines it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Wave {
    /// Number or percentage of the servers; `None`: all that are left.
    pub size: Option<Portion>,
    /// Minutes to wait after the last server of this wave has ended, before the next wave.
    pub soak_minutes: u32,
    /// Whether a second person must approve this wave before it starts.
    pub approval: bool,
}

impl Wave {
    /// The maximum number of waves.
    pub const COUNT_MAX: usize = 20;
    /// The longest soak: one week.
    pub const SOAK_MINUTES_MAX: u32 = 10_080;
}

/// Error returned when parsing a wave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaveError {
    #[error("the size of a wave {0}, or must be `rest`")]
    Size(PortionError),
    #[error(
        "`{0}` is not part of a wave: write a size and, after commas, `soak=MINUTES` and `approval`"
    )]
    Part(String),
    #[error("`soak` must be a number of minutes (got `{0}`)")]
    Soak(String),
}

/// Parses the form in which people write a wave: `1`, `10%,soak=60`, `rest,approval`.
impl FromStr for Wave {
    type Err = WaveError;
    fn from_str(text: &str) -> Result<Self, WaveError> {
        let mut parts = text.split(',').map(str::trim);
        let size = match parts.next().unwrap_or_default() {
            "rest" => None,
            size => Some(size.parse().and_then(Portion::at_least_one).map_err(WaveError::Size)?),
        };
        let mut wave = Wave { size, ..Wave::default() };
        for part in parts {
            match part.split_once('=') {
                None if part == "approval" => wave.approval = true,
                Some(("soak", minutes)) => {
                    let wrong = |_| WaveError::Soak(quote_input(minutes));
                    wave.soak_minutes = minutes.parse().map_err(wrong)?;
                }
                _ => return Err(WaveError::Part(quote_input(part))),
            }
        }
        Ok(wave)
    }
}

impl fmt::Display for Wave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{size}")?,
            None => f.write_str("rest")?,
        }
        if self.soak_minutes > 0 {
            write!(f, ",soak={}", self.soak_minutes)?;
        }
        if self.approval {
            f.write_str(",approval")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["1", "10%", "10%,soak=60", "rest", "rest,approval", "5,soak=30,approval"] {
            let wave: Wave = text.parse().unwrap();
            assert_eq!(wave.to_string(), text);
        }
        assert_eq!(" 10% , soak=60".parse::<Wave>().unwrap().to_string(), "10%,soak=60");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = |text: &str| text.parse::<Wave>().unwrap_err().to_string();
        assert_eq!(error("0"), "the size of a wave must not be zero, or must be `rest`");
        assert!(error("").contains("must be a count like 3"));
        assert!(error("1,soak=soon").contains("`soak` must be a number of minutes"));
        assert!(error("1,approve").contains("`approve` is not part of a wave"));
    }
}

//! Why an order, or one part of it, fails: a code for programs and a message for people.

use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Line};

use crate::backend::Diagnosis;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub message: Line,
}

impl Failure {
    /// A failure with this code and these words.
    pub fn new(code: FailureCode, message: impl Into<Line>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<Diagnosis> for Failure {
    fn from(diagnosis: Diagnosis) -> Failure {
        Failure { code: diagnosis.code, message: diagnosis.message }
    }
}

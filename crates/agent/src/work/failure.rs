//! Why an order, or a part of it, failed: a code for programs and a message for people.

use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Line};

use crate::backend::Diagnosis;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    pub message: Line,
}

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<Line>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<Diagnosis> for Failure {
    fn from(diagnosis: Diagnosis) -> Failure {
        Failure { code: diagnosis.code, message: diagnosis.message }
    }
}

//! Checks whether a program is statically linked.

use std::path::Path;

use crate::process::TaskError;

/// Whether a program requests a dynamic loader, and therefore needs the system's C library.
pub(crate) fn is_dynamically_linked(program: &Path) -> Result<bool, TaskError> {
    let bytes = std::fs::read(program).map_err(|error| {
        TaskError::Failed(format!("cannot read {}: {error}", program.display()))
    })?;
    has_interpreter_segment(&bytes).ok_or_else(|| {
        TaskError::Failed(format!(
            "{} is not a 64-bit little-endian ELF program",
            program.display()
        ))
    })
}

/// Looks for an interpreter segment (type 3) in the program headers of a 64-bit little-endian ELF
/// file.
fn has_interpreter_segment(bytes: &[u8]) -> Option<bool> {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, length: usize| {
        let part = bytes.get(at..at.checked_add(length)?)?;
        Some(part.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    bytes.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let table = usize::try_from(number(32, 8)?).ok()?;
    let size = usize::try_from(number(54, 2)?).ok()?;
    let count = usize::try_from(number(56, 2)?).ok()?;
    let kinds = (0..count).map(|index| number(table.checked_add(index * size)?, 4));
    kinds.collect::<Option<Vec<u64>>>().map(|kinds| kinds.contains(&INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_loader_is_detected_and_invalid_files_are_refused() {
        let own = std::env::current_exe().unwrap();
        assert!(is_dynamically_linked(&own).unwrap_or(false), "tests are dynamically linked");
        assert_eq!(has_interpreter_segment(b"#!/bin/sh\n"), None);
        let mut cut = std::fs::read(own).unwrap();
        cut.truncate(60);
        assert_eq!(has_interpreter_segment(&cut), None);
    }
}

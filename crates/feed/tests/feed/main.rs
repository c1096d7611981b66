//! What the readers promise, on small feeds made by hand; and on real ones, where there are some.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "what is skipped must be seen, and what real feeds hold")]

mod arch;
mod broken;
mod csaf;
mod damage;
mod debsecan;
mod differential;
mod forms;
mod meaning;
mod osv_spec;
mod real;
mod real_csaf;
mod support;

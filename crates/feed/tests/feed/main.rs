//! Tests of the feed readers: on small synthetic feeds, and on real feeds where they are available.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(clippy::print_stdout, reason = "tests report what they skip and what real feeds contain")]

mod arch;
mod broken;
mod corruption;
mod csaf;
mod debsecan;
mod differential;
mod formats;
mod osv_spec;
mod publisher_fields;
mod real;
mod real_csaf;
mod support;
mod updateinfo;

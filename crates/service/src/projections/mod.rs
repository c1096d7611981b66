//! Background work that keeps derived rows current. Each projection is woken by a notification or a
//! timer, reads what changed, and writes only the rows that are different now.

pub mod compliance;
pub mod daily_stats;
pub mod findings;
pub mod patches;

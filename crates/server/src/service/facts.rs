//! What an agent tells of its host beyond what every list shows, as it is kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::Line;
use wire::agent::{Facts, OLD_CODE_MAX, OldCode};

/// The most other updaters that are kept of one host; there are not that many in the world.
const UPDATERS_MAX: usize = 50;

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    pub(crate) old_code: Vec<OldCode>,
    pub(crate) other_updaters: Vec<Line>,
}

/// What to keep of what was told.
pub(crate) fn keep(facts: &Facts) -> Value {
    let told = Told {
        old_code: facts.old_code.iter().take(OLD_CODE_MAX).cloned().collect(),
        other_updaters: facts.other_updaters.iter().take(UPDATERS_MAX).cloned().collect(),
    };
    serde_json::to_value(told).expect("lists of text are JSON")
}

/// What was kept; nothing of a server that has not told yet.
pub(crate) fn kept(value: &Value) -> Told {
    Told::deserialize(value).unwrap_or_default()
}

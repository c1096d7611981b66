//! `/styleguide` of development builds: every part that pages are made of.

use axum::extract::State;
use wire::v1::SeverityCounts;

use crate::pages::facets::Filters;
use crate::pages::form_errors::FormErrors;
use crate::pages::{Section, choice};
use crate::response::{PageResult, frame, page};
use crate::{Dashboard, Viewer, pages};

pub(crate) async fn show(State(app): State<Dashboard>, viewer: Viewer) -> PageResult {
    let mut errors = FormErrors::new(&[("name", "Name"), ("reason", "Reason")]);
    errors.add("reason", "must not be empty");
    let filters = Filters::new("/styleguide", vec![("status", "online".to_owned())]);
    page(&pages::Styleguide {
        frame: frame(&app, &viewer, Section::Search, "Style guide"),
        errors,
        counts: SeverityCounts { critical: 1, high: 12, medium: 120, low: 3, unknown: 4 },
        menus: vec![
            filters.choices("Status", "status", choice::STATUS),
            filters.choices("Sort", "sort", choice::SORT),
        ],
    })
}

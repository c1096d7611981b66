//! The pages of patches and CVEs.

use axum::extract::State;
use httpkit::filters::{CveFilter, CveServers, PatchFilter, PatchServers};
use httpkit::problem::ApiError;
use httpkit::{Body, Id, RequestUrl, page as paging};
use serde_json::{Value, json};
use service::queries::cves::SeverityFacets;
use service::requests::Versions;
use service::{queries, requests};
use vocab::SuppressionId;
use wire::v1::{CreateSuppression, Suppression};

use crate::display::display;
use crate::extract::{Form, ListQuery, PageQuery};
use crate::pages::Section;
use crate::pages::choice::Choice;
use crate::pages::display::{CVES, PATCHES};
use crate::pages::facets::{FacetMenu, Filters};
use crate::pages::form::{SUPPRESSION_FIELDS, SuppressionForm};
use crate::pages::form_errors::FormErrors;
use crate::response::{PageResult, form_errors, frame, invalid_input, live_frame, page, redirect};
use crate::{Dashboard, Viewer, feeds, pages, plots};

/// The filter menus of both lists.
fn menus(filters: &Filters, facets: SeverityFacets, sort: &'static [Choice]) -> Vec<FacetMenu> {
    let count = |value: &str| match value {
        "critical" => facets.critical,
        "high" => facets.high,
        "medium" => facets.medium,
        "low" => facets.low,
        "unknown" => facets.unknown,
        "critical,high" => facets.critical + facets.high,
        "true" => facets.exploited,
        _ => facets.not_exploited,
    };
    vec![
        filters.counted("Severity", "severity", pages::choice::SEVERITY, count),
        filters.counted("Exploited", "kev", pages::choice::KEV, count),
        filters.choices("Sort", "sort", sort),
    ]
}

pub(crate) async fn patches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    list_query: ListQuery<PatchFilter>,
) -> PageResult {
    let filters = list_query.filters("/patches", &["q", "severity", "kev", "sort"]);
    let display = display(&app, &viewer, &PATCHES, &list_query, &filters).await?;
    let page_query = list_query.page;
    let facets = queries::patches::facets(&app, &viewer.caller().scope()).await?;
    let menus = menus(&filters, facets, pages::choice::PATCH_SORT);
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let found =
        queries::patches::list(&app, &scope, page_query.parameters.into_filter(), part).await?;
    let list = paging::list(&url, part, found, |patch| patch).0;
    let ages = plots::ages(&app, &viewer).await?;
    let frame = live_frame(&app, &viewer, Section::Patches, "Patches");
    page(&pages::Patches { frame, list, filters, menus, query, ages, display })
}

pub(crate) async fn patch(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(name): Id<String>,
    query: PageQuery<PatchServers>,
) -> PageResult {
    let scope = viewer.caller().scope();
    let it = queries::patches::get(&app, &scope, &name, query.parameters.page()).await?;
    let frame = live_frame(&app, &viewer, Section::Patches, it.patch.package_name.clone());
    page(&pages::PatchPage { frame, it })
}

pub(crate) async fn cves(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    list_query: ListQuery<CveFilter>,
) -> PageResult {
    let filters = list_query.filters("/cves", &["q", "severity", "kev", "sort"]);
    let display = display(&app, &viewer, &CVES, &list_query, &filters).await?;
    let page_query = list_query.page;
    let facets = queries::cves::facets(&app, &viewer.caller().scope()).await?;
    let menus = menus(&filters, facets, pages::choice::CVE_SORT);
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let found =
        queries::cves::list(&app, &scope, page_query.parameters.into_filter(), part).await?;
    let list = paging::list(&url, part, found, |cve| cve).0;
    let importing = queries::feeds::importing(&app).await?;
    let explanation = feeds::explanation(&app);
    let frame = live_frame(&app, &viewer, Section::Cves, "CVEs");
    page(&pages::Cves { frame, list, filters, menus, query, importing, explanation, display })
}

pub(crate) async fn cve(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<String>,
    query: PageQuery<CveServers>,
) -> PageResult {
    let it =
        queries::cves::get(&app, &viewer.caller().scope(), &id, query.parameters.page()).await?;
    let suppressions = active_suppressions(&app, &viewer, &id).await?;
    let importing = queries::feeds::importing(&app).await?;
    let frame = live_frame(&app, &viewer, Section::Cves, it.cve.id.clone());
    page(&pages::CvePage { frame, it, suppressions, importing })
}

/// Maximum number of suppressions on the page of a CVE.
const SUPPRESSIONS_MAX: u32 = 50;

async fn active_suppressions(
    app: &Dashboard,
    viewer: &Viewer,
    cve: &str,
) -> Result<Vec<Suppression>, ApiError> {
    let part = queries::Page { limit: SUPPRESSIONS_MAX, offset: 0 };
    let scope = viewer.caller().scope();
    let found = queries::suppressions::list(app, &scope, Some(cve.to_owned()), part).await?;
    Ok(found.items.into_iter().filter(|one| one.active).collect())
}

/// The form that suppresses a CVE.
pub(crate) async fn suppress_form(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<String>,
) -> PageResult {
    page(
        &suppress_page(&app, &viewer, &id, SuppressionForm::default(), FormErrors::default())
            .await?,
    )
}

pub(crate) async fn suppress(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<String>,
    sent: Form,
) -> PageResult {
    let form = SuppressionForm {
        reason: sent.text("reason").split_whitespace().collect::<Vec<_>>().join(" "),
        environment: sent.text("environment"),
        package: sent.text("package"),
        until: sent.text("expires_at"),
    };
    let mut body = json!({"cve": id, "reason": form.reason});
    for (name, text) in [("environment", &form.environment), ("package", &form.package)] {
        if !text.is_empty() {
            body[name] = json!(text);
        }
    }
    if !form.until.is_empty() {
        body["expires_at"] = json!(format!("{}T00:00:00Z", form.until));
    }
    // Fails if there is no such CVE.
    let view = suppress_page(&app, &viewer, &id, form, FormErrors::default()).await?;
    match create_suppression(&app, &viewer, &body).await {
        Ok(()) => redirect(&format!("/cves/{id}")),
        Err(error) => {
            let errors = form_errors(error, SUPPRESSION_FIELDS)?;
            invalid_input(&pages::Suppress { errors, ..view })
        }
    }
}

async fn create_suppression(
    app: &Dashboard,
    viewer: &Viewer,
    body: &Value,
) -> Result<(), ApiError> {
    let body: Body<CreateSuppression> = Body::from_value(body)?;
    requests::suppressions::create(app, &viewer.caller(), body.into_parts()).await?;
    Ok(())
}

async fn suppress_page(
    app: &Dashboard,
    viewer: &Viewer,
    id: &str,
    form: SuppressionForm,
    errors: FormErrors,
) -> Result<pages::Suppress, ApiError> {
    let part = queries::Page { limit: 1, offset: 0 };
    let it = queries::cves::get(app, &viewer.caller().scope(), id, part).await?;
    let environments = it.environments.iter().filter_map(|one| one.environment.as_ref());
    let options = |all: &str, values: Vec<String>| {
        let values = values.into_iter().map(|value| (value.clone(), value));
        [(String::new(), all.to_owned())].into_iter().chain(values).collect()
    };
    Ok(pages::Suppress {
        frame: frame(app, viewer, Section::Cves, format!("Suppress {id}")),
        environments: options("All servers", environments.map(ToString::to_string).collect()),
        packages: options("All affected packages", it.cve.packages),
        cve: it.cve.id,
        form,
        errors,
    })
}

/// Deletes a suppression, and returns to the page of its CVE.
pub(crate) async fn delete_suppression(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<SuppressionId>,
    _form: Form,
) -> PageResult {
    let caller = viewer.caller();
    let cve = queries::suppressions::find(&app, &caller.scope(), id).await?.cve;
    requests::suppressions::delete(&app, &caller, id, &Versions::Any).await?;
    redirect(&format!("/cves/{cve}"))
}

//! The pages of patches and CVEs.

use axum::extract::State;
use httpkit::filters::{CveFilter, CveServers, PatchFilter, PatchServers};
use httpkit::{Id, RequestUrl, page as paging};
use service::queries;

use crate::extract::PageQuery;
use crate::pages::Section;
use crate::pages::facets::Filters;
use crate::response::{PageResult, live_frame, page};
use crate::{Dashboard, Viewer, feeds, pages, plots};

pub(crate) async fn patches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    url: RequestUrl,
    page_query: PageQuery<PatchFilter>,
) -> PageResult {
    let pairs = ["q", "severity"].map(|name| (name, page_query.text(name)));
    let filters = Filters::new("/patches", pairs.into());
    let menus = vec![filters.choices("Severity", "severity", pages::choice::SEVERITY)];
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let found =
        queries::patches::list(&app, &scope, page_query.parameters.into_filter(), part).await?;
    let list = paging::list(&url, part, found, |patch| patch).0;
    let ages = plots::ages(&app, &viewer).await?;
    let frame = live_frame(&app, &viewer, Section::Patches, "Patches");
    page(&pages::Patches { frame, list, filters, menus, query, ages })
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
    page_query: PageQuery<CveFilter>,
) -> PageResult {
    let pairs = ["q", "severity", "kev"].map(|name| (name, page_query.text(name)));
    let filters = Filters::new("/cves", pairs.into());
    let menus = vec![
        filters.choices("Severity", "severity", pages::choice::SEVERITY),
        filters.choices("Exploited", "kev", pages::choice::KEV),
    ];
    let query = page_query.query();
    let (part, scope) = (page_query.parameters.page(), viewer.caller().scope());
    let found =
        queries::cves::list(&app, &scope, page_query.parameters.into_filter(), part).await?;
    let list = paging::list(&url, part, found, |cve| cve).0;
    let importing = queries::feeds::importing(&app).await?;
    let explanation = feeds::explanation(&app);
    let frame = live_frame(&app, &viewer, Section::Cves, "CVEs");
    page(&pages::Cves { frame, list, filters, menus, query, importing, explanation })
}

pub(crate) async fn cve(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<String>,
    query: PageQuery<CveServers>,
) -> PageResult {
    let it =
        queries::cves::get(&app, &viewer.caller().scope(), &id, query.parameters.page()).await?;
    let importing = queries::feeds::importing(&app).await?;
    let frame = live_frame(&app, &viewer, Section::Cves, it.cve.id.clone());
    page(&pages::CvePage { frame, it, importing })
}

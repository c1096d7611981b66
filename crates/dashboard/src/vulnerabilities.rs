//! The pages of patches and CVEs.

use axum::extract::State;
use httpkit::filters::{CveFilter, CveServers, PatchFilter, PatchServers};
use httpkit::{Here, Id, page as paging};
use service::queries;

use crate::extract::Asked;
use crate::pages::Section;
use crate::response::{Answer, live, page};
use crate::{Dashboard, Viewer, pages, plots};

pub(crate) async fn patches(
    State(app): State<Dashboard>,
    viewer: Viewer,
    here: Here,
    asked: Asked<PatchFilter>,
) -> Answer {
    let (severity, query) = (asked.text("severity"), asked.query());
    let (part, scope) = (asked.meant.page(), viewer.caller().scope());
    let found = queries::patches::list(&app, &scope, asked.meant.wanted(), part).await?;
    let list = paging::list(&here, part, found, |patch| patch).0;
    let ages = plots::ages(&app, &viewer).await?;
    let frame = live(&app, &viewer, Section::Patches, "Patches");
    page(&pages::Patches { frame, list, severity, query, ages })
}

pub(crate) async fn patch(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(name): Id<String>,
    asked: Asked<PatchServers>,
) -> Answer {
    let scope = viewer.caller().scope();
    let it = queries::patches::get(&app, &scope, &name, asked.meant.page()).await?;
    let frame = live(&app, &viewer, Section::Patches, it.patch.package_name.clone());
    page(&pages::PatchPage { frame, it })
}

pub(crate) async fn cves(
    State(app): State<Dashboard>,
    viewer: Viewer,
    here: Here,
    asked: Asked<CveFilter>,
) -> Answer {
    let [q, severity, kev] = ["q", "severity", "kev"].map(|name| asked.text(name));
    let query = asked.query();
    let (part, scope) = (asked.meant.page(), viewer.caller().scope());
    let found = queries::cves::list(&app, &scope, asked.meant.wanted(), part).await?;
    let list = paging::list(&here, part, found, |cve| cve).0;
    let frame = live(&app, &viewer, Section::Cves, "CVEs");
    page(&pages::Cves { frame, list, q, severity, kev, query })
}

pub(crate) async fn cve(
    State(app): State<Dashboard>,
    viewer: Viewer,
    Id(id): Id<String>,
    asked: Asked<CveServers>,
) -> Answer {
    let it = queries::cves::get(&app, &viewer.caller().scope(), &id, asked.meant.page()).await?;
    let frame = live(&app, &viewer, Section::Cves, it.cve.id.clone());
    page(&pages::CvePage { frame, it })
}

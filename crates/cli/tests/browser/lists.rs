//! Lists: saved views, columns, density and the way back. Pages without JavaScript. The style guide.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fixture::Fixture;

/// The headings of the table.
fn headings(fixture: &Fixture) -> Vec<String> {
    let script = "return [...document.querySelectorAll('table.rows th')].map((at) => at.innerText.trim()).filter((text) => text)";
    let found = fixture.tab.eval(script);
    found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn view_is_saved_opened_and_deleted() {
    let Some(fixture) = Fixture::new(8).await else { return };
    let tab = &fixture.tab;
    fixture.go("/servers?sort=security_updates");
    assert!(headings(&fixture).contains(&"Last seen".to_owned()));
    // Hide two columns and use small rows.
    tab.click(".head details.menu.end:nth-of-type(2) > summary");
    tab.click("input[name=columns][value=last_seen]");
    tab.click("input[name=columns][value=environment]");
    let height = "return document.querySelector('tbody tr').getBoundingClientRect().height";
    let before = tab.eval(height).as_f64().unwrap();
    tab.click("input[name=density][value=compact]");
    tab.click("form[action='/display'] button");
    tab.until("the columns are hidden", |_| !headings(&fixture).contains(&"Last seen".to_owned()));
    assert_eq!(headings(&fixture), ["Name", "Status", "System", "Updates", "Security", "CVEs"]);
    assert!(tab.url().ends_with("/servers?sort=security_updates"), "{}", tab.url());
    assert!(tab.eval(height).as_f64().unwrap() < before);
    // Save what is shown under a name.
    tab.click(".head details.menu.end > summary");
    tab.fill("form[action='/views'] input[name=name]", "Worst first");
    tab.click("form[action='/views'] button");
    tab.until_shown("Worst first");
    // It is found again from the plain list.
    fixture.go("/servers");
    tab.click(".head details.menu.end > summary");
    tab.click(".pair a");
    tab.until("the view is open", |tab| tab.url().contains("sort=security_updates&columns="));
    assert_eq!(headings(&fixture).len(), 6);
    tab.click(".head details.menu.end > summary");
    tab.click(".pair button");
    tab.until_shown("Delete view Worst first?");
    tab.click("main button.risk");
    tab.until("the list is there", |tab| tab.url().ends_with("/servers"));
    assert!(!tab.text().contains("Worst first"));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn way_back_leads_to_the_same_place_of_the_list() {
    let Some(fixture) = Fixture::new(80).await else { return };
    let tab = &fixture.tab;
    // Rows grow while CVEs are matched.
    let is_matched = |seen: &Value| seen["assessment"]["not_scanned"] == 0;
    fixture.operator.until_at("/v1/summary", is_matched).await;
    fixture.go("/servers?sort=newest&limit=30");
    tab.click("a[rel=next]");
    tab.until("the second page is there", |tab| tab.url().contains("offset=30"));
    let list = tab.url();
    tab.eval("window.scrollTo(0, 400)");
    tab.until("it is scrolled", |tab| tab.eval("return scrollY > 100") == true);
    // The click may scroll, so the place counts that the page has when it is left.
    tab.eval(
        "const row = document.querySelector('tbody tr:nth-child(12)');
        addEventListener('pagehide', () => sessionStorage.left = row.getBoundingClientRect().top)",
    );
    tab.click("tbody tr:nth-child(12) td.name a");
    tab.until_shown("Packages");
    tab.eval("history.back()");
    tab.until("the list is there again", |tab| tab.url() == list);
    // The heights of rows vary a little with the width of the relative times in them.
    let is_in_same_place =
        "const row = document.querySelector('tbody tr:nth-child(12)').getBoundingClientRect();
        return scrollY > 100 && Math.abs(row.top - sessionStorage.left) < row.height";
    tab.until("the row is in the same place", |tab| tab.eval(is_in_same_place) == true);
    // The link above the title of a server leads there too.
    tab.click("tbody tr:nth-child(12) td.name a");
    tab.until_shown("Packages");
    tab.click(".crumb a");
    tab.until("the list is there again", |tab| tab.url() == list);
    // A section that is opened from the navigation begins at its first page.
    tab.click("nav[aria-label=Main] a[href='/servers']");
    tab.until("the first page is there", |tab| tab.url().ends_with("/servers"));
    fixture.end().await;
}

/// Everything that only reads works without JavaScript, and so does patching.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_work_without_javascript() {
    let Some(fixture) = Fixture::new(60).await else { return };
    let tab = &fixture.tab;
    let batch = fixture.operator.orders(&fixture.fleet, 0..4, json!({})).await;
    fixture.operator.until_ended(&batch).await;
    let listed = |seen: &Value| seen["meta"]["total"].as_u64() > Some(0);
    fixture.operator.until_at("/v1/patches", listed).await;
    let cves: Value = fixture.operator.until_at("/v1/cves", listed).await;
    let cve = cves["data"][0]["id"].as_str().unwrap();
    tab.cdp("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    for (path, shown) in [
        ("/".to_owned(), "Overview"),
        ("/servers".into(), "of 60 servers"),
        ("/patches".into(), "Time pending"),
        ("/cves".into(), "Severity"),
        (format!("/cves/{cve}"), cve),
        ("/batches".into(), "Progress"),
        (format!("/batches/{batch}"), "Timeline"),
        ("/schedules".into(), "Schedules"),
        ("/activity".into(), "Activity"),
        ("/settings".into(), "Organization ID"),
        ("/account".into(), "this session"),
        (format!("/find?q={cve}"), cve),
    ] {
        fixture.go(&path);
        tab.until(&format!("{path} shows {shown}"), |tab| tab.text().contains(shown));
    }
    // A menu opens, filters and removes the filter; pages turn; a batch is previewed.
    fixture.go("/servers");
    tab.click(".filters details.menu > summary");
    tab.click(".filters details.menu[open] li a");
    tab.until("the list is filtered", |tab| tab.url().contains("environment="));
    tab.click("a.chip");
    tab.until("the filter is gone", |tab| tab.url().ends_with("/servers"));
    tab.click("a[rel=next]");
    tab.until("the next page is there", |tab| tab.url().contains("offset=50"));
    tab.click("input[data-pick]");
    tab.click("button[data-needs-pick=Patch]");
    tab.until("the form is there", |tab| tab.text().contains("Preview"));
    tab.cdp("Emulation.setScriptExecutionDisabled", &json!({"value": false}));
    fixture.end().await;
}

/// What the style guide's samples look like, as far as the stylesheet decides it.
const STYLES: &str = r#"
const names = ["color", "backgroundColor", "borderTopColor", "borderTopWidth", "borderTopLeftRadius", "fontSize", "fontWeight", "lineHeight", "paddingTop", "paddingLeft", "marginBottom", "textDecorationLine", "textAlign", "opacity"];
return [...document.querySelectorAll("[data-sample]")].map((at) => {
  const style = getComputedStyle(at);
  return at.dataset.sample + ": " + names.map((name) => style[name]).join(" | ");
});
"#;

/// The colors of all tones.
fn tones(fixture: &Fixture) -> Vec<String> {
    let script = "return [...document.querySelectorAll('[data-sample^=tone]')].map((at) => getComputedStyle(at).color)";
    let found = fixture.tab.eval(script);
    found.as_array().unwrap().iter().map(|color| color.as_str().unwrap().to_owned()).collect()
}

/// A change of the design system shows here, in both themes, and is reviewed with the code.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn style_guide_looks_as_agreed() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let tab = &fixture.tab;
    let mut found = String::new();
    for theme in ["light", "dark"] {
        tab.set_viewport(1280, theme);
        fixture.go("/styleguide");
        tab.until_shown("Style guide");
        let colors: BTreeSet<String> = tones(&fixture).into_iter().collect();
        assert_eq!(colors.len(), vocab::Tone::ALL.len(), "{theme}: {colors:?}");
        found.push_str(&format!("{theme}\n"));
        for line in tab.eval(STYLES).as_array().unwrap() {
            found.push_str(&format!("  {}\n", line.as_str().unwrap()));
        }
    }
    insta::assert_snapshot!("style_guide", found);
    fixture.end().await;
}

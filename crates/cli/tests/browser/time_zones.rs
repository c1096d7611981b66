//! A user in another time zone than the servers, and downloading a preview as a file.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::driver::Tab;
use crate::fixture::Fixture;

const READER: &str = "Asia/Tokyo";
const SERVERS: &str = "America/New_York";

/// The rows under this selector: the row's time, and its first two cells.
fn rows(tab: &Tab, under: &str) -> Vec<(Timestamp, String, String)> {
    let script = format!(
        "return [...document.querySelectorAll('{under} tbody tr')].filter((row) => row.querySelector('time[data-local]')).map((row) => \
         [row.querySelector('time[data-local]').dateTime, row.cells[0].innerText, row.cells[1].innerText])"
    );
    let found = tab.eval(&script);
    let text = |row: &Value, nth: usize| {
        // Browsers put a narrow no-break space before AM and PM.
        row[nth].as_str().unwrap().replace('\u{202f}', " ")
    };
    let row = |row: &Value| (text(row, 0).parse().unwrap(), text(row, 1), text(row, 2));
    found.as_array().unwrap().iter().map(row).collect()
}

fn format_time(at: Timestamp, zone: &str, form: &str) -> String {
    at.to_zoned(TimeZone::get(zone).unwrap()).strftime(form).to_string()
}

/// Asserts that five runs are shown in the servers' and in the user's time zone.
fn assert_both_zones(tab: &Tab, under: &str) {
    let rows = rows(tab, under);
    assert_eq!(rows.len(), 5, "{}", tab.text());
    for (at, there, here) in rows {
        assert!(there.ends_with(" 03:30"), "{there}");
        assert_eq!(there, format_time(at, SERVERS, "%a %Y-%m-%d %H:%M"));
        assert_eq!(here, format_time(at, READER, "%b %-d, %Y, %-I:%M %p"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn schedule_form_shows_runs_in_both_time_zones() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let tab = &fixture.tab;
    tab.cdp("Emulation.setTimezoneOverride", &json!({"timezoneId": READER}));
    tab.cdp("Emulation.setLocaleOverride", &json!({"locale": "en-US"}));
    fixture.go("/schedules/new");
    tab.fill("input[name=name]", "Nightly");
    tab.eval("document.querySelector('input[name=timezone]').value = ''");
    tab.click("input[name=repeat][value=custom]");
    tab.fill("input[name=cron]", "30 3 * * *");
    tab.fill("input[name=timezone]", SERVERS);
    // The last input is shown, in the user's time zone.
    let settled = |tab: &Tab| {
        let shown = tab.eval("return document.getElementById('asked').innerText");
        let shown = shown.as_str().unwrap();
        shown.contains(&format!("In {SERVERS}")) && !shown.contains("UTC")
    };
    tab.until("the runs are shown in both zones", settled);
    assert_both_zones(tab, "#asked");
    tab.click("input[name=all]");
    tab.click("main button.main");
    tab.until("the schedule is there", |tab| tab.url().contains("/schedules/sch_"));
    tab.until("its runs are shown", |tab| !tab.text().contains(" UTC"));
    assert_both_zones(tab, "main");
    // The calendar uses the user's days.
    fixture.go("/schedules");
    tab.until_shown(&format!("Times in {READER}"));
    assert!(tab.text().contains(&format!("03:30 {SERVERS}")), "{}", tab.text());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn preview_can_be_downloaded_and_then_started() {
    let Some(fixture) = Fixture::new(2).await else { return };
    let tab = &fixture.tab;
    let dir = fixture.dir.0.join("downloads");
    std::fs::create_dir_all(&dir).unwrap();
    tab.cdp("Browser.setDownloadBehavior", &json!({"behavior": "allow", "downloadPath": dir}));
    fixture.go("/servers");
    tab.click("input[data-all]");
    tab.click("[data-needs-pick]");
    tab.until_shown("What would happen");
    // Twice: the button still works after the first download.
    let file = dir.join("preview.csv");
    for _ in 0..2 {
        tab.click("button[formaction='/order.csv']");
        tab.until("the file is there", |_| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.starts_with("server_id,hostname,") && text.lines().count() == 3
        });
        std::fs::remove_file(&file).unwrap();
    }
    tab.click("#start");
    tab.until("the batch is there", |tab| tab.url().contains("/batches/bat_"));
    fixture.end().await;
}

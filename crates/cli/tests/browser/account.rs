//! The account page: password, sessions, second factor with recovery codes, and theme.

use serde_json::{Value, json};

use crate::axe::Axe;
use crate::driver::{ENTER, Tab};
use crate::fixture::{Fixture, PASSWORD};

const NEW_PASSWORD: &str = "a newer horse battery";

fn sign_in(fixture: &Fixture, password: &str) {
    let tab = &fixture.tab;
    fixture.go("/sign-in");
    tab.fill("input[name=name]", "ann");
    tab.fill("input[name=password]", password);
    tab.click("form button");
}

fn change_password(tab: &Tab, current: &str) {
    tab.fill("input[name=current]", current);
    tab.fill("input[name=password]", NEW_PASSWORD);
    tab.fill("input[name=again]", NEW_PASSWORD);
    tab.click("form[action='/account/password'] button");
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn user_manages_password_sessions_and_second_factor() {
    let Some(fixture) = Fixture::new(1).await else { return };
    let (tab, axe) = (&fixture.tab, Axe::new());
    let mut found = Vec::new();
    let mut judge = |name: &str| {
        found.extend(axe.iter().flat_map(|axe| axe.findings_in_both_themes(tab, name)));
    };
    fixture.go("/account");
    change_password(tab, "not the password");
    tab.until_shown("Incorrect password.");
    judge("a refused password");
    let focused = tab.eval("return document.activeElement.name");
    assert_eq!(focused, "current", "the field with the error has the focus");
    change_password(tab, PASSWORD);
    tab.until_shown("Password changed.");

    // A second session: another browser of the same user.
    tab.cdp("Network.clearBrowserCookies", &json!({}));
    sign_in(&fixture, NEW_PASSWORD);
    tab.until_shown("Overview");
    fixture.go("/account");
    tab.until_shown("this session");
    let rows = "return document.querySelectorAll('.rows > li').length";
    assert_eq!(tab.eval(rows), 2);
    assert!(tab.text().contains("Chrome on Linux"), "{}", tab.text());
    judge("two sessions");
    tab.click("form[action='/account/sessions/end-others'] button");
    tab.until_shown("All your other sessions were signed out.");
    assert_eq!(tab.eval(rows), 1);

    tab.click("form[action='/account/totp'] button");
    tab.until_shown("Scan this code");
    // The code is black on white in both themes.
    for theme in ["light", "dark"] {
        tab.set_viewport(1280, theme);
        let colors = "const [ground, code] = document.querySelector('svg.qr').children;
            return [getComputedStyle(ground).fill, getComputedStyle(code).fill]";
        assert_eq!(tab.eval(colors), json!(["rgb(255, 255, 255)", "rgb(0, 0, 0)"]), "{theme}");
    }
    judge("a QR code");
    let secret = text(&tab.eval("return document.getElementById('secret').innerText"));
    let now = service::clock::Clock::system().now();
    tab.fill("input[name=code]", &service::auth::totp::current_code(&secret, now));
    tab.click("form[action='/account/totp'] button");
    tab.until_shown("Each works once");
    let codes = text(&tab.eval("return document.getElementById('secret').innerText"));
    let codes: Vec<&str> = codes.lines().collect();
    assert_eq!(codes.len(), 10);
    judge("recovery codes");

    tab.click("form[action='/sign-out'] button");
    tab.until("the user is signed out", |tab| tab.url().ends_with("/sign-in"));
    sign_in(&fixture, NEW_PASSWORD);
    tab.until_shown("Lost your authenticator?");
    // With the keyboard only.
    tab.eval("document.querySelector('summary').focus()");
    tab.keys(ENTER);
    tab.until_shown("Sign in with a recovery code");
    judge("a recovery code");
    tab.eval("document.querySelector('details input[name=code]').focus()");
    tab.keys(codes[4]);
    tab.keys(ENTER);
    tab.until_shown("Overview");
    fixture.go("/account");
    tab.until_shown("You have 9 recovery codes left.");

    tab.set_viewport(1280, "light");
    let scheme = "return getComputedStyle(document.documentElement).colorScheme";
    let ground = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(tab.eval(scheme), "light dark");
    let light = tab.eval(ground);
    tab.eval("document.querySelector('button[value=dark]').focus()");
    tab.keys(ENTER);
    tab.until("the theme is dark", |tab| tab.eval(scheme) == "dark");
    assert_ne!(tab.eval(ground), light);
    if let Some(axe) = &axe {
        found.extend(axe.findings(tab));
    }
    assert_eq!(found, Vec::<String>::new());
    // The refused password is an error page, which the browser reports.
    tab.console_problems();
    fixture.end().await;
}

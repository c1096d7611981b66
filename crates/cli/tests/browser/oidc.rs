//! Sign-in at a real identity provider, in a real browser.

use std::path::Path;

use serde_json::json;

use crate::axe::Axe;
use crate::driver::Tab;
use crate::fixture::{PASSWORD, invite, set_password};
use crate::node;
use crate::node::Provider;
use crate::support::{Dir, Running, first_key, fleetmend};

/// A service with an identity provider, and an administrator named `ann@example.org` who is signed
/// out.
struct OidcFixture {
    tab: Tab,
    provider: Option<Provider>,
    flags: Vec<String>,
    service: Running,
    dir: Dir,
}

impl OidcFixture {
    fn new(home: &Path) -> Option<OidcFixture> {
        let tab = Tab::open()?;
        let dir = Dir::new();
        first_key(&dir.data());
        let secret = dir.0.join("secret");
        std::fs::write(&secret, "hush\n").unwrap();
        let mut provider = Provider::start(home);
        let flags = vec![
            format!("--oidc-issuer={}", provider.issuer),
            "--oidc-client-id=fleetmend".to_owned(),
            format!("--oidc-client-secret-file={}", secret.display()),
            "--oidc-name=Example".to_owned(),
        ];
        let service = serve("127.0.0.1:0", &dir, &flags);
        provider.set_service(&service.address);
        set_password(&tab, &invite(&dir.data(), &service.address, "ann@example.org"));
        let place = OidcFixture { tab, provider: Some(provider), flags, service, dir };
        place.sign_out();
        Some(place)
    }

    fn go(&self, path: &str) {
        self.tab.go(&format!("{}{path}", self.service.address));
    }

    fn sign_out(&self) {
        self.tab.click("form[action='/sign-out'] button");
        self.tab.until_shown("or with a password");
    }

    /// Starts the sign-in and completes it at the provider.
    fn sign_in_as(&self, name: &str, button: &str) {
        // Sign out everywhere, at the service and at the provider.
        self.tab.cdp("Network.clearBrowserCookies", &json!({}));
        self.go("/servers?status=online");
        self.tab.click("a.button.main");
        self.tab.until_shown("Who are you?");
        self.tab.fill("input[name=login]", name);
        self.tab.click(button);
    }

    /// The users, from the output of `fleetmend users list` in a pipe, without the header.
    fn users(&self) -> Vec<String> {
        let data = self.dir.data();
        let listed = fleetmend(&["users", "list", "--data-dir", data.to_str().unwrap()]);
        let listed = String::from_utf8({ listed }.output().unwrap().stdout).unwrap();
        listed.lines().skip(1).map(str::to_owned).collect()
    }

    /// Restarts the service, without cached provider metadata.
    fn restart_service(&mut self) {
        let listen = self.service.address.strip_prefix("http://").unwrap().to_owned();
        self.service.child.kill().unwrap();
        self.service.child.wait().unwrap();
        self.service = serve(&listen, &self.dir, &self.flags);
    }
}

fn serve(listen: &str, dir: &Dir, flags: &[String]) -> Running {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Running::at(listen, &dir.data(), &flags)
}

#[test]
fn sign_in_at_provider_returns_to_the_requested_page() {
    let Some(home) = node::home() else { return };
    let Some(mut place) = OidcFixture::new(&home) else { return };
    for round in ["first", "after the provider changed its keys"] {
        place.sign_in_as("ann", "button");
        let wanted = "/servers?status=online";
        place.tab.until("the requested page", |tab| tab.url().ends_with(wanted));
        place.tab.until_shown("ann@example.org");
        place.go("/activity");
        place.tab.until_shown("signed in");
        // The second sign-in is folded with the first.
        place.tab.click(".log summary");
        place.tab.until_shown("signed in through the identity provider");
        assert_eq!(place.tab.console_problems(), Vec::<String>::new(), "{round}");
        place.sign_out();
        assert_eq!(place.users(), ["ann@example.org\tadmin\tAcme\tidentity provider"]);
        let mut again = place.provider.take().unwrap().restart(&home);
        again.set_service(&place.service.address);
        place.provider = Some(again);
    }
}

#[test]
fn refusals_are_explained_and_passwords_work_without_provider() {
    let Some(home) = node::home() else { return };
    let Some(mut place) = OidcFixture::new(&home) else { return };
    place.sign_in_as("stranger", "button");
    place.tab.until_shown("Ask an administrator to invite stranger@example.org");
    // Replay the same authorization response.
    let back = place.tab.url();
    assert!(back.contains("/sign-in/oidc/back?code="), "{back}");
    place.tab.go(&back);
    place.tab.until_shown("was already used, or has expired");
    // Open it in a browser with its own authorization request.
    place.tab.cdp("Network.clearBrowserCookies", &json!({}));
    place.go("/sign-in");
    place.tab.click("a.button.main");
    place.tab.until_shown("Who are you?");
    place.tab.go(&back);
    place.tab.until_shown("was started in another browser");
    place.sign_in_as("unverified", "button");
    place.tab.until_shown("Verify it there");
    place.sign_in_as("ann", "#no");
    place.tab.until_shown("denied the request");

    place.provider = None;
    place.restart_service();
    place.go("/sign-in");
    place.tab.click("a.button.main");
    place.tab.until_shown("does not respond");
    let found = Axe::new()
        .map_or_else(Vec::new, |axe| axe.findings_in_both_themes(&place.tab, "both ways in"));
    assert_eq!(found, Vec::<String>::new());
    place.tab.fill("input[name=name]", "ann@example.org");
    place.tab.fill("input[name=password]", PASSWORD);
    place.tab.click("form button");
    place.tab.until_shown("Overview");
    assert_eq!(place.users(), ["ann@example.org\tadmin\tAcme\tpassword"]);
    // The browser also reports the refused requests.
    let complaints = place.tab.console_problems().into_iter();
    let others: Vec<String> = complaints.filter(|one| !one.contains("/sign-in/oidc")).collect();
    assert_eq!(others, Vec::<String>::new());
}

//! A test browser: keeps cookies and submits forms.

use std::cell::RefCell;

use axum::Router;
use axum::http::Method;
use service::auth::users;
use vocab::Role;

use crate::support::{Service, TestRequest, TestResponse};

pub(crate) const PASSWORD: &str = "correct horse battery";

pub(crate) struct Browser {
    router: Router,
    cookies: RefCell<Vec<(String, String)>>,
    /// The last part of its address.
    host: u8,
}

impl Browser {
    pub(crate) fn new(service: &Service) -> Browser {
        Browser::with_address(service, 1)
    }

    /// A browser at another address.
    pub(crate) fn with_address(service: &Service, host: u8) -> Browser {
        Browser::with_router(service.router.clone(), host)
    }

    /// A browser that uses another process of the service.
    pub(crate) fn with_router(router: Router, host: u8) -> Browser {
        Browser { router, cookies: RefCell::default(), host }
    }

    /// A browser of a user with this role, signed in by a one-time link.
    pub(crate) async fn signed_in(service: &Service, name: &str, role: Role) -> Browser {
        let actor = users::local_actor(service.org);
        let (_, link) = users::invite(&service.app, &actor, name, role).await.unwrap();
        let browser = Browser::new(service);
        let form = [("password", PASSWORD), ("again", PASSWORD)];
        browser.post(&format!("/welcome/{link}"), &form).await.is(303);
        browser
    }

    /// A browser of an administrator of another organization.
    pub(crate) async fn of_other_organization(service: &Service) -> Browser {
        service.stranger().await;
        let there = {
            let mut reader = service.app.db.read().await.unwrap();
            store::organizations::by_name(&mut reader, "Umbrella").await.unwrap().id
        };
        let actor = users::local_actor(there);
        let (_, link) = users::invite(&service.app, &actor, "eve", Role::Admin).await.unwrap();
        let eve = Browser::new(service);
        let form = [("password", PASSWORD), ("again", PASSWORD)];
        eve.post(&format!("/welcome/{link}"), &form).await.is(303);
        eve
    }

    /// Continues with another process of the service.
    pub(crate) fn switch_to(&mut self, router: &Router) {
        self.router = router.clone();
    }

    async fn send(&self, ask: TestRequest) -> TestResponse {
        let cookies: Vec<String> =
            self.cookies.borrow().iter().map(|(name, value)| format!("{name}={value}")).collect();
        let ask =
            ask.with("cookie", &cookies.join("; ")).with("host", "fleet.example").from(self.host);
        let response = ask.send(&self.router).await;
        for line in response.headers.get_all("set-cookie") {
            let line = line.to_str().unwrap();
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            // These cookies may be sent on a navigation from another site: one only to the OIDC
            // callback, and those that say how pages look.
            let flags = match name {
                "fleetmend_flow" => "Path=/sign-in/oidc; SameSite=Lax; HttpOnly",
                "fleetmend_theme" | "fleetmend_density" => "Path=/; SameSite=Lax; HttpOnly",
                name if name.starts_with("fleetmend_columns_") => "Path=/; SameSite=Lax; HttpOnly",
                _ => "Path=/; SameSite=Strict; HttpOnly",
            };
            for must in flags.split("; ") {
                assert!(line.split("; ").any(|flag| flag == must), "{line}");
            }
            self.cookies.borrow_mut().retain(|(known, _)| known != name);
            if !value.is_empty() {
                self.cookies.borrow_mut().push((name.to_owned(), value.to_owned()));
            }
        }
        response
    }

    pub(crate) fn cookie(&self, name: &str) -> Option<String> {
        let cookies = self.cookies.borrow();
        cookies.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// Deletes a cookie.
    pub(crate) fn delete_cookie(&self, name: &str) {
        self.cookies.borrow_mut().retain(|(known, _)| known != name);
    }

    /// Sets a cookie, as a script of the page or an earlier response would.
    pub(crate) fn set_cookie(&self, name: &str, value: &str) {
        self.delete_cookie(name);
        self.cookies.borrow_mut().push((name.to_owned(), value.to_owned()));
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.send(TestRequest::get(path)).await
    }

    /// Sends a form unchanged.
    pub(crate) async fn post(&self, path: &str, form: &[(&str, &str)]) -> TestResponse {
        self.send(form_to(path, form)).await
    }

    /// Sends these bytes as a form.
    pub(crate) async fn post_raw(&self, path: &str, body: String) -> TestResponse {
        self.send(raw_form_to(path, body)).await
    }

    /// Sends a form from another site.
    pub(crate) async fn post_from(
        &self,
        origin: &str,
        path: &str,
        form: &[(&str, &str)],
    ) -> TestResponse {
        self.send(form_to(path, form).with("origin", origin)).await
    }

    /// Sends a form of one of our pages, with the fields that the page adds.
    pub(crate) async fn submit(&self, path: &str, form: &[(&str, &str)]) -> TestResponse {
        let csrf = self.csrf().await;
        let mut form = form.to_vec();
        form.push(("csrf", &csrf));
        self.post(path, &form).await
    }

    /// Opens the confirmation page at this path, then confirms.
    pub(crate) async fn confirm(&self, path: &str) -> TestResponse {
        let page = self.submit(path, &[]).await.is(200).text();
        let token = preview_field(&page);
        self.submit(path, &[("go", "1"), ("preview", &token)]).await
    }

    /// Previews these fields on the patch page, then presses Start.
    pub(crate) async fn start(&self, form: &[(&str, &str)]) -> TestResponse {
        let page = self.submit("/order", form).await.is(200).text();
        let token = start_token(&page);
        self.submit("/order", &[form, &[("start", &token)]].concat()).await
    }

    pub(crate) async fn csrf(&self) -> String {
        let page = self.get("/schedules").await.is(200);
        let text = page.text();
        text.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    }
}

/// The token of the Start button on the patch page.
pub(crate) fn start_token(page: &str) -> String {
    let button = page.split("name=\"start\" value=\"").nth(1);
    button.unwrap_or_else(|| panic!("no Start button in {page}")).split('"').next().unwrap().into()
}

/// The token in the form of a confirmation page.
pub(crate) fn preview_field(page: &str) -> String {
    let field = page.split("name=\"preview\" value=\"").nth(1);
    field.unwrap_or_else(|| panic!("no preview token in {page}")).split('"').next().unwrap().into()
}

fn form_to(path: &str, form: &[(&str, &str)]) -> TestRequest {
    let encode = |text: &str| -> String {
        let byte = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                (byte as char).to_string()
            }
            other => format!("%{other:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    let pairs: Vec<String> =
        form.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    raw_form_to(path, pairs.join("&"))
}

fn raw_form_to(path: &str, body: String) -> TestRequest {
    TestRequest::new(Method::POST, path)
        .with("content-type", "application/x-www-form-urlencoded")
        .with_body(body)
}

impl TestResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).unwrap()
    }
}

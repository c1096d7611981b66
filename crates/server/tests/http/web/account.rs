//! The account page: password, second factor, recovery codes, sessions and theme.

use axum::http::Method;
use jiff::SignedDuration;
use service::auth::totp::current_code;
use service::auth::users;
use vocab::Role;

use crate::browser::{Browser, PASSWORD};
use crate::support::{Service, TestRequest};

const NEW_PASSWORD: &str = "a newer horse battery";

/// The value of the first field with this name on a page.
fn field(page: &str, name: &str) -> String {
    let found = page.split(&format!("name=\"{name}\" value=\"")).nth(1);
    found.unwrap_or_else(|| panic!("no {name} in {page}")).split('"').next().unwrap().to_owned()
}

fn between(page: &str, start: &str, end: &str) -> String {
    let found = page.split(start).nth(1).unwrap_or_else(|| panic!("no {start} in {page}"));
    found.split(end).next().unwrap().to_owned()
}

async fn sign_in(browser: &Browser, password: &str) -> u16 {
    let form = [("name", "ann"), ("password", password)];
    browser.post("/sign-in", &form).await.status.as_u16()
}

async fn change_password(
    browser: &Browser,
    current: &str,
    new: &str,
    again: &str,
) -> (u16, String) {
    let form = [("current", current), ("password", new), ("again", again)];
    let response = browser.submit("/account/password", &form).await;
    (response.status.as_u16(), response.text())
}

/// The actions of ann in the audit log, oldest first.
async fn actions(service: &Service) -> Vec<String> {
    let mut reader = service.app.db.read().await.unwrap();
    let ann = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    let entries = store::audit::after(&mut reader, service.org, 0, 1_000).await.unwrap();
    let of_ann = entries.into_iter().filter(|entry| entry.actor == ann.id.to_string());
    of_ann.map(|entry| entry.action).collect()
}

async fn changed_password_signs_out_all_other_sessions(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    let phone = Browser::with_address(service, 7);
    assert_eq!(sign_in(&phone, PASSWORD).await, 303);
    let (status, _) = change_password(&ann, PASSWORD, NEW_PASSWORD, NEW_PASSWORD).await;
    assert_eq!(status, 303);
    assert!(ann.get("/account?done=password").await.is(200).text().contains("Password changed."));
    assert_eq!(phone.get("/").await.is(303).header("location"), "/sign-in");
    bob.get("/").await.is(200);
    assert_eq!(sign_in(&phone, PASSWORD).await, 422);
    assert_eq!(sign_in(&phone, NEW_PASSWORD).await, 303);
    assert!(actions(service).await.contains(&"user.password_change".to_owned()));
}

async fn refused_password_change_names_the_field_and_changes_nothing(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    for (current, new, again, field, why) in [
        ("wrong horse battery", NEW_PASSWORD, NEW_PASSWORD, "e-current", "Incorrect password."),
        ("", NEW_PASSWORD, NEW_PASSWORD, "e-current", "Incorrect password."),
        (PASSWORD, "short", "short", "e-new", "Must have 12 to 200 characters."),
        (PASSWORD, NEW_PASSWORD, "different", "e-again", "The passwords do not match."),
    ] {
        let (status, page) = change_password(&ann, current, new, again).await;
        assert_eq!(status, 422, "{page}");
        assert!(page.contains(&format!("id=\"{field}\" role=\"alert\">{why}<")), "{why}: {page}");
        assert!(!page.contains(NEW_PASSWORD) && !page.contains(PASSWORD), "{page}");
    }
    assert_eq!(sign_in(&Browser::with_address(service, 7), PASSWORD).await, 303);
    assert!(!actions(service).await.contains(&"user.password_change".to_owned()));
}

async fn stolen_session_cannot_guess_the_password(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let csrf = ann.csrf().await;
    let mut guesses = 0;
    for guess in 0..40 {
        let current = format!("guess number {guess}");
        let form = [
            ("current", current.as_str()),
            ("password", NEW_PASSWORD),
            ("again", NEW_PASSWORD),
            ("csrf", &csrf),
        ];
        match ann.post("/account/password", &form).await.status.as_u16() {
            422 => guesses += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    assert!(guesses <= 10, "{guesses}");
    let (status, page) = change_password(&ann, PASSWORD, NEW_PASSWORD, NEW_PASSWORD).await;
    assert_eq!(status, 429);
    assert!(page.contains("Too many attempts. Try again in"), "{page}");
}

async fn user_without_a_password_is_told_why(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let mut tx = service.app.db.begin().await.unwrap();
    let user = store::users::by_name(&mut tx, service.org, "ann").await.unwrap().unwrap();
    store::users::save(&mut tx, &store::users::User { password: None, ..user }).await.unwrap();
    tx.commit().await.unwrap();
    let page = ann.get("/account").await.is(200).text();
    assert!(page.contains("You have no password here") && !page.contains("name=\"current\""));
    let (status, _) = change_password(&ann, "", NEW_PASSWORD, NEW_PASSWORD).await;
    assert_eq!(status, 409);
}

async fn sessions_are_listed_without_their_hashes(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    Browser::signed_in(service, "bob", Role::Viewer).await;
    let agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0 <b>";
    let sent = TestRequest::new(Method::POST, "/sign-in")
        .with("content-type", "application/x-www-form-urlencoded")
        .with("user-agent", agent)
        .with("host", "fleet.example")
        .from(7)
        .with_body(format!("name=ann&password={}", PASSWORD.replace(' ', "+")));
    sent.send(&service.router).await.is(303);
    let page = ann.get("/account").await.is(200).text();
    assert_eq!(page.matches(">this session<").count(), 1, "{page}");
    assert_eq!(page.matches("/account/sessions/ses_").count(), 1, "only ann's other: {page}");
    assert!(page.contains("Firefox on Linux") && page.contains("127.0.1.7"), "{page}");
    let mut reader = service.app.db.read().await.unwrap();
    let user = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    let now = service.clock.now();
    for session in store::sessions::list(&mut reader, user.id, now, 10).await.unwrap() {
        let hash: String = session.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!page.contains(&hash), "{page}");
    }
}

async fn last_use_of_a_session_is_recorded_every_few_minutes(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let used = async || {
        let mut reader = service.app.db.read().await.unwrap();
        let user = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
        let found = store::sessions::list(&mut reader, user.id, service.clock.now(), 10).await;
        found.unwrap()[0].used_at
    };
    let first = used().await;
    service.clock.advance(SignedDuration::from_mins(5));
    ann.get("/").await.is(200);
    assert_eq!(used().await, first);
    service.clock.advance(SignedDuration::from_mins(5));
    ann.get("/").await.is(200);
    assert_eq!(used().await, first + SignedDuration::from_mins(10));
}

async fn session_is_signed_out_from_another_browser(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    let others = [7, 8, 9].map(|host| Browser::with_address(service, host));
    for other in &others {
        service.clock.advance(SignedDuration::from_secs(1));
        assert_eq!(sign_in(other, PASSWORD).await, 303);
    }
    let page = ann.get("/account").await.is(200).text();
    let newest =
        format!("/account/sessions/{}", between(&page, "action=\"/account/sessions/", "\""));
    // Another user cannot end it, and does not learn whether it exists.
    bob.submit(&newest, &[]).await.is(303);
    others[2].get("/").await.is(200);
    ann.submit(&newest, &[]).await.is(303);
    others[2].get("/").await.is(303);
    others[1].get("/").await.is(200);
    ann.submit("/account/sessions/x/end", &[]).await.is(404);
    ann.submit("/account/sessions/end-others", &[]).await.is(303);
    for other in &others {
        other.get("/").await.is(303);
    }
    ann.get("/").await.is(200);
    bob.get("/").await.is(200);
    let done = actions(service).await;
    assert!(done.contains(&"user.session_end".to_owned()), "{done:?}");
    assert!(done.contains(&"user.sessions_end".to_owned()), "{done:?}");
}

/// Turns two-factor authentication on. Returns the secret and the recovery codes.
async fn turn_on(service: &Service, ann: &Browser) -> (String, Vec<String>) {
    let page = ann.submit("/account/totp", &[]).await.is(200).text();
    let secret = field(&page, "secret");
    assert!(page.contains("<svg class=\"qr\"") && page.contains("fill=\"#fff\""), "{page}");
    assert!(page.contains(&format!("<pre id=\"secret\">{secret}<")), "the key stays as text");
    let code = current_code(&secret, service.clock.now());
    let form = [("secret", secret.as_str()), ("code", &code)];
    let page = ann.submit("/account/totp", &form).await.is(200).text();
    let codes = between(&page, "<pre id=\"secret\">", "</pre>");
    (secret, codes.lines().map(str::to_owned).collect())
}

/// The first step of a sign-in. Returns the ticket.
async fn first_step(browser: &Browser) -> String {
    let form = [("name", "ann"), ("password", PASSWORD)];
    field(&browser.post("/sign-in", &form).await.is(200).text(), "ticket")
}

async fn recovery_code_signs_in_once(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let (_, codes) = turn_on(service, &ann).await;
    assert_eq!(codes.len(), 10);
    let page = ann.get("/account").await.is(200).text();
    assert!(page.contains("You have 10 recovery codes left."), "{page}");
    assert!(!codes.iter().any(|code| page.contains(code)), "shown again: {page}");
    let other = Browser::with_address(service, 7);
    let ticket = first_step(&other).await;
    let typed = codes[3].to_uppercase().replace('-', " ");
    let with = async |ticket: &str, code: &str| {
        other.post("/sign-in/code", &[("ticket", ticket), ("code", code)]).await.status.as_u16()
    };
    assert_eq!(with(&ticket, "aaaa-bbbb-cccc-dddd").await, 422);
    assert_eq!(with(&ticket, &typed).await, 303);
    other.get("/").await.is(200);
    let ticket = first_step(&Browser::with_address(service, 8)).await;
    assert_eq!(with(&ticket, &codes[3]).await, 422, "already used");
    assert!(ann.get("/account").await.text().contains("You have 9 recovery codes left."));
    let done = actions(service).await;
    assert!(done.contains(&"user.recovery_code".to_owned()), "{done:?}");
}

async fn new_recovery_codes_replace_the_old_ones(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let (secret, old) = turn_on(service, &ann).await;
    ann.submit("/account/recovery-codes", &[("code", &old[0])]).await.is(422);
    ann.submit("/account/recovery-codes", &[("code", "000000")]).await.is(422);
    service.clock.advance(SignedDuration::from_secs(60));
    let code = current_code(&secret, service.clock.now());
    let page = ann.submit("/account/recovery-codes", &[("code", &code)]).await.is(200).text();
    let new = between(&page, "<pre id=\"secret\">", "</pre>");
    let new: Vec<&str> = new.lines().collect();
    assert!(new.len() == 10 && !new.contains(&old[0].as_str()), "{new:?}");
    let other = Browser::with_address(service, 7);
    let ticket = first_step(&other).await;
    let form = [("ticket", ticket.as_str()), ("code", &old[0])];
    other.post("/sign-in/code", &form).await.is(422);
    other.post("/sign-in/code", &[("ticket", &ticket), ("code", new[0])]).await.is(303);
    // A user who lost the authenticator can turn it off, to set up another.
    other.submit("/account/totp", &[("code", new[1])]).await.is(303);
    assert!(other.get("/account").await.text().contains(">off<"));
    let mut reader = service.app.db.read().await.unwrap();
    let user = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    assert_eq!(store::recovery_codes::count(&mut reader, user.id).await.unwrap(), 0);
}

async fn recovery_codes_cannot_be_guessed_and_end_with_a_reset(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let (_, codes) = turn_on(service, &ann).await;
    let mut guesses = 0;
    for nth in 0..30_u8 {
        let thief = Browser::with_address(service, 100 + nth);
        let ticket = first_step(&thief).await;
        let form = [("ticket", ticket.as_str()), ("code", "aaaa-bbbb-cccc-dddd")];
        match thief.post("/sign-in/code", &form).await.status.as_u16() {
            422 => guesses += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    assert!(guesses <= 10, "{guesses}");
    let mut reader = service.app.db.read().await.unwrap();
    let user = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    drop(reader);
    assert_eq!(codes.len(), 10);
    users::reset(&service.app, &users::local_actor(service.org), &user).await.unwrap();
    let mut reader = service.app.db.read().await.unwrap();
    assert_eq!(store::recovery_codes::count(&mut reader, user.id).await.unwrap(), 0);
}

async fn database_contains_no_recovery_code(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let (_, codes) = turn_on(service, &ann).await;
    let mut tx = service.app.db.begin().await.unwrap();
    let user = store::users::by_name(&mut tx, service.org, "ann").await.unwrap().unwrap();
    for code in &codes {
        let plain = code.replace('-', "").to_uppercase();
        let decoded = service::auth::totp::from_base32(&plain);
        for stored in [code.as_bytes(), plain.as_bytes(), &decoded] {
            let found = store::recovery_codes::take(&mut tx, user.id, stored).await.unwrap();
            assert!(!found, "{code} is not hashed");
        }
    }
    assert_eq!(store::recovery_codes::count(&mut tx, user.id).await.unwrap(), 10);
}

async fn theme_is_kept_in_the_browser_for_every_page(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    assert!(ann.get("/").await.text().contains("<html lang=\"en\">"));
    for theme in ["dark", "light"] {
        ann.submit("/account/theme", &[("theme", theme)]).await.is(303);
        let root = format!("<html lang=\"en\" data-theme=\"{theme}\">");
        for path in ["/", "/account", "/sign-in", "/servers/x", "/welcome/x"] {
            let text = ann.get(path).await.text();
            assert!(text.contains(&root), "{path}: {text}");
        }
        let page = ann.get("/account").await.text();
        assert!(page.contains(&format!("value=\"{theme}\" aria-pressed=\"true\"")), "{page}");
    }
    ann.submit("/account/theme", &[("theme", "system")]).await.is(303);
    assert_eq!(ann.cookie("fleetmend_theme"), None);
    assert!(ann.get("/account").await.text().contains("<html lang=\"en\">"));
    ann.set_cookie("fleetmend_theme", "\"><script>");
    assert!(ann.get("/account").await.text().contains("<html lang=\"en\">"));
}

testkit::both!(
    crate::support:
    changed_password_signs_out_all_other_sessions,
    refused_password_change_names_the_field_and_changes_nothing,
    stolen_session_cannot_guess_the_password,
    user_without_a_password_is_told_why,
    sessions_are_listed_without_their_hashes,
    last_use_of_a_session_is_recorded_every_few_minutes,
    session_is_signed_out_from_another_browser,
    recovery_code_signs_in_once,
    new_recovery_codes_replace_the_old_ones,
    recovery_codes_cannot_be_guessed_and_end_with_a_reset,
    database_contains_no_recovery_code,
    theme_is_kept_in_the_browser_for_every_page,
);

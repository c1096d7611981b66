//! Sign-in: links, passwords, sessions, CSRF tokens and rate limits.

use axum::http::Method;
use dashboard::{Access, paths};
use jiff::SignedDuration;
use service::auth::totp::current_code;
use service::auth::users;
use vocab::Role;

use crate::browser::{Browser, PASSWORD};
use crate::support::{Service, TestRequest, TestResponse};

/// A path of the route table with ids of nothing that exists.
fn fill_in_ids(path: &str) -> String {
    let id = |prefix: &str| format!("{prefix}_01jcqk3m8ye0fr5cq0k6s8v2xw");
    let prefix = [
        ("/servers", "srv"),
        ("/batches", "bat"),
        ("/schedules", "sch"),
        ("/freezes", "frz"),
        ("/compliance", "pol"),
        ("/settings/users", "usr"),
        ("/settings/keys", "key"),
        ("/settings/tokens", "enr"),
        ("/cves", "cve"),
    ];
    let found =
        prefix.iter().find(|(start, _)| path.starts_with(start)).map_or("x", |(_, word)| word);
    path.replace("{id}", &id(found))
        .replace("{task}", &id("tsk"))
        .replace("{action}", "pause")
        .replace("{name}", "openssl")
}

async fn link_sets_a_password_once_and_the_password_works(service: &Service) {
    let actor = users::local_actor(service.org);
    let (ann, link) =
        users::invite(&service.app, &actor, " Ann@Example.org ", Role::Admin).await.unwrap();
    assert_eq!(ann.name, "ann@example.org");
    let browser = Browser::new(service);
    let path = format!("/welcome/{link}");
    let page = browser.get(&path).await.is(200);
    assert!(page.text().contains("ann@example.org"));
    let short = browser.post(&path, &[("password", "too short"), ("again", "too short")]).await;
    assert!(short.is(422).text().contains("12 to 200 characters"));
    let other =
        browser.post(&path, &[("password", PASSWORD), ("again", "another one, longer")]).await;
    assert!(other.is(422).text().contains("do not match"));
    browser.post(&path, &[("password", PASSWORD), ("again", PASSWORD)]).await.is(303);
    assert!(browser.get("/").await.is(200).text().contains("Overview"));
    let page = Browser::new(service).get(&path).await.is(404).text();
    assert!(page.contains("was already used"), "{page}");
    assert!(page.contains("fleetmend users reset"), "{page}");

    let again = Browser::new(service);
    let form =
        [("name", "ANN@example.org"), ("password", PASSWORD), ("next", "/servers?status=online")];
    let entered = again.post("/sign-in", &form).await.is(303);
    assert_eq!(entered.header("location"), "/servers?status=online");
    again.get("/servers?status=online").await.is(200);
    again.submit("/sign-out", &[]).await.is(303);
    assert_eq!(again.get("/").await.is(303).header("location"), "/sign-in");
    // The session of the other browser is a different one.
    browser.get("/").await.is(200);
}

async fn links_and_sessions_expire(service: &Service) {
    let actor = users::local_actor(service.org);
    let (_, late) = users::invite(&service.app, &actor, "late", Role::Viewer).await.unwrap();
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    ann.get("/").await.is(200);
    service.clock.advance(SignedDuration::from_hours(24));
    assert_eq!(ann.get("/").await.is(303).header("location"), "/sign-in");
    Browser::new(service).get(&format!("/welcome/{late}")).await.is(404);
}

async fn reset_or_removed_user_is_signed_out_immediately(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    let bob = Browser::signed_in(service, "bob", Role::Viewer).await;
    let actor = users::local_actor(service.org);
    let find = async |name: &str| {
        let mut reader = service.app.db.read().await.unwrap();
        store::users::by_name(&mut reader, service.org, name).await.unwrap().unwrap()
    };
    let link = users::reset(&service.app, &actor, &find("ann").await).await.unwrap();
    users::remove(&service.app, &actor, &find("bob").await).await.unwrap();
    for (gone, name) in [(&ann, "ann"), (&bob, "bob")] {
        gone.get("/").await.is(303);
        gone.post("/sign-in", &[("name", name), ("password", PASSWORD)]).await.is(422);
    }
    let form = [("password", "another horse battery"), ("again", "another horse battery")];
    ann.post(&format!("/welcome/{link}"), &form).await.is(303);
    ann.get("/").await.is(200);
}

/// The whole table: no page is visible without signing in, or with a lower role.
async fn every_page_requires_its_role(service: &Service) {
    let browsers = [
        (Role::Viewer, Browser::signed_in(service, "viewer", Role::Viewer).await),
        (Role::Operator, Browser::signed_in(service, "operator", Role::Operator).await),
        (Role::Admin, Browser::signed_in(service, "admin", Role::Admin).await),
    ];
    let open: Vec<&str> = paths()
        .into_iter()
        .filter(|(access, _)| *access == Access::Open)
        .map(|(_, path)| path)
        .collect();
    let doors = ["/sign-in", "/welcome/{link}", "/assets/{mark}/{name}", "/sign-in/code"];
    let links = ["/confirm-email/{link}", "/unsubscribe/{link}"];
    assert_eq!(open, [&doors[..], &["/sign-in/oidc", "/sign-in/oidc/back"], &links].concat());
    let mut guarded = 0;
    for (access, path) in paths() {
        let Access::SignedIn(needed) = access else { continue };
        guarded += 1;
        let path = fill_in_ids(path);
        let stranger = Browser::new(service);
        let seen = stranger.get(&path).await;
        assert!(matches!(seen.status.as_u16(), 303 | 405), "{path}: {}", seen.status);
        let sent = stranger.post(&path, &[]).await;
        assert!(matches!(sent.status.as_u16(), 401 | 405), "{path}: {}", sent.status);
        if matches!(path.as_str(), "/sign-out" | "/live") {
            continue;
        }
        for (role, browser) in &browsers {
            let (got, sent) = (browser.get(&path).await, browser.submit(&path, &[]).await);
            let refused = [got.status.as_u16(), sent.status.as_u16()].contains(&403);
            assert_eq!(
                refused,
                !role.includes(needed),
                "{role} {path}: {} {}",
                got.status,
                sent.status
            );
            for answer in [got, sent] {
                assert!(!answer.status.is_server_error(), "{role} {path}: {}", answer.text());
            }
        }
    }
    assert!(guarded > 30, "{guarded}");
}

async fn forms_are_accepted_only_from_our_own_pages(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let csrf = ann.csrf().await;
    let form = [("name", "x"), ("role", "viewer"), ("csrf", csrf.as_str())];
    ann.post("/settings/keys", &form[..2]).await.is(403);
    ann.post("/settings/keys", &[("name", "x"), ("role", "viewer"), ("csrf", "AAAA")])
        .await
        .is(403);
    ann.post_from("https://evil.example", "/settings/keys", &form).await.is(403);
    ann.post_from("null", "/settings/keys", &form).await.is(403);
    let other = Browser::signed_in(service, "bob", Role::Admin).await;
    other.post("/settings/keys", &form).await.is(403);
    ann.post_from("https://fleet.example", "/settings/keys", &form).await.is(200);
    let foreign = Browser::new(service);
    let login = [("name", "ann"), ("password", PASSWORD)];
    foreign.post_from("https://evil.example", "/sign-in", &login).await.is(403);
}

async fn attackers_are_throttled_and_the_owner_is_not(service: &Service) {
    let owner = Browser::signed_in(service, "ann", Role::Admin).await;
    owner.submit("/sign-out", &[]).await.is(303);
    let guesser = Browser::new(service);
    let wrong = [("name", "ann"), ("password", "password12345")];
    for _ in 0..10 {
        guesser.post("/sign-in", &wrong).await.is(422);
    }
    let stopped = guesser.post("/sign-in", &wrong).await.is(429);
    assert!(stopped.text().contains("Too many attempts"));
    // From the same address, through the same proxy: a browser that signed in before can sign
    // in.
    let right = [("name", "ann"), ("password", PASSWORD)];
    guesser.post("/sign-in", &right).await.is(429);
    owner.post("/sign-in", &right).await.is(303);
    // So can a new browser at another address.
    let travelling = Browser::with_address(service, 9);
    travelling.post("/sign-in", &right).await.is(303);
}

async fn sign_in_attempts_with_huge_names_use_no_memory(service: &Service) {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let before = peak();
    for nth in 0..600_u32 {
        let name = format!("{nth}{}", "x".repeat(1_000_000));
        let browser = Browser::with_address(service, (nth % 250) as u8);
        let form = format!("name={name}&password=x");
        let ask = TestRequest::new(Method::POST, "/sign-in")
            .with("content-type", "application/x-www-form-urlencoded");
        ask.with_body(form).from((nth % 250) as u8).send(&service.router).await.is(413);
        // As long as a form may be, with a name that no user can have.
        let name = format!("{nth}{}", "x".repeat(3_900));
        let response = browser.post("/sign-in", &[("name", &name), ("password", "x")]).await;
        assert!(matches!(response.status.as_u16(), 422 | 429), "{}", response.status);
        assert!(response.bytes.len() < 8_000, "{}", response.bytes.len());
    }
    // The kernel counts approximately: the peak may even look smaller than before.
    let grown = peak().saturating_sub(before);
    println!("1,200 sign-in attempts: {grown} MiB");
    // It used to take 1,200 MiB. Other tests run in the same process.
    assert!(grown < 300, "{grown} MiB");
    for path in ["/sign-in/code", "/welcome/x"] {
        let ask = TestRequest::new(Method::POST, path)
            .with("content-type", "application/x-www-form-urlencoded");
        ask.with_body(format!("name={}", "x".repeat(5_000))).send(&service.router).await.is(413);
    }
}

/// Excessive attempts are rejected before any query: here the database is closed.
async fn throttled_sign_in_does_not_query_the_database(service: &Service) {
    let try_once = async |host: u8| {
        // No user can have this name, so no password is checked either.
        let form = [("name", "a\u{1}b"), ("password", "x")];
        Browser::with_address(service, host).post("/sign-in", &form).await
    };
    let mut tries = 0;
    while try_once(7).await.status.as_u16() == 422 {
        tries += 1;
        assert!(tries < 1_000, "never throttled");
    }
    service.app.db.close().await;
    try_once(7).await.is(429);
    try_once(8).await.is(503);
}

/// A spelling that the database would treat as the same name must not have its own bucket.
async fn control_characters_in_a_name_do_not_bypass_the_limit(service: &Service) {
    let _ann = Browser::signed_in(service, "ann", Role::Admin).await;
    for name in ["an\0n", "\0ann", "ann\0\0"] {
        let response = Browser::with_address(service, 7)
            .post("/sign-in", &[("name", name), ("password", PASSWORD)])
            .await;
        response.is(422);
    }
}

async fn stolen_session_cannot_guess_the_second_factor(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let page = ann.submit("/account/totp", &[]).await.is(200).text();
    let secret = page.split("id=\"secret\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let code = current_code(&secret, service.clock.now());
    ann.submit("/account/totp", &[("secret", &secret), ("code", &code)]).await.is(200);
    let csrf = ann.csrf().await;
    let mut guesses = 0;
    for guess in 0..200 {
        let guess = format!("{guess:06}");
        let response = ann.post("/account/totp", &[("code", &guess), ("csrf", &csrf)]).await;
        match response.status.as_u16() {
            422 => guesses += 1,
            429 => assert!(response.headers.contains_key("retry-after")),
            other => panic!("{other}"),
        }
    }
    assert!(guesses <= 10, "{guesses}");
    // Nor with the correct code, until some time has passed.
    service.clock.advance(SignedDuration::from_secs(60));
    let code = current_code(&secret, service.clock.now());
    ann.post("/account/totp", &[("code", &code), ("csrf", &csrf)]).await.is(429);
}

async fn second_factor_is_required_once_enabled(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let page = ann.submit("/account/totp", &[]).await.is(200).text();
    let secret = page.split("id=\"secret\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let now = || current_code(&secret, service.clock.now());
    ann.submit("/account/totp", &[("secret", &secret), ("code", "000000")]).await.is(422);
    ann.submit("/account/totp", &[("secret", &secret), ("code", &now())]).await.is(200);
    assert!(ann.get("/account").await.text().contains(">on<"));

    service.clock.advance(SignedDuration::from_secs(60));
    let other = Browser::with_address(service, 7);
    let form = [("name", "ann"), ("password", PASSWORD), ("next", "/servers")];
    let page = other.post("/sign-in", &form).await.is(200).text();
    assert_eq!(other.cookie("fleetmend_session"), None, "not yet");
    let ticket = page
        .split("name=\"ticket\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let try_with = async |ticket: &str, code: &str| {
        let form = [("ticket", ticket), ("code", code), ("next", "/servers")];
        other.post("/sign-in/code", &form).await
    };
    try_with(&ticket, "000000").await.is(422);
    let (head, tag) = ticket.rsplit_once('.').unwrap();
    // Guesses with forged tickets do not count against the owner.
    for nth in 0..30 {
        let (rest, last) = tag.split_at(tag.len() - 1);
        let forged = format!("{head}.{rest}{}", if last == "A" { "B" } else { "A" });
        let stranger = Browser::with_address(service, 100 + nth);
        stranger.post("/sign-in/code", &[("ticket", &forged), ("code", "000000")]).await.is(422);
    }
    for forged in ["9999999999.AAAA", "..", "", "9999999999.usr_x.AAAA"] {
        try_with(forged, &now()).await.is(422);
    }
    assert_eq!(try_with(&ticket, &now()).await.is(303).header("location"), "/servers");
    other.get("/servers").await.is(200);
    // Neither the ticket nor the code can be used twice.
    try_with(&ticket, &now()).await.is(422);

    let mut reader = service.app.db.read().await.unwrap();
    let kept = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    drop(reader);
    assert!(kept.totp_secret.is_some_and(|sealed| sealed.len() > 20), "encrypted, not plain");
    ann.submit("/account/totp", &[("code", &now())]).await.is(422);
    service.clock.advance(SignedDuration::from_secs(60));
    ann.submit("/account/totp", &[("code", &now())]).await.is(303);
    Browser::with_address(service, 8).post("/sign-in", &form).await.is(303);
}

/// An attacker who has the password cannot guess the code, even from many addresses.
async fn two_factor_code_cannot_be_guessed(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let page = ann.submit("/account/totp", &[]).await.is(200).text();
    let secret = page.split("id=\"secret\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let code = current_code(&secret, service.clock.now());
    ann.submit("/account/totp", &[("secret", &secret), ("code", &code)]).await.is(200);
    let mut guesses = 0;
    for nth in 0..60_u8 {
        let thief = Browser::with_address(service, 100 + nth);
        let page =
            thief.post("/sign-in", &[("name", "ann"), ("password", PASSWORD)]).await.is(200).text();
        let ticket = page
            .split("name=\"ticket\" value=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned();
        let form = [("ticket", ticket.as_str()), ("code", "000000")];
        guesses += usize::from(thief.post("/sign-in/code", &form).await.status.as_u16() == 422);
    }
    assert!(guesses <= 10, "{guesses}");
}

async fn organizations_cannot_affect_each_others_user_names(service: &Service) {
    service.stranger().await;
    let umbrella = {
        let mut reader = service.app.db.read().await.unwrap();
        store::organizations::by_name(&mut reader, "Umbrella").await.unwrap().id
    };
    let acme = {
        let mut reader = service.app.db.read().await.unwrap();
        store::organizations::get(&mut reader, service.org).await.unwrap().name
    };
    // Both may have a user with the same name, and neither learns of the other's.
    let _ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let other = "another long password";
    let (_, link) = users::invite(&service.app, &users::local_actor(umbrella), "ann", Role::Viewer)
        .await
        .unwrap();
    let form = [("password", other), ("again", other)];
    Browser::new(service).post(&format!("/welcome/{link}"), &form).await.is(303);
    let signs_in = async |host: u8, organization: &str, password: &str| {
        let form = [("organization", organization), ("name", "ann"), ("password", password)];
        Browser::with_address(service, host).post("/sign-in", &form).await
    };
    signs_in(2, &acme.to_uppercase(), PASSWORD).await.is(303);
    signs_in(2, "Umbrella", other).await.is(303);
    signs_in(2, &acme, other).await.is(422);
    signs_in(2, "Umbrella", PASSWORD).await.is(422);
    // An unknown organization gets the same response as a wrong password.
    let masked = |response: TestResponse, organization: &str| {
        response.is(422).text().replace(organization, "ORG")
    };
    let wrong = masked(signs_in(3, "Umbrella", "not the password").await, "Umbrella");
    assert_eq!(wrong, masked(signs_in(3, "Nowhere", "not the password").await, "Nowhere"));
    // Guesses in one organization do not lock out users of another.
    let mut stopped = false;
    for host in 10..150 {
        stopped |= signs_in(host, "Umbrella", "not the password").await.status.as_u16() == 429;
    }
    assert!(stopped);
    signs_in(200, "Umbrella", other).await.is(429);
    signs_in(200, &acme, PASSWORD).await.is(303);
}

async fn unknown_name_and_wrong_password_get_the_same_response(service: &Service) {
    Browser::signed_in(service, "ann", Role::Viewer).await;
    let browser = Browser::new(service);
    let said = async |name: &str| {
        let form = [("name", name), ("password", "not the password")];
        browser.post("/sign-in", &form).await.is(422).text().replace(name, "NAME")
    };
    assert_eq!(said("ann").await, said("nobody").await);
    assert!(said("a\u{0}nn").await.contains("Incorrect username or password"));
}

async fn database_contains_nothing_that_signs_in(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let session = ann.cookie("fleetmend_session").unwrap();
    let mut reader = service.app.db.read().await.unwrap();
    let user = store::users::by_name(&mut reader, service.org, "ann").await.unwrap().unwrap();
    let kept = format!("{user:?}");
    assert!(!kept.contains(PASSWORD) && !kept.contains(&session), "{kept}");
    drop(reader);
    let forged = TestRequest::get("/")
        .with("cookie", &format!("fleetmend_session={}x", &session[..session.len() - 1]));
    forged.send(&service.router).await.is(303);
    ann.delete_cookie("fleetmend_session");
    ann.get("/").await.is(303);
}

async fn sign_in_redirects_only_to_our_own_paths(service: &Service) {
    Browser::signed_in(service, "ann", Role::Viewer).await;
    for evil in
        ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
    {
        let browser = Browser::new(service);
        let form = [("name", "ann"), ("password", PASSWORD), ("next", evil)];
        let response = browser.post("/sign-in", &form).await.is(303);
        assert_eq!(response.header("location"), "/", "{evil}");
    }
}

async fn pages_send_restrictive_security_headers(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Viewer).await;
    for path in ["/", "/servers/none", "/sign-in", "/servers?nonsense=1"] {
        let page = ann.get(path).await;
        let policy = page.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("cache-control"), "no-store");
        assert!(page.header("content-type").starts_with("text/html"), "{path}");
    }
    let style = ann.get(&dashboard::pages::STYLE.path()).await.is(200);
    assert!(style.header("cache-control").contains("immutable"));
    ann.get("/assets/0000000000000000/app.css").await.is(404);
    // An API key does not open pages, and a session does not work for the API.
    let session = ann.cookie("fleetmend_session").unwrap();
    let cookie = format!("fleetmend_session={session}");
    TestRequest::get("/v1/servers").with("cookie", &cookie).send(&service.router).await.is(401);
    TestRequest::new(Method::GET, "/").with_key(&service.admin).send(&service.router).await.is(303);
}

testkit::both!(
    crate::support:
    link_sets_a_password_once_and_the_password_works,
    links_and_sessions_expire,
    reset_or_removed_user_is_signed_out_immediately,
    every_page_requires_its_role,
    forms_are_accepted_only_from_our_own_pages,
    attackers_are_throttled_and_the_owner_is_not,
    sign_in_attempts_with_huge_names_use_no_memory,
    throttled_sign_in_does_not_query_the_database,
    control_characters_in_a_name_do_not_bypass_the_limit,
    stolen_session_cannot_guess_the_second_factor,
    second_factor_is_required_once_enabled,
    two_factor_code_cannot_be_guessed,
    organizations_cannot_affect_each_others_user_names,
    unknown_name_and_wrong_password_get_the_same_response,
    database_contains_nothing_that_signs_in,
    sign_in_redirects_only_to_our_own_paths,
    pages_send_restrictive_security_headers,
);

//! OIDC sign-in: who may sign in, as which user, and which tokens are rejected.

use axum::Router;
use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::Settings;
use service::auth::oidc::{Config, RoleMapping, Secret};
use service::auth::totp::current_code;
use service::auth::users;
use vocab::Role;

use crate::browser::{Browser, PASSWORD};
use crate::provider::{CLIENT, IdToken, IdTokenChange, Provider, SECRET};
use crate::support::{Service, TestResponse};

pub(crate) fn config(service: &Service, provider: &Provider) -> Config {
    Config {
        issuer: provider.url.clone(),
        name: "Example".into(),
        client_id: CLIENT.into(),
        client_secret: Some(Secret(SECRET.into())),
        scope: "openid email".into(),
        roles: None,
        default_role: None,
        org: service.org,
    }
}

async fn router_with_oidc(service: &Service, config: Config) -> Router {
    service.again(Settings { oidc: Some(config), ..Settings::default() }).await.1
}

async fn provider_and_router(service: &Service) -> (Provider, Router) {
    let provider = Provider::new(service.clock.now()).await;
    let router = router_with_oidc(service, config(service, &provider)).await;
    (provider, router)
}

pub(crate) fn claims_for(subject: &str, email: &str) -> Value {
    json!({"sub": subject, "email": email, "email_verified": true})
}

pub(crate) async fn invite(service: &Service, name: &str, role: Role) -> store::users::User {
    users::invite(&service.app, &users::local_actor(service.org), name, role).await.unwrap().0
}

pub(crate) async fn authorization_url(browser: &Browser) -> String {
    let response = browser.get("/sign-in/oidc?next=%2Fservers").await.is(303);
    response.header("location").to_owned()
}

/// A complete sign-in at the identity provider.
async fn sign_in(browser: &Browser, provider: &Provider, person: Value) -> TestResponse {
    let back = provider.approve(&authorization_url(browser).await, person);
    browser.get(&back).await
}

async fn find_user(service: &Service, name: &str) -> Option<store::users::User> {
    store::users::by_name(&mut service.app.db.read().await.unwrap(), service.org, name)
        .await
        .unwrap()
}

/// Asserts that the response rejects the sign-in with this message.
#[track_caller]
fn assert_rejected(response: TestResponse, status: u16, reported: &str) {
    let response = response.is(status);
    let cookies = response.headers.get_all("set-cookie").iter();
    let all: Vec<&str> = cookies.map(|line| line.to_str().unwrap()).collect();
    assert!(all.iter().all(|line| line.starts_with("fleetmend_flow=;")), "{all:?}");
    let text = response.text();
    assert!(text.contains(reported) && text.contains("name=\"password\""), "{reported}: {text}");
}

async fn invited_user_signs_in_by_verified_email_then_by_subject(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    invite(service, "ann@example.org", Role::Operator).await;
    let browser = Browser::with_router(router.clone(), 1);
    let sign_in_page = browser.get("/sign-in?next=%2Fservers").await.is(200).text();
    assert!(
        sign_in_page.contains("Sign in with Example")
            && sign_in_page.contains("/sign-in/oidc?next=%2Fservers"),
        "{sign_in_page}"
    );
    let entered =
        sign_in(&browser, &provider, claims_for("s-1", "Ann@Example.org")).await.is(200).text();
    assert!(entered.contains("content=\"0; url=/servers\""), "{entered}");
    assert!(browser.get("/servers").await.is(200).text().contains("ann@example.org"));
    assert_eq!(browser.cookie("fleetmend_flow"), None, "removed after use");

    // The address has changed since; the subject has not.
    let again = Browser::with_router(router, 2);
    sign_in(&again, &provider, claims_for("s-1", "ann.smith@example.org")).await.is(200);
    assert!(again.get("/servers").await.is(200).text().contains("ann@example.org"));
    assert_eq!(
        (provider.request_count("doors"), provider.request_count("keys")),
        (1, 1),
        "fetched once"
    );

    let log = Browser::signed_in(service, "boss", Role::Admin).await.get("/activity").await.text();
    assert!(
        log.contains("user.link") && log.contains("user.sign_in") && log.contains("oidc"),
        "{log}"
    );
}

/// The provider belongs to one organization. An invitation to another organization does not
/// count, and a link from the time when names were shared is removed.
async fn sign_in_never_enters_another_organization(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    service.stranger().await;
    let umbrella = {
        let mut reader = service.app.db.read().await.unwrap();
        store::organizations::by_name(&mut reader, "Umbrella").await.unwrap().id
    };
    let (there, _) =
        users::invite(&service.app, &users::local_actor(umbrella), "ann@example.org", Role::Admin)
            .await
            .unwrap();
    let browser = Browser::with_router(router.clone(), 1);
    let response = sign_in(&browser, &provider, claims_for("s-1", "ann@example.org")).await;
    assert_rejected(response, 403, "Ask an administrator to invite ann@example.org");
    let mut tx = service.app.db.begin().await.unwrap();
    let link = store::identities::LinkedIdentity {
        issuer: provider.url.clone(),
        subject: "s-1".into(),
        user_id: there.id,
        created_at: service.clock.now(),
    };
    store::identities::link(&mut tx, &link).await.unwrap();
    tx.commit().await.unwrap();
    let response = sign_in(&browser, &provider, claims_for("s-1", "ann@example.org")).await;
    assert_rejected(response, 403, "Ask an administrator to invite ann@example.org");
    // Once invited here, the same person can sign in here.
    let here = invite(service, "ann@example.org", Role::Viewer).await;
    sign_in(&browser, &provider, claims_for("s-1", "ann@example.org")).await.is(200);
    let mut reader = service.app.db.read().await.unwrap();
    let found = store::identities::find(&mut reader, &provider.url, "s-1").await.unwrap();
    assert_eq!(found.unwrap().user_id, here.id);
}

async fn without_a_provider_there_is_no_oidc_sign_in(service: &Service) {
    let browser = Browser::new(service);
    assert!(!browser.get("/sign-in").await.text().contains("oidc"));
    browser.get("/sign-in/oidc").await.is(404);
    browser.get("/sign-in/oidc/back?code=a&state=b").await.is(404);
}

async fn unknown_removed_and_reassigned_identities_are_rejected(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    let ann = invite(service, "ann@example.org", Role::Operator).await;
    let browser = Browser::with_router(router.clone(), 1);
    let tries = async |subject: &str, email: &str| {
        sign_in(&browser, &provider, claims_for(subject, email)).await
    };
    assert_rejected(
        tries("s-9", "eve@example.org").await,
        403,
        "Ask an administrator to invite eve@example.org",
    );
    let unverified = json!({"sub": "s-1", "email": "ann@example.org", "email_verified": false});
    assert_rejected(sign_in(&browser, &provider, unverified).await, 403, "Verify it there");
    assert_rejected(
        sign_in(&browser, &provider, json!({"sub": "s-1", "email": "ann@example.org"})).await,
        403,
        "Verify it there",
    );
    tries("s-1", "ann@example.org").await.is(200);
    // The provider reassigned the address to another person.
    assert_rejected(tries("s-2", "ann@example.org").await, 403, "linked to a different account");

    let open = Config { default_role: Some(Role::Viewer), ..config(service, &provider) };
    let lax = Browser::with_router(router_with_oidc(service, open).await, 3);
    let seen = find_user(service, "ann@example.org").await.unwrap();
    users::remove(&service.app, &users::local_actor(service.org), &seen).await.unwrap();
    assert_eq!(browser.get("/").await.status.as_u16(), 303, "signed out immediately");
    assert_rejected(
        sign_in(&lax, &provider, claims_for("s-1", "ann@example.org")).await,
        403,
        "was removed",
    );
    assert_rejected(
        sign_in(&lax, &provider, claims_for("s-7", "ann@example.org")).await,
        403,
        "was removed",
    );
    // Invited again, she is a new user here with the same subject at the provider.
    let anew = invite(service, "ann@example.org", Role::Viewer).await;
    assert_ne!(anew.id, ann.id);
    sign_in(&lax, &provider, claims_for("s-1", "ann@example.org")).await.is(200);
    assert!(lax.get("/").await.is(200).text().contains("viewer"));
    // After a reset, the user is linked again.
    let seen = find_user(service, "ann@example.org").await.unwrap();
    users::reset(&service.app, &users::local_actor(service.org), &seen).await.unwrap();
    sign_in(&lax, &provider, claims_for("s-2", "ann@example.org")).await.is(200);
}

async fn operator_configures_who_may_sign_in_with_which_role(service: &Service) {
    let (provider, _) = provider_and_router(service).await;
    let open = Config { default_role: Some(Role::Viewer), ..config(service, &provider) };
    let browser = Browser::with_router(router_with_oidc(service, open).await, 1);
    sign_in(&browser, &provider, claims_for("s-1", "New@example.org")).await.is(200);
    assert_eq!(find_user(service, "new@example.org").await.unwrap().role, Role::Viewer);

    let by_value = vec![(Role::Admin, "ops".to_owned()), (Role::Viewer, "staff".to_owned())];
    let roles = Some(RoleMapping { claim: "groups".into(), by_value });
    let mapped = Config { roles, ..config(service, &provider) };
    let router = router_with_oidc(service, mapped).await;
    let browser = Browser::with_router(router.clone(), 2);
    let of = |subject: &str, groups: &[&str]| {
        let mut person = claims_for(subject, &format!("{subject}@example.org"));
        person["groups"] = json!(groups);
        person
    };
    sign_in(&browser, &provider, of("s-1", &["staff", "ops"])).await.is(200);
    assert_eq!(
        find_user(service, "new@example.org").await.unwrap().role,
        Role::Admin,
        "the role is updated at every sign-in"
    );
    browser.get("/settings").await.is(200);
    // Another browser signs in after the groups changed: the first browser has the new role
    // too.
    sign_in(&Browser::with_router(router.clone(), 3), &provider, of("s-1", &["staff"]))
        .await
        .is(200);
    browser.get("/settings").await.is(403);
    assert_rejected(
        sign_in(&browser, &provider, of("s-1", &["other"])).await,
        403,
        "assigns you no role",
    );
    assert_rejected(sign_in(&browser, &provider, of("s-4", &[])).await, 403, "assigns you no role");
    sign_in(&browser, &provider, of("s-5", &["ops"])).await.is(200);
    assert_eq!(find_user(service, "s-5@example.org").await.unwrap().role, Role::Admin);
}

async fn authorization_works_once_in_its_browser_for_ten_minutes(service: &Service) {
    const BEGIN_AGAIN: &str = "Sign in again";
    let (provider, router) = provider_and_router(service).await;
    invite(service, "ann@example.org", Role::Operator).await;
    let ann = claims_for("s-1", "ann@example.org");
    let [browser, victim] = [1, 2].map(|host| Browser::with_router(router.clone(), host));
    // The callback of another browser, opened in a browser without a sign-in in progress, or
    // with a different one.
    let back = provider.approve(&authorization_url(&browser).await, ann.clone());
    assert_rejected(victim.get(&back).await, 422, BEGIN_AGAIN);
    authorization_url(&victim).await;
    assert_rejected(victim.get(&back).await, 422, BEGIN_AGAIN);
    assert_eq!(provider.request_count("token"), 0, "the code is not redeemed");
    let flow = browser.cookie("fleetmend_flow").unwrap();
    browser.get(&back).await.is(200);
    assert_rejected(browser.get(&back).await, 422, BEGIN_AGAIN);
    // With the cookie restored, the provider still knows that the code was used.
    browser.set_cookie("fleetmend_flow", &flow);
    assert_rejected(browser.get(&back).await, 422, BEGIN_AGAIN);
    let back = provider.approve(&authorization_url(&browser).await, ann.clone());
    let flow = browser.cookie("fleetmend_flow").unwrap();
    browser.set_cookie("fleetmend_flow", &format!("{}x", &flow[..flow.len() - 1]));
    assert_rejected(browser.get(&back).await, 422, BEGIN_AGAIN);
    let back = provider.approve(&authorization_url(&browser).await, ann);
    service.clock.advance(SignedDuration::from_mins(10));
    assert_rejected(browser.get(&back).await, 422, "has expired");
    // The redirect never leads to another site.
    for elsewhere in
        ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
    {
        let message = browser
            .get(&format!("/sign-in/oidc?next={elsewhere}"))
            .await
            .is(303)
            .header("location")
            .to_owned();
        assert!(message.starts_with(&provider.url), "{message}");
        let back = provider.approve(&message, claims_for("s-1", "ann@example.org"));
        provider.change_next_token(|proof| {
            for name in ["exp", "iat"] {
                proof.claims[name] = json!(proof.claims[name].as_i64().unwrap() + 600);
            }
        });
        let page = browser.get(&back).await.is(200).text();
        assert!(page.contains("content=\"0; url=/\""), "{page}");
    }
}

async fn invalid_id_tokens_are_rejected(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    invite(service, "ann@example.org", Role::Operator).await;
    let browser = Browser::with_router(router, 1);
    let later = service.clock.now().as_second() + 3_600;
    let claim = |name: &'static str, value: Value| -> IdTokenChange {
        Box::new(move |proof| proof.claims[name] = value)
    };
    let head = |name: &'static str, value: Value| -> IdTokenChange {
        Box::new(move |proof| proof.head[name] = value)
    };
    let lies: Vec<(IdTokenChange, &str)> = vec![
        (claim("aud", json!("another")), "for a different client"),
        (claim("aud", json!([])), "for a different client"),
        (claim("aud", json!([CLIENT, "another"])), "several audiences"),
        (claim("azp", json!("another")), "issued to a different client"),
        (claim("iss", json!("https://evil.example")), "a different issuer"),
        (claim("nonce", json!("AAAA")), "from a different sign-in"),
        (claim("nonce", Value::Null), "from a different sign-in"),
        (claim("exp", json!(1)), "has expired"),
        (claim("exp", Value::Null), "has expired"),
        (claim("iat", json!(later)), "issued in the future"),
        (claim("nbf", json!(later)), "not valid yet"),
        (claim("sub", json!("s-2")), "a different subject"),
        (claim("sub", json!("")), "a different subject"),
        (head("alg", json!("none")), "not signed with a public key of the provider"),
        (head("alg", json!("HS256")), "not signed with a public key of the provider"),
        (head("alg", json!("RS256")), "a key that the provider does not publish"),
        (head("kid", json!("2")), "a key that the provider does not publish"),
        (head("crit", json!(["exp"])), "critical headers"),
        (
            Box::new(|id_token: &mut IdToken| id_token.signature = Some(vec![0; 64])),
            "the signature is invalid",
        ),
        (
            Box::new(|id_token: &mut IdToken| id_token.signature = Some(Vec::new())),
            "the signature is invalid",
        ),
    ];
    for (lie, message) in lies {
        provider.change_next_token(lie);
        assert_rejected(
            sign_in(&browser, &provider, claims_for("s-1", "ann@example.org")).await,
            502,
            message,
        );
    }
    assert_eq!(browser.get("/").await.status.as_u16(), 303);
    sign_in(&browser, &provider, claims_for("s-1", "ann@example.org")).await.is(200);
}

async fn email_verified_applies_only_to_its_own_address(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    invite(service, "ann@example.org", Role::Operator).await;
    let browser = Browser::with_router(router, 1);
    let in_the_proof = |claims: Value| {
        move |id_token: &mut IdToken| {
            id_token.claims.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        }
    };
    // The ID token names another user's address without `email_verified`; the userinfo endpoint
    // names a different address.
    provider.change_next_token(in_the_proof(json!({"email": "ann@example.org"})));
    let response = sign_in(&browser, &provider, claims_for("s-9", "eve@example.org")).await;
    assert_rejected(response, 403, "invite eve@example.org");
    provider.change_next_token(in_the_proof(json!({"email_verified": true})));
    let endpoint = json!({"sub": "s-9", "email": "ann@example.org"});
    assert_rejected(sign_in(&browser, &provider, endpoint).await, 403, "Verify it there");
    provider.change_next_token(in_the_proof(
        json!({"email": "ann@example.org", "email_verified": false}),
    ));
    assert_rejected(
        sign_in(&browser, &provider, claims_for("s-9", "ann@example.org")).await,
        403,
        "Verify it there",
    );
    provider.change_next_token(in_the_proof(
        json!({"email": "ann@example.org", "email_verified": true}),
    ));
    sign_in(&browser, &provider, json!({"sub": "s-1"})).await.is(200);
}

async fn provider_may_rotate_keys_but_not_change_its_issuer(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    invite(service, "ann@example.org", Role::Operator).await;
    let ann = || claims_for("s-1", "ann@example.org");
    let browser = Browser::with_router(router, 1);
    sign_in(&browser, &provider, ann()).await.is(200);
    provider.rotate_key();
    sign_in(&browser, &provider, ann()).await.is(200);
    assert_eq!(provider.request_count("keys"), 2);
    service.clock.advance(SignedDuration::from_hours(2));
    for (doors, told) in [
        (json!({"issuer": "https://evil.example"}), "discovery document of Example is not usable"),
        (
            json!({"authorization_endpoint": "http://evil.example/auth"}),
            "authorization endpoint of Example is not usable",
        ),
        (json!({"jwks_uri": "ftp://127.0.0.1/keys"}), "keys of Example is not usable"),
    ] {
        provider.change_discovery(doors);
        let fresh =
            Browser::with_router(router_with_oidc(service, config(service, &provider)).await, 1);
        assert_rejected(fresh.get("/sign-in/oidc").await, 502, told);
    }
    provider.change_discovery(json!({"authorization_response_iss_parameter_supported": true}));
    let strict =
        Browser::with_router(router_with_oidc(service, config(service, &provider)).await, 1);
    assert_rejected(sign_in(&strict, &provider, ann()).await, 502, "a different issuer");
    let back = provider.approve(&authorization_url(&strict).await, ann());
    assert_rejected(
        strict.get(&format!("{back}&iss=https://evil.example")).await,
        502,
        "a different issuer",
    );
}

async fn provider_errors_are_shown_and_passwords_keep_working(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    Browser::signed_in(service, "ann@example.org", Role::Operator).await;
    let browser = Browser::with_router(router.clone(), 4);
    for (word, told) in [
        ("access_denied", "denied the request"),
        ("temporarily_unavailable", "temporarily unavailable"),
        ("invalid_scope", "rejected this service (invalid_scope)"),
        ("%3Cscript%3E", "returned an error"),
    ] {
        let back = provider.approve(&authorization_url(&browser).await, Value::Null);
        let state = back.split("state=").nth(1).unwrap().split('&').next().unwrap().to_owned();
        assert_rejected(
            browser.get(&format!("/sign-in/oidc/back?error={word}&state={state}")).await,
            403,
            told,
        );
    }
    let wrong = Config { client_secret: None, ..config(service, &provider) };
    let unknown = Browser::with_router(router_with_oidc(service, wrong).await, 1);
    let response = sign_in(&unknown, &provider, claims_for("s-1", "ann@example.org")).await;
    assert_rejected(response, 502, "rejected this service (invalid_client)");

    let back =
        provider.approve(&authorization_url(&browser).await, claims_for("s-1", "ann@example.org"));
    let gone = router_with_oidc(service, config(service, &provider)).await;
    provider.stop().await;
    assert_rejected(browser.get(&back).await, 503, "does not respond");
    let other = Browser::with_router(gone, 5);
    assert_rejected(other.get("/sign-in/oidc").await, 503, "sign in with a password");
    let form = [("name", "ann@example.org"), ("password", PASSWORD)];
    other.post("/sign-in", &form).await.is(303);
    other.get("/").await.is(200);
}

async fn second_factor_is_required_after_oidc_too(service: &Service) {
    let (provider, router) = provider_and_router(service).await;
    let ann = Browser::signed_in(service, "ann@example.org", Role::Admin).await;
    let page = ann.submit("/account/totp", &[]).await.is(200).text();
    let secret = page.split("id=\"secret\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let now = || current_code(&secret, service.clock.now());
    ann.submit("/account/totp", &[("secret", &secret), ("code", &now())]).await.is(200);
    service.clock.advance(SignedDuration::from_secs(30));
    let other = Browser::with_router(router, 6);
    let page =
        sign_in(&other, &provider, claims_for("s-1", "ann@example.org")).await.is(200).text();
    assert_eq!(other.cookie("fleetmend_session"), None, "not yet");
    let ticket = page
        .split("name=\"ticket\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let form =
        [("name", "ann@example.org"), ("ticket", &ticket), ("code", &now()), ("next", "/servers")];
    assert_eq!(other.post("/sign-in/code", &form).await.is(303).header("location"), "/servers");
    other.get("/servers").await.is(200);
    let log = ann.get("/activity").await.text();
    let entry = log.split("user.sign_in").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(entry.contains("oidc"), "{entry}");
}

testkit::both!(
    crate::support:
    invited_user_signs_in_by_verified_email_then_by_subject,
    sign_in_never_enters_another_organization,
    without_a_provider_there_is_no_oidc_sign_in,
    unknown_removed_and_reassigned_identities_are_rejected,
    operator_configures_who_may_sign_in_with_which_role,
    authorization_works_once_in_its_browser_for_ten_minutes,
    invalid_id_tokens_are_rejected,
    email_verified_applies_only_to_its_own_address,
    provider_may_rotate_keys_but_not_change_its_issuer,
    provider_errors_are_shown_and_passwords_keep_working,
    second_factor_is_required_after_oidc_too,
);

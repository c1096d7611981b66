//! A local identity provider that responds as a test defines, including what no real one would
//! send.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) const CLIENT: &str = "fleetmend";
pub(crate) const SECRET: &str = "a secret: with/signs+in=it";

/// A change to one otherwise valid ID token.
pub(crate) type IdTokenChange = Box<dyn FnOnce(&mut IdToken) + Send>;

/// An ID token before it is signed.
pub(crate) struct IdToken {
    pub(crate) head: Value,
    pub(crate) claims: Value,
    /// Replaces the signature.
    pub(crate) signature: Option<Vec<u8>>,
}

pub(crate) struct Provider {
    pub(crate) url: String,
    state: Arc<Mutex<ProviderState>>,
    task: JoinHandle<()>,
}

struct ProviderState {
    url: String,
    key: EcdsaKeyPair,
    key_id: u32,
    now: Timestamp,
    /// The last authorization code, with the parameters of the request.
    given: Option<(String, Vec<(String, String)>)>,
    count: u32,
    /// The claims of the user who signs in.
    person: Value,
    change: Option<IdTokenChange>,
    /// Overrides in the discovery document.
    discovery_overrides: Value,
    requests: Vec<String>,
}

fn key() -> EcdsaKeyPair {
    let chance = SystemRandom::new();
    let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &chance).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &chance).unwrap()
}

type Shared = Arc<Mutex<ProviderState>>;

impl Provider {
    pub(crate) async fn new(now: Timestamp) -> Provider {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let provider_state = Arc::new(Mutex::new(ProviderState {
            url: url.clone(),
            key: key(),
            key_id: 1,
            now,
            given: None,
            count: 0,
            person: Value::Null,
            change: None,
            discovery_overrides: json!({}),
            requests: Vec::new(),
        }));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .route("/me", get(userinfo))
            .with_state(provider_state.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Provider { url, state: provider_state, task }
    }

    /// A user signs in at the provider. Returns the callback URL.
    pub(crate) fn approve(&self, location: &str, person: Value) -> String {
        let url = location.strip_prefix(&format!("{}/auth?", self.url)).expect(location);
        let parameters: Vec<(String, String)> = url
            .split('&')
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), decode_form_value(value)))
            .collect();
        let of = |name: &str| parameters.iter().find(|(key, _)| key == name).unwrap().1.clone();
        for (name, value) in [
            ("response_type", "code"),
            ("client_id", CLIENT),
            ("redirect_uri", "http://fleet.example/sign-in/oidc/back"),
            ("code_challenge_method", "S256"),
        ] {
            assert_eq!(of(name), value, "{location}");
        }
        let mut provider_state = self.state.lock().unwrap();
        provider_state.count += 1;
        let code = format!("code-{}", provider_state.count);
        let state = of("state");
        provider_state.given = Some((code.clone(), parameters));
        provider_state.person = person;
        format!("/sign-in/oidc/back?code={code}&state={state}&session_state=x")
    }

    /// Changes the next ID token.
    pub(crate) fn change_next_token(&self, change: impl FnOnce(&mut IdToken) + Send + 'static) {
        self.state.lock().unwrap().change = Some(Box::new(change));
    }

    /// Changes the discovery document.
    pub(crate) fn change_discovery(&self, metadata: Value) {
        self.state.lock().unwrap().discovery_overrides = metadata;
    }

    /// Signs with another key from now on.
    pub(crate) fn rotate_key(&self) {
        let mut provider_state = self.state.lock().unwrap();
        (provider_state.key, provider_state.key_id) = (key(), provider_state.key_id + 1);
    }

    /// The number of requests of this kind.
    pub(crate) fn request_count(&self, what: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|request| *request == what).count()
    }

    /// Stops the provider.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn decode_form_value(text: &str) -> String {
    let (_, value): (String, String) =
        serde_html_form::from_str::<Vec<(String, String)>>(&format!("x={text}")).unwrap().remove(0);
    value
}

async fn discovery(State(provider_state): State<Shared>) -> String {
    let mut provider_state = provider_state.lock().unwrap();
    provider_state.requests.push("doors".into());
    let url = &provider_state.url;
    let mut metadata = json!({
        "issuer": url, "authorization_endpoint": format!("{url}/auth"), "token_endpoint": format!("{url}/token"),
        "jwks_uri": format!("{url}/keys"), "userinfo_endpoint": format!("{url}/me"),
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    for (name, value) in provider_state.discovery_overrides.as_object().unwrap() {
        metadata[name] = value.clone();
    }
    metadata.to_string()
}

async fn keys(State(provider_state): State<Shared>) -> String {
    let mut provider_state = provider_state.lock().unwrap();
    provider_state.requests.push("keys".into());
    let point = provider_state.key.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
    let ours = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": provider_state.key_id.to_string(), "x": x, "y": y});
    json!({"keys": [{"kty": "oct", "k": "AAAA"}, {"kty": "RSA", "use": "enc"}, ours]}).to_string()
}

async fn token(
    State(provider_state): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let mut provider_state = provider_state.lock().unwrap();
    provider_state.requests.push("token".into());
    let form: Vec<(String, String)> = serde_html_form::from_bytes(&body).unwrap();
    let of = |pairs: &[(String, String)], name: &str| {
        pairs
            .iter()
            .find(|(key, _)| key == name)
            .map_or_else(String::new, |(_, value)| value.clone())
    };
    let refused = |word: &str| (StatusCode::BAD_REQUEST, json!({"error": word}).to_string());
    let basic = format!("{CLIENT}:{}", "a+secret%3A+with%2Fsigns%2Bin%3Dit");
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(basic));
    if headers.get("authorization").is_none_or(|shown| shown != basic.as_str()) {
        return refused("invalid_client");
    }
    let Some((code, asked)) = provider_state.given.take() else { return refused("invalid_grant") };
    let verifier =
        ring::digest::digest(&ring::digest::SHA256, of(&form, "code_verifier").as_bytes());
    let fits = of(&form, "code") == code
        && of(&form, "grant_type") == "authorization_code"
        && of(&form, "redirect_uri") == of(&asked, "redirect_uri")
        && URL_SAFE_NO_PAD.encode(verifier) == of(&asked, "code_challenge");
    if !fits {
        return refused("invalid_grant");
    }
    let now = provider_state.now.as_second();
    let mut proof = IdToken {
        head: json!({"alg": "ES256", "kid": provider_state.key_id.to_string()}),
        claims: json!({"iss": provider_state.url, "aud": CLIENT, "sub": provider_state.person["sub"], "exp": now + 300, "iat": now,
            "nonce": of(&asked, "nonce")}),
        signature: None,
    };
    if let Some(change) = provider_state.change.take() {
        change(&mut proof);
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&proof.head), part(&proof.claims));
    let signature = proof.signature.unwrap_or_else(|| {
        provider_state.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec()
    });
    let proof = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
    (
        StatusCode::OK,
        json!({"id_token": proof, "access_token": "for me", "token_type": "Bearer"}).to_string(),
    )
}

async fn userinfo(
    State(provider_state): State<Shared>,
    headers: HeaderMap,
) -> (StatusCode, String) {
    let provider_state = provider_state.lock().unwrap();
    if headers.get("authorization").is_none_or(|shown| shown != "Bearer for me") {
        return (StatusCode::UNAUTHORIZED, String::new());
    }
    (StatusCode::OK, provider_state.person.to_string())
}

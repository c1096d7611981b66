//! One browser's way to a provider and back.
//!
//! Nothing of it is kept here: the browser has a cookie, and what belongs to it is derived from that with a secret of the installation. So
//! whichever replica it comes back to knows it, nobody fills a table by asking, and a way that another browser began leads nowhere.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::SignedDuration;
use service::auth::oidc::Attempt;
use service::clock::chance;
use service::secrets::Age;

use crate::Dashboard;

/// How long someone may take at the provider.
pub(crate) const LIVES: SignedDuration = SignedDuration::from_mins(10);
const RANDOM_BYTES: usize = 16;

/// A way that was begun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    random: [u8; RANDOM_BYTES],
    /// In seconds.
    until: i64,
    /// Where they wanted to go.
    pub(crate) next: String,
    /// The key that everything of it is derived with: `root.key` may be rotated on the way.
    age: Age,
}

const COOKIE: &str = "fleetmend sign-in flow v1";
const TAG_BYTES: usize = 32;

impl Flow {
    /// A new one, to a path of ours.
    pub(crate) fn begin(app: &Dashboard, next: String) -> Flow {
        let until = (app.clock.now() + LIVES).as_second();
        Flow { random: chance(), until, next, age: Age::Current }
    }

    /// What the browser keeps meanwhile.
    pub(crate) fn cookie(&self, app: &Dashboard) -> String {
        let text = URL_SAFE_NO_PAD.encode(self.bytes());
        format!("{text}.{}", self.derived(app, COOKIE))
    }

    /// The one that this cookie is of, unless it is over or was not made here.
    pub(crate) fn read(app: &Dashboard, cookie: &str) -> Option<Flow> {
        let (text, shown) = cookie.split_once('.')?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let shown = URL_SAFE_NO_PAD.decode(shown).ok()?;
        let age = app.secrets.maker(COOKIE, &[&bytes], TAG_BYTES, &shown)?;
        let (random, rest) = bytes.split_first_chunk::<RANDOM_BYTES>()?;
        let (until, next) = rest.split_first_chunk::<8>()?;
        let next = String::from_utf8(next.to_vec()).ok()?;
        let flow = Flow { random: *random, until: i64::from_be_bytes(*until), next, age };
        (flow.until > app.clock.now().as_second()).then_some(flow)
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.random[..], &self.until.to_be_bytes(), self.next.as_bytes()].concat()
    }

    fn derived(&self, app: &Dashboard, purpose: &'static str) -> String {
        URL_SAFE_NO_PAD.encode(app.secrets.tag_of(self.age, purpose, &[&self.bytes()]))
    }

    /// What goes with it; `redirect_uri` is where the provider sends the browser back to.
    pub(crate) fn attempt(&self, app: &Dashboard, redirect_uri: String) -> Attempt {
        Attempt {
            state: self.derived(app, "fleetmend sign-in state v1"),
            nonce: self.derived(app, "fleetmend sign-in nonce v1"),
            verifier: self.derived(app, "fleetmend sign-in verifier v1"),
            redirect_uri,
        }
    }
}

/// Compares in constant time, as `blake3::Hash` does.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

//! Reads a request body as JSON of a fixed shape, or reports everything that is wrong with it.
//!
//! Only the shape is checked here; the handler validates the values. An unknown field is rejected
//! with the nearest known name, because a typo in a patch request must never be ignored. After a
//! shape error the handler still validates the remaining fields, so that one response reports both
//! kinds of errors.

use std::time::Duration;

use axum::body::{Bytes, HttpBody as _, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;
use service::FieldError;
use service::requests::ValidationErrors;

use crate::budget::{BodyBudget, BodySender, charged};
use crate::problem::{ApiError, Code};
use crate::strict_json::StrictJson;

/// The largest body that `/v1` accepts.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// How long a body may take to arrive. Must be less than the limit for the whole request, which is
/// 30 s.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum number of errors in one response. A body of one megabyte could contain a hundred
/// thousand.
const ERRORS_MAX: usize = 50;

/// A JSON body of the shape `T`. After a shape error, it contains what remains without the invalid
/// parts.
#[derive(Debug)]
pub struct Body<T> {
    value: T,
    errors: ValidationErrors,
}

impl<T> Body<T> {
    /// The value and the errors so far. The caller adds its own errors, and may act on the value
    /// only if `ValidationErrors::into_result` succeeds.
    pub fn into_parts(self) -> (T, ValidationErrors) {
        (self.value, self.errors)
    }

    /// A body built from a form of the dashboard.
    pub fn from_value(value: &Value) -> Result<Body<T>, ApiError>
    where
        T: DeserializeOwned,
    {
        parse(value.to_string().as_bytes())
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or(""));
        check_media_type(kind)?;
        let bytes = read(request, BODY_BYTES_MAX).await?;
        parse(&bytes)
    }
}

/// No body, or an empty object, which some clients always send.
#[derive(Debug)]
pub struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let kind = request.headers().get(CONTENT_TYPE).is_some();
        if kind && request.headers().get(CONTENT_LENGTH).is_none_or(|length| length != "0") {
            let (parts, body) = request.into_parts();
            let bytes = read(Request::from_parts(parts.clone(), body), BODY_BYTES_MAX).await?;
            if bytes.is_empty() {
                return Ok(NoBody);
            }
            let request = with_body(parts, bytes);
            let (Nothing {}, errors) = Body::from_request(request, state).await?.into_parts();
            return Ok(errors.into_result().map(|()| NoBody)?);
        }
        let bytes = read(request, BODY_BYTES_MAX).await?;
        if bytes.is_empty() { Ok(NoBody) } else { check_media_type(None).map(|()| NoBody) }
    }
}

fn check_media_type(found: Option<&str>) -> Result<(), ApiError> {
    let refuse = |found: &str| {
        Err(ApiError::new(
            Code::UnsupportedMediaType,
            format!("The body must be `application/json`, but it is {found}."),
        ))
    };
    let Some(found) = found else { return refuse("sent without a `Content-Type`") };
    let mut parts = found.split(';').map(str::trim);
    let essence = parts.next().unwrap_or("");
    let utf8 = parts.filter_map(|parameter| parameter.split_once('=')).all(|(name, value)| {
        !name.eq_ignore_ascii_case("charset")
            || value.trim_matches('"').eq_ignore_ascii_case("utf-8")
    });
    if essence.eq_ignore_ascii_case("application/json") && utf8 {
        return Ok(());
    }
    let shown: String = found.chars().take(80).flat_map(char::escape_debug).collect();
    refuse(&format!("`{shown}`"))
}

/// Reads the bytes of a body, at most `bytes_max`.
///
/// Memory is reserved before the first byte is read ([`BodyBudget`]) and stays reserved until the
/// last clone of the returned bytes is dropped. A value that was parsed from them is not charged:
/// it lives as long as its handler runs, which the sender cannot delay. Use [`with_body`] to pass
/// the bytes on to another reader.
pub async fn read(request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    read_from(BodySender::Authenticated, request, bytes_max).await
}

/// Like [`read`], for a client that has not authenticated.
pub async fn read_from_anyone(request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    read_from(BodySender::Unauthenticated, request, bytes_max).await
}

/// Marks a request whose body was read before and is charged already.
#[derive(Debug, Clone, Copy)]
struct AlreadyCharged;

/// A request whose body can be read again without another charge.
pub fn with_body(mut parts: Parts, bytes: impl Into<Bytes>) -> Request {
    parts.extensions.insert(AlreadyCharged);
    Request::from_parts(parts, axum::body::Body::from(bytes.into()))
}

async fn read_from(
    sender: BodySender,
    request: Request,
    bytes_max: usize,
) -> Result<Bytes, ApiError> {
    let too_large =
        || ApiError::new(Code::BodyTooLarge, format!("The body is larger than {bytes_max} bytes."));
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if announced.and_then(|length| length.parse::<u64>().ok()).unwrap_or(0) > bytes_max as u64 {
        return Err(too_large());
    }
    let reserved = match request.extensions().get::<AlreadyCharged>() {
        Some(AlreadyCharged) => None,
        None => {
            let budget = request.extensions().get().unwrap_or_else(|| BodyBudget::process());
            let upper = request.body().size_hint().upper().and_then(|upper| upper.try_into().ok());
            budget.reserve(sender, upper.unwrap_or(bytes_max).min(bytes_max))?
        }
    };
    let arrived = within_deadline(request.into_body(), bytes_max, ARRIVAL_TIME_MAX).await?;
    let bytes = arrived.map_err(|error| {
        let cause = std::error::Error::source(&error);
        match cause.and_then(|cause| cause.downcast_ref::<http_body_util::LengthLimitError>()) {
            Some(_) => too_large(),
            None => ApiError::new(Code::BadRequest, "The body is incomplete."),
        }
    })?;
    Ok(charged(bytes, reserved))
}

/// Waits for the body until the deadline. After a timeout the connection is closed, because the
/// late bytes would be read as a new request.
async fn within_deadline(
    body: axum::body::Body,
    bytes_max: usize,
    within: Duration,
) -> Result<Result<Bytes, axum::Error>, ApiError> {
    tokio::time::timeout(within, to_bytes(body, bytes_max)).await.map_err(|_| {
        let seconds = ARRIVAL_TIME_MAX.as_secs();
        ApiError::new(Code::RequestTimeout, format!("The body did not arrive within {seconds} s."))
            .with_header(CONNECTION, HeaderValue::from_static("close"))
    })
}

/// Parses a body of the shape `T` with its shape errors, or fails if nothing can be read from it.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Body<T>, ApiError> {
    let read = serde_json::from_slice::<T>(bytes);
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else {
        let detail = match (bytes.is_empty(), read) {
            (false, Err(error)) => format!("The body is not valid JSON: {error}."),
            _ => "The body is empty; a JSON object is expected.".into(),
        };
        return Err(ApiError::new(Code::InvalidJson, detail));
    };
    let errors = all_errors::<T>(&mut value);
    // A `Value` keeps only one of two equal fields, so only the first parse detects duplicates.
    if let Some(twice) = read.err().and_then(|error| repeated_field(&error.to_string())) {
        return Err(ApiError::invalid(vec![FieldError::new("", "invalid", twice)]));
    }
    match StrictJson(&value).read() {
        Ok(left) => Ok(Body { value: left, errors: ValidationErrors::from_structural(errors) }),
        Err(_) => Err(ApiError::invalid(errors)),
    }
}

/// The part of a serde error about a duplicate field, if it is one.
fn repeated_field(message: &str) -> Option<String> {
    let sentence = message.rsplit_once(" at line ").map_or(message, |(start, _)| start);
    sentence.starts_with("duplicate field").then(|| sentence.to_owned())
}

/// Collects all shape errors. Each further error is found by parsing again with the previous one
/// patched, so the remaining value can be parsed in the end, unless an error cannot be patched.
fn all_errors<T: DeserializeOwned>(value: &mut Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    while errors.len() < ERRORS_MAX {
        let Some(found) = first_error::<T>(value) else { break };
        let mended = patch_value::<T>(value, &found);
        errors.push(found.error);
        if !mended {
            break;
        }
    }
    errors
}

/// A shape error and its location.
#[derive(PartialEq)]
struct ShapeError {
    path: Vec<PathStep>,
    kind: ShapeErrorKind,
    error: FieldError,
}

#[derive(Clone, PartialEq)]
enum PathStep {
    Key(String),
    Index(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum ShapeErrorKind {
    Unknown,
    Missing,
    Wrong,
}

fn first_error<T: DeserializeOwned>(value: &Value) -> Option<ShapeError> {
    let error = serde_path_to_error::deserialize::<_, T>(StrictJson(value)).err()?;
    let mut path: Vec<PathStep> = error
        .path()
        .iter()
        .filter_map(|segment| match segment {
            serde_path_to_error::Segment::Map { key } => Some(PathStep::Key(key.clone())),
            serde_path_to_error::Segment::Seq { index } => Some(PathStep::Index(*index)),
            _ => None,
        })
        .collect();
    let message = error.inner().to_string();
    let (what, code, detail) = if let Some((name, known)) = unknown_field(&message) {
        if path.last() != Some(&PathStep::Key(name.to_owned())) {
            path.push(PathStep::Key(name.to_owned()));
        }
        (ShapeErrorKind::Unknown, "unknown_field", unknown_name_message("field", name, &known))
    } else if let Some(name) = between(&message, "missing field `") {
        path.push(PathStep::Key(name.to_owned()));
        (ShapeErrorKind::Missing, "required", "this field is required".to_owned())
    } else if let Some((found, expected)) =
        message.strip_prefix("invalid type: ").and_then(|text| text.split_once(", expected "))
    {
        let expected = describe_expected(expected);
        (
            ShapeErrorKind::Wrong,
            "invalid_type",
            format!("expected {expected}, found {}", truncated(found)),
        )
    } else {
        (ShapeErrorKind::Wrong, "invalid", truncated(&message))
    };
    Some(ShapeError { error: FieldError::new(pointer(&path), code, detail), path, kind: what })
}

/// Describes a type that serde expects without Rust terms.
fn describe_expected(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        _ if expected.starts_with("struct ") || expected.starts_with("a map") => "an object",
        _ if expected.starts_with("a sequence") => "an array",
        _ => expected,
    }
}

/// Splits serde's error about an unknown field into the field and the known fields.
pub fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let name = between(message, "unknown field `")?;
    let known = message[message.find(name)? + name.len()..].split('`').skip(2).step_by(2);
    Some((name, known.collect()))
}

/// A sentence about an unknown name, with the nearest known name.
pub fn unknown_name_message(what: &str, name: &str, known: &[&str]) -> String {
    let name_shown = truncated(name);
    match vocab::nearest(name, known.iter().copied()) {
        Some(suggestion) => format!("unknown {what} `{name_shown}`; did you mean `{suggestion}`?"),
        None if known.is_empty() => format!("unknown {what} `{name_shown}`"),
        None => {
            format!("unknown {what} `{name_shown}`; expected one of {}", known.join(", "))
        }
    }
}

fn between<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    message.strip_prefix(start).and_then(|rest| rest.split('`').next())
}

pub fn truncated(text: &str) -> String {
    let mut short: String = text.chars().take(200).filter(|c| !c.is_control()).collect();
    if text.chars().nth(200).is_some() {
        short.push('…');
    }
    short
}

fn pointer(place: &[PathStep]) -> String {
    let mut text = String::new();
    for step in place {
        text.push('/');
        match step {
            PathStep::Key(key) => text.push_str(&key.replace('~', "~0").replace('/', "~1")),
            PathStep::Index(index) => text.push_str(&index.to_string()),
        }
    }
    text
}

/// Patches the value so that the next parse gets past this error. Returns whether that worked.
fn patch_value<T: DeserializeOwned>(value: &mut Value, error: &ShapeError) -> bool {
    let Some((last, way)) = error.path.split_last() else { return false };
    let mut parent = &mut *value;
    for step in way {
        let next = match step {
            PathStep::Key(key) => parent.get_mut(key.as_str()),
            PathStep::Index(index) => parent.get_mut(*index),
        };
        let Some(next) = next else { return false };
        parent = next;
    }
    if error.kind == ShapeErrorKind::Unknown {
        return match (parent, last) {
            (Value::Object(fields), PathStep::Key(key)) => fields.remove(key).is_some(),
            _ => false,
        };
    }
    let stand_ins = [
        Value::String(String::new()),
        Value::from(0),
        Value::Bool(false),
        Value::Array(Vec::new()),
        Value::Object(serde_json::Map::new()),
    ];
    let at = pointer(&error.path);
    for stand_in in stand_ins {
        match (value.pointer_mut(&pointer(way)), last) {
            (Some(Value::Object(fields)), PathStep::Key(key)) => {
                fields.insert(key.clone(), stand_in);
            }
            (Some(Value::Array(items)), PathStep::Index(index)) if *index < items.len() => {
                items[*index] = stand_in;
            }
            _ => return false,
        }
        // The patch worked if the next error is elsewhere, and not inside the placeholder.
        match first_error::<T>(value) {
            Some(next) if pointer(&next.path).starts_with(&at) => {}
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Order {
        name: String,
        count: u32,
        options: Option<Options>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Options {
        security_only: bool,
        packages: Option<Vec<String>>,
    }

    fn error_lines(body: &str) -> Vec<String> {
        let error = match parse::<Order>(body.as_bytes()) {
            Ok(body) => body.into_parts().1.into_result().unwrap_err().into(),
            Err(error) => error,
        };
        let errors = error.errors().iter();
        errors.map(|e| format!("{} {}: {}", e.pointer, e.code, e.detail)).collect()
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let lines = error_lines(
            r#"{"nmae": 1, "count": "three",
                "options": {"security_only": "yes", "packages": ["a", 7], "reboot~": 1}}"#,
        );
        assert_eq!(
            lines,
            [
                "/count invalid_type: expected a whole number, found string \"three\"",
                "/nmae unknown_field: unknown field `nmae`; did you mean `name`?",
                "/options/packages/1 invalid_type: expected a string, found integer `7`",
                "/options/reboot~0 unknown_field: unknown field `reboot~`; expected one of security_only, packages",
                "/options/security_only invalid_type: expected a boolean, found string \"yes\"",
                "/name required: this field is required",
            ]
        );
    }

    #[test]
    fn body_that_is_not_an_object_is_rejected_as_a_whole() {
        assert_eq!(error_lines("[]").len(), 1);
        assert_eq!(error_lines("7"), [" invalid_type: expected an object, found integer `7`"]);
        // serde alone would accept an array as the fields in their order.
        let positional = error_lines(r#"["a", 1, [true, []]]"#);
        assert_eq!(positional, [" invalid_type: expected an object, found sequence"]);
        let inside = error_lines(r#"{"name": "a", "count": 1, "options": [true, []]}"#);
        assert_eq!(inside, ["/options invalid_type: expected an object, found sequence"]);
    }

    #[test]
    fn duplicate_field_is_rejected() {
        assert_eq!(
            error_lines(r#"{"name": "a", "name": "b", "count": 1}"#),
            [" invalid: duplicate field `name`"]
        );
    }

    #[test]
    fn malformed_json_is_400_and_not_422() {
        for body in ["", "{", "{'name': 1}", "\u{feff}{}"] {
            assert_eq!(parse::<Order>(body.as_bytes()).unwrap_err().code(), Code::InvalidJson);
        }
    }

    #[tokio::test]
    async fn slow_body_times_out() {
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let body = axum::body::Body::from_stream(never);
        let error =
            within_deadline(body, BODY_BYTES_MAX, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(error.code(), Code::RequestTimeout);
        let response = axum::response::IntoResponse::into_response(error);
        assert_eq!(response.headers()[CONNECTION], "close");
    }

    #[tokio::test]
    async fn body_that_is_read_twice_is_charged_once() {
        let budget = BodyBudget::default();
        let full = || axum::body::Body::from(vec![b' '; BODY_BYTES_MAX]);
        let request = |body| {
            let mut request = Request::new(body);
            request.extensions_mut().insert(budget.clone());
            request
        };
        let mut held = Vec::new();
        for _ in 0..64 {
            let (parts, body) = request(full()).into_parts();
            let first = Request::from_parts(parts.clone(), body);
            let bytes = read(first, BODY_BYTES_MAX).await.unwrap();
            let twice = read(with_body(parts, bytes), BODY_BYTES_MAX).await.unwrap();
            assert_eq!(twice.len(), BODY_BYTES_MAX);
            held.push(twice);
        }
        let refused = read(request(full()), BODY_BYTES_MAX).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        let response = axum::response::IntoResponse::into_response(refused);
        assert_eq!(response.headers()[axum::http::header::RETRY_AFTER], "2");
        // A body of unknown length is charged with the maximum size.
        let unknown = futures_util::stream::once(async { Ok::<_, std::io::Error>("x") });
        let unknown = axum::body::Body::from_stream(unknown);
        assert!(read(request(unknown), BODY_BYTES_MAX).await.is_err());
        assert!(read(request(axum::body::Body::from("small")), BODY_BYTES_MAX).await.is_ok());
        assert!(read(request(axum::body::Body::empty()), BODY_BYTES_MAX).await.is_ok());
        held.pop();
        assert!(read(request(full()), BODY_BYTES_MAX).await.is_ok());
    }

    #[test]
    fn valid_fields_remain_readable_after_shape_errors() {
        let body = r#"{"name": "a b", "count": "three", "colour": "red"}"#;
        let (order, mut errors) = parse::<Order>(body.as_bytes()).unwrap().into_parts();
        assert_eq!(order.name, "a b");
        errors.add("/name", "invalid_name", "contains a space");
        errors.add("/count", "out_of_range", "must not be zero");
        let error = ApiError::from(errors.into_result().unwrap_err());
        let pointers: Vec<&str> =
            error.errors().iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/colour", "/count", "/name"], "each invalid field is reported once");
    }

    #[test]
    fn number_of_reported_errors_is_bounded() {
        let fields: Vec<String> = (0..2000).map(|n| format!("\"x{n}\": 1")).collect();
        assert_eq!(error_lines(&format!("{{{}}}", fields.join(","))).len(), ERRORS_MAX);
    }

    #[test]
    fn only_utf_8_json_is_accepted() {
        for good in ["application/json", "Application/JSON; charset=UTF-8"] {
            assert!(check_media_type(Some(good)).is_ok(), "{good}");
        }
        for bad in ["text/plain", "application/json; charset=latin1", "application/jsonp", ""] {
            assert!(check_media_type(Some(bad)).is_err(), "{bad}");
        }
        assert!(check_media_type(None).is_err());
    }
}

//! Query parameters: every parameter must be known, sent once and valid.
//!
//! An unknown parameter is rejected with the nearest known name. Otherwise a filter with a typo
//! would return every server.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use service::FieldError;

use crate::body::{truncated, unknown_field, unknown_name_message};
use crate::problem::{ApiError, Code};

/// The parameters of a request. `T` must deny unknown fields.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse(parts.uri.query().unwrap_or("")).map(Query)
    }
}

/// An operation without parameters.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// Parses a query string.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    let mut pairs: Vec<(String, String)> = serde_html_form::from_str(text)
        .map_err(|_| ApiError::new(Code::BadRequest, "The query string is malformed."))?;
    let mut refusals = remove_repeated_and_empty(&mut pairs);
    let parameters = loop {
        match read::<T>(&pairs) {
            Ok(parameters) => break Some(parameters),
            Err(refusal) => {
                let before = pairs.len();
                pairs.retain(|(name, _)| *name != refusal.name);
                let stuck = pairs.len() == before;
                refusals.push(refusal);
                if stuck {
                    break None;
                }
            }
        }
    };
    match (refusals.is_empty(), parameters) {
        (true, Some(parameters)) => Ok(parameters),
        _ => Err(reject(refusals)),
    }
}

struct ParameterError {
    code: Code,
    name: String,
    detail: String,
}

fn reject(refusals: Vec<ParameterError>) -> ApiError {
    let code = refusals.first().map_or(Code::BadRequest, |first| first.code);
    let details: Vec<&str> = refusals.iter().map(|refusal| refusal.detail.as_str()).collect();
    let errors = refusals.iter().map(|refusal| {
        FieldError::new(format!("/{}", refusal.name), refusal.code.word(), &refusal.detail)
    });
    let details = details.join(", and ").replace("?, ", ", ");
    let end = if details.ends_with('?') { "" } else { "." };
    ApiError::new(code, format!("Invalid query string: {details}{end}"))
        .with_errors(errors.collect())
}

/// Removes the parameters that are invalid for every operation.
fn remove_repeated_and_empty(pairs: &mut Vec<(String, String)>) -> Vec<ParameterError> {
    let mut errors: Vec<ParameterError> = Vec::new();
    let given = pairs.clone();
    pairs.retain(|(name, value)| {
        let times = given.iter().filter(|(other, _)| other == name).count();
        let refused_before = errors.iter().any(|refusal| refusal.name == *name);
        let shown = truncated(name);
        if times > 1 && !refused_before {
            errors.push(ParameterError {
                code: Code::RepeatedParameter,
                name: name.clone(),
                detail: format!("`{shown}` occurs {times} times; send it once"),
            });
        } else if times == 1 && value.is_empty() {
            errors.push(ParameterError {
                code: Code::InvalidParameter,
                name: name.clone(),
                detail: format!("`{shown}` has no value; omit it instead"),
            });
        }
        times == 1 && !value.is_empty()
    });
    errors
}

fn read<T: DeserializeOwned>(pairs: &[(String, String)]) -> Result<T, ParameterError> {
    let text = serde_html_form::to_string(pairs).unwrap_or_default();
    let form = serde_html_form::Deserializer::from_bytes(text.as_bytes());
    let error = match serde_path_to_error::deserialize(form) {
        Ok(parameters) => return Ok(parameters),
        Err(error) => error,
    };
    let path = error.path().to_string();
    let message = error.into_inner().to_string();
    Err(match unknown_field(&message) {
        Some((name, known)) => ParameterError {
            code: Code::UnknownParameter,
            name: name.to_owned(),
            detail: unknown_name_message("parameter", name, &known),
        },
        None => ParameterError {
            code: Code::InvalidParameter,
            detail: format!("`{path}` is invalid: {}", truncated(&message)),
            name: path,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Limit, Offset};
    use vocab::Status;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Filter {
        status: Option<Status>,
        environment: Option<String>,
        #[serde(default)]
        limit: Limit,
        #[serde(default)]
        offset: Offset,
    }

    fn refusal(text: &str) -> (Code, String) {
        let error = parse::<Filter>(text).unwrap_err();
        (error.code(), error.detail().to_owned())
    }

    #[test]
    fn omitted_parameters_have_defaults() {
        let filter = parse::<Filter>("").unwrap();
        assert_eq!((filter.limit.0, filter.offset.0), (50, 0));
        assert!(filter.status.is_none() && filter.environment.is_none());
        let filter = parse::<Filter>("status=online&environment=a%20b&limit=500&offset=7").unwrap();
        assert_eq!((filter.limit.0, filter.offset.0), (500, 7));
        assert_eq!(filter.environment.as_deref(), Some("a b"));
    }

    #[test]
    fn unknown_parameter_is_rejected_with_a_suggestion() {
        let (code, detail) = refusal("enviroment=production");
        assert_eq!(code, Code::UnknownParameter);
        assert!(
            detail.ends_with("unknown parameter `enviroment`; did you mean `environment`?"),
            "{detail}"
        );
    }

    #[test]
    fn invalid_value_names_its_parameter() {
        let (code, detail) = refusal("status=on-line");
        assert_eq!(code, Code::InvalidParameter);
        assert!(
            detail.contains("`status` is invalid") && detail.contains("did you mean `online`?"),
            "{detail}"
        );
        for bad in [
            "limit=0",
            "limit=501",
            "limit=-1",
            "limit=ten",
            "limit=1e2",
            "offset=-1",
            "offset=99999999999999999999",
        ] {
            let (code, detail) = refusal(bad);
            let name = bad.split('=').next().unwrap();
            assert_eq!(code, Code::InvalidParameter, "{bad}");
            assert!(detail.contains(&format!("`{name}` is invalid")), "{bad}: {detail}");
        }
    }

    #[test]
    fn repeated_and_empty_parameters_are_rejected() {
        assert_eq!(refusal("limit=1&limit=2").0, Code::RepeatedParameter);
        assert_eq!(refusal("environment=").0, Code::InvalidParameter);
    }

    #[test]
    fn all_invalid_parameters_are_reported_at_once() {
        let error = parse::<Filter>("limit=0&statsu=online&environment=&offset=x").unwrap_err();
        let names: Vec<&str> = error.errors().iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}

//! The query string: known parameters, each once, each with a value that can be used.
//!
//! A parameter that is not known is refused with the nearest one that is: a filter with a typo would
//! otherwise answer with every server there is.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use service::FieldError;

use crate::body::{shortened, unknown_field, unknown_sentence};
use crate::problem::{ApiError, Code};

/// The parameters of a request. `T` denies unknown fields.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse(parts.uri.query().unwrap_or("")).map(Query)
    }
}

/// No parameter at all.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// The parameters in a query string.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    let mut pairs: Vec<(String, String)> = serde_html_form::from_str(text)
        .map_err(|_| ApiError::new(Code::BadRequest, "The query string cannot be read."))?;
    let mut refusals = repeated_and_empty(&mut pairs);
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
        _ => Err(refuse(refusals)),
    }
}

struct Refusal {
    code: Code,
    name: String,
    detail: String,
}

fn refuse(refusals: Vec<Refusal>) -> ApiError {
    let code = refusals.first().map_or(Code::BadRequest, |first| first.code);
    let details: Vec<&str> = refusals.iter().map(|refusal| refusal.detail.as_str()).collect();
    let errors = refusals.iter().map(|refusal| {
        FieldError::new(format!("/{}", refusal.name), refusal.code.word(), &refusal.detail)
    });
    ApiError::new(
        code,
        format!("In the query string {}.", details.join(", and ").replace("?, ", ", ")),
    )
    .with_errors(errors.collect())
}

/// Takes out what is refused whatever the operation is.
fn repeated_and_empty(pairs: &mut Vec<(String, String)>) -> Vec<Refusal> {
    let mut refusals: Vec<Refusal> = Vec::new();
    let given = pairs.clone();
    pairs.retain(|(name, value)| {
        let times = given.iter().filter(|(other, _)| other == name).count();
        let refused_before = refusals.iter().any(|refusal| refusal.name == *name);
        let shown = shortened(name);
        if times > 1 && !refused_before {
            refusals.push(Refusal {
                code: Code::RepeatedParameter,
                name: name.clone(),
                detail: format!("`{shown}` is given {times} times; it is taken once"),
            });
        } else if times == 1 && value.is_empty() {
            refusals.push(Refusal {
                code: Code::InvalidParameter,
                name: name.clone(),
                detail: format!("`{shown}` has no value; leave it out instead"),
            });
        }
        times == 1 && !value.is_empty()
    });
    refusals
}

fn read<T: DeserializeOwned>(pairs: &[(String, String)]) -> Result<T, Refusal> {
    let text = serde_html_form::to_string(pairs).unwrap_or_default();
    let form = serde_html_form::Deserializer::from_bytes(text.as_bytes());
    let error = match serde_path_to_error::deserialize(form) {
        Ok(parameters) => return Ok(parameters),
        Err(error) => error,
    };
    let path = error.path().to_string();
    let message = error.into_inner().to_string();
    Err(match unknown_field(&message) {
        Some((name, known)) => Refusal {
            code: Code::UnknownParameter,
            name: name.to_owned(),
            detail: unknown_sentence("parameter", name, &known),
        },
        None => Refusal {
            code: Code::InvalidParameter,
            detail: format!("`{path}` cannot be used: {}", shortened(&message)),
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
    fn what_is_left_out_has_its_default() {
        let filter = parse::<Filter>("").unwrap();
        assert_eq!((filter.limit.0, filter.offset.0), (50, 0));
        assert!(filter.status.is_none() && filter.environment.is_none());
        let filter = parse::<Filter>("status=online&environment=a%20b&limit=500&offset=7").unwrap();
        assert_eq!((filter.limit.0, filter.offset.0), (500, 7));
        assert_eq!(filter.environment.as_deref(), Some("a b"));
    }

    #[test]
    fn a_typo_is_refused_and_the_parameter_that_was_meant_is_named() {
        let (code, detail) = refusal("enviroment=production");
        assert_eq!(code, Code::UnknownParameter);
        assert!(
            detail.contains("there is no parameter `enviroment`; did you mean `environment`?"),
            "{detail}"
        );
    }

    #[test]
    fn a_bad_value_names_its_parameter() {
        let (code, detail) = refusal("status=on-line");
        assert_eq!(code, Code::InvalidParameter);
        assert!(
            detail.contains("`status` cannot be used") && detail.contains("did you mean `online`?"),
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
            assert!(detail.contains(&format!("`{name}` cannot be used")), "{bad}: {detail}");
        }
    }

    #[test]
    fn twice_and_empty_are_refused() {
        assert_eq!(refusal("limit=1&limit=2").0, Code::RepeatedParameter);
        assert_eq!(refusal("environment=").0, Code::InvalidParameter);
    }

    #[test]
    fn every_bad_parameter_is_told_at_once() {
        let error = parse::<Filter>("limit=0&statsu=online&environment=&offset=x").unwrap_err();
        let names: Vec<&str> = error.errors().iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}

//! What the reference shows, read from the OpenAPI document. Pure.

use httpkit::problem::Code;
use serde_json::Value;

use super::fields::{Field, ParameterInput, Schemas, entries, items, plain};
use super::markup::Markup;
use crate::examples::GENERATED;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The reference.
pub(crate) struct Reference {
    pub(crate) title: String,
    pub(crate) version: String,
    pub(crate) about: Markup,
    /// A first request.
    pub(crate) first_request: Markup,
    pub(crate) groups: Vec<Group>,
    pub(crate) statuses: Vec<ErrorStatus>,
    pub(crate) schemas: Vec<NamedSchema>,
}

/// The operations on one kind of resource.
pub(crate) struct Group {
    pub(crate) anchor: String,
    pub(crate) name: String,
    pub(crate) about: Markup,
    pub(crate) operations: Vec<Operation>,
}

#[derive(askama::Template)]
#[template(path = "docs_operation.html")]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) summary: String,
    about: Markup,
    /// The role that a key needs; none if no key is needed.
    role: Option<String>,
    /// The parameters in the path and the query.
    parameters: Vec<ParameterList>,
    body: Option<Body>,
    headers: Vec<Field>,
    responses: Vec<Response>,
    /// The error statuses, with the codes that they can have.
    errors: Vec<ErrorStatus>,
    curl: Markup,
}

/// The parameters in one part of a request.
struct ParameterList {
    title: &'static str,
    fields: Vec<Field>,
}

struct Body {
    kind: Markup,
    fields: Vec<Field>,
    generated: bool,
}

/// A successful response.
struct Response {
    status: String,
    about: Markup,
    kind: Option<Markup>,
    headers: Vec<String>,
    example: Option<Markup>,
    generated: bool,
}

/// An error status and its codes.
pub(crate) struct ErrorStatus {
    pub(crate) status: u16,
    pub(crate) codes: Vec<ErrorCode>,
}

pub(crate) struct ErrorCode {
    pub(crate) word: &'static str,
    pub(crate) about: Markup,
}

/// A schema with a name.
pub(crate) struct NamedSchema {
    pub(crate) name: String,
    pub(crate) about: Markup,
    pub(crate) fields: Vec<Field>,
}

impl Operation {
    pub(crate) fn short_method(&self) -> &'static str {
        if self.method == "delete" { "del" } else { self.method }
    }

    fn path_markup(&self) -> Markup {
        Markup::path(&self.path)
    }
}

impl Reference {
    pub(crate) fn new(document: &Value) -> Reference {
        let groups = items(&document["tags"]).map(|tag| group(document, tag));
        Reference {
            title: text(&document["info"]["title"]),
            version: text(&document["info"]["version"]),
            about: Markup::prose(document["info"]["description"].as_str().unwrap_or("")),
            first_request: Markup::curl("get", "/v1/summary", true, None),
            groups: groups.filter(|group| !group.operations.is_empty()).collect(),
            statuses: error_statuses(|_| true),
            schemas: named_schemas(document),
        }
    }
}

fn group(document: &Value, tag: &Value) -> Group {
    let name = text(&tag["name"]);
    let mut operations = Vec::new();
    for (path, item) in entries(&document["paths"]) {
        for method in METHODS {
            let Some(stated) = item.get(method) else { continue };
            if items(&stated["tags"]).any(|tag| *tag == name) {
                operations.push(operation(document, path, method, stated));
            }
        }
    }
    Group {
        anchor: name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
        about: Markup::prose(tag["description"].as_str().unwrap_or("")),
        name,
        operations,
    }
}

fn operation<'a>(
    document: &'a Value,
    path: &str,
    method: &'static str,
    stated: &'a Value,
) -> Operation {
    let schemas = Schemas::new(document);
    let role = stated["x-required-role"].as_str().map(str::to_owned);
    // The page shows the role next to the path, so the sentence about it is left out.
    let about = stated["description"].as_str().unwrap_or("");
    let without_role = about.split("\n\n").filter(|paragraph| {
        role.is_none() || !paragraph.starts_with("Requires an API key with the role")
    });
    let about = Markup::prose(&without_role.collect::<Vec<_>>().join("\n\n"));
    let content = json_content(&stated["requestBody"]);
    let body = content.map(|content| Body {
        kind: schemas.kind(&content["schema"]),
        fields: schemas.of_requests().fields(&content["schema"]),
        generated: content[GENERATED] == true,
    });
    let parameters: Vec<&Value> =
        items(&stated["parameters"]).map(|parameter| schemas.resolve(parameter)).collect();
    let example = content.and_then(stated_example);
    let curl =
        Markup::curl(method, &example_url(schemas, path, &parameters), role.is_some(), example);
    let responses = entries(&stated["responses"]);
    let (good, bad): (Vec<_>, Vec<_>) = responses.partition(|(status, _)| status.starts_with('2'));
    let bad: Vec<u16> = bad.into_iter().filter_map(|(status, _)| status.parse().ok()).collect();
    Operation {
        id: text(&stated["operationId"]),
        method,
        path: path.to_owned(),
        summary: text(&stated["summary"]),
        about,
        role,
        parameters: parameter_lists(schemas, &parameters),
        body,
        headers: parameters_in(schemas, &parameters, "header"),
        responses: good.into_iter().map(|(status, one)| response(schemas, status, one)).collect(),
        errors: error_statuses(|status| bad.contains(&status)),
        curl,
    }
}

fn parameter_lists<'a>(schemas: Schemas<'a>, parameters: &[&'a Value]) -> Vec<ParameterList> {
    let lists = [("path", "Path parameters"), ("query", "Query parameters")];
    let lists = lists.map(|(location, title)| ParameterList {
        title,
        fields: parameters_in(schemas, parameters, location),
    });
    lists.into_iter().filter(|list| !list.fields.is_empty()).collect()
}

fn parameters_in<'a>(schemas: Schemas<'a>, parameters: &[&'a Value], location: &str) -> Vec<Field> {
    let here = parameters.iter().filter(|parameter| parameter["in"] == location);
    here.map(|parameter| parameter_field(schemas, parameter, location)).collect()
}

fn parameter_field<'a>(schemas: Schemas<'a>, parameter: &'a Value, location: &str) -> Field {
    let mut field = schemas.of_requests().parameter(parameter);
    field.parameter = Some(ParameterInput {
        location: location.to_owned(),
        example: example_value(schemas, parameter).unwrap_or_default(),
    });
    field
}

fn response<'a>(schemas: Schemas<'a>, status: &str, stated: &'a Value) -> Response {
    let content = json_content(stated);
    let other = entries(&stated["content"]).map(|(media_type, _)| Markup::text(media_type));
    let kind = match content {
        Some(content) => Some(schemas.kind(&content["schema"])),
        None => Some(Markup::join(&other.collect::<Vec<_>>(), " or ")),
    };
    Response {
        status: status.to_owned(),
        about: Markup::prose(stated["description"].as_str().unwrap_or("")),
        kind: kind.filter(|kind| !kind.is_empty()),
        headers: entries(&stated["headers"]).map(|(name, _)| name.clone()).collect(),
        example: content.and_then(stated_example).map(Markup::json),
        generated: content.is_some_and(|content| content[GENERATED] == true),
    }
}

fn json_content(holder: &Value) -> Option<&Value> {
    holder.pointer("/content/application~1json")
}

fn stated_example(content: &Value) -> Option<&Value> {
    content.get("example")
}

/// The path and query of an example: every path parameter, and the query parameters that are
/// required.
fn example_url<'a>(schemas: Schemas<'a>, path: &str, parameters: &[&'a Value]) -> String {
    let mut url = path.to_owned();
    let mut query = Vec::new();
    for parameter in parameters {
        let name = text(&parameter["name"]);
        let Some(value) = example_value(schemas, parameter) else { continue };
        if parameter["in"] == "path" {
            url = url.replace(&format!("{{{name}}}"), &value);
        } else if parameter["in"] == "query" && parameter["required"] == true {
            query.push(format!("{name}={value}"));
        }
    }
    if query.is_empty() { url } else { format!("{url}?{}", query.join("&")) }
}

fn example_value<'a>(schemas: Schemas<'a>, parameter: &'a Value) -> Option<String> {
    let schema = schemas.resolve(&parameter["schema"]);
    let stated = parameter.get("example").or(schema.get("example"));
    let stated = stated.or(schema["examples"].get(0)).or(schema["enum"].get(0));
    stated.or(schema.get("default")).map(plain)
}

/// The codes of the statuses that are wanted.
fn error_statuses(wanted: impl Fn(u16) -> bool) -> Vec<ErrorStatus> {
    let mut statuses: Vec<ErrorStatus> = Vec::new();
    for code in Code::ALL {
        let status = code.status().as_u16();
        if !wanted(status) {
            continue;
        }
        let shown = ErrorCode { word: code.word(), about: Markup::prose(code.about()) };
        match statuses.iter_mut().find(|one| one.status == status) {
            Some(same) => same.codes.push(shown),
            None => statuses.push(ErrorStatus { status, codes: vec![shown] }),
        }
    }
    statuses.sort_by_key(|one| one.status);
    statuses
}

fn named_schemas(document: &Value) -> Vec<NamedSchema> {
    let schemas = Schemas::new(document);
    let all = entries(&document["components"]["schemas"]);
    // A schema that is not an object is described where it is used.
    let objects =
        all.filter(|(_, schema)| schema["type"] == "object" || schema.get("allOf").is_some());
    objects
        .map(|(name, schema)| NamedSchema {
            name: name.clone(),
            about: Markup::prose(schema["description"].as_str().unwrap_or("")),
            fields: schemas.own_fields(schema),
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

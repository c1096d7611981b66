//! The fields of a schema as the reference shows them: type, limits, values, and nested fields.

use serde_json::Value;

use super::markup::Markup;

/// How deep the fields of nested objects are shown in place. Deeper ones are a link away.
const DEPTH_MAX: usize = 2;

/// Longer patterns say nothing to a reader.
const PATTERN_CHARS_MAX: usize = 48;

/// A field of an object, or a parameter.
#[derive(Debug, askama::Template)]
#[template(path = "docs_field.html")]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) required: bool,
    pub(crate) kind: Markup,
    /// Whether it can be null, in a response. In a request, null means the same as to omit it.
    pub(crate) nullable: bool,
    /// Whether clients send it.
    pub(crate) input: bool,
    pub(crate) about: Markup,
    /// The allowed values, if there is a closed list.
    pub(crate) values: Vec<String>,
    /// What a value must fulfill, in words.
    pub(crate) limits: Vec<Markup>,
    /// The fields of the object, or of the objects in the list.
    pub(crate) children: Vec<Field>,
    /// For a parameter: where it is sent, and a value to show in an empty input.
    pub(crate) parameter: Option<ParameterInput>,
}

#[derive(Debug)]
pub(crate) struct ParameterInput {
    pub(crate) location: String,
    pub(crate) example: String,
}

/// Reads the schemas of a document.
#[derive(Clone, Copy)]
pub(crate) struct Schemas<'a> {
    document: &'a Value,
    /// Whether clients send what is described.
    input: bool,
}

impl<'a> Schemas<'a> {
    /// For objects in responses.
    pub(crate) fn new(document: &'a Value) -> Schemas<'a> {
        Schemas { document, input: false }
    }

    /// For parameters and request bodies.
    pub(crate) fn of_requests(self) -> Schemas<'a> {
        Schemas { input: true, ..self }
    }

    /// Follows a reference; other values are returned unchanged.
    pub(crate) fn resolve(self, value: &'a Value) -> &'a Value {
        let reference = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        reference.and_then(|pointer| self.document.pointer(pointer)).unwrap_or(value)
    }

    /// All fields of an object, those of its `allOf` parts first.
    pub(crate) fn fields(self, schema: &'a Value) -> Vec<Field> {
        self.fields_at(schema, 0)
    }

    fn fields_at(self, schema: &'a Value, depth: usize) -> Vec<Field> {
        let schema = self.resolve(schema);
        let inherited = items(&schema["allOf"]).flat_map(|part| self.fields_at(part, depth));
        let mut fields: Vec<Field> = inherited.collect();
        let required: Vec<&str> = items(&schema["required"]).filter_map(Value::as_str).collect();
        for (name, field) in entries(&schema["properties"]) {
            let required = required.contains(&name.as_str());
            fields.push(self.field(name, field, required, depth));
        }
        // Required fields first; each part stays in the order of the document.
        fields.sort_by_key(|field| !field.required);
        fields
    }

    /// The fields of a named object. Those of other named objects are a link away.
    pub(crate) fn own_fields(self, schema: &'a Value) -> Vec<Field> {
        self.fields_at(schema, DEPTH_MAX)
    }

    /// A parameter of an operation.
    pub(crate) fn parameter(self, parameter: &'a Value) -> Field {
        let name = parameter["name"].as_str().unwrap_or("");
        let required = parameter["required"] == true;
        let mut field = self.field(name, &parameter["schema"], required, DEPTH_MAX);
        field.about = Markup::prose(description(parameter));
        field
    }

    /// One field, with its nested fields.
    fn field(self, name: &str, schema: &'a Value, required: bool, depth: usize) -> Field {
        let value = self.resolve(without_null(schema));
        let inner = if value["items"].is_object() { self.resolve(&value["items"]) } else { value };
        let children =
            if depth < DEPTH_MAX { self.fields_at(inner, depth + 1) } else { Vec::new() };
        Field {
            name: name.to_owned(),
            required,
            kind: self.kind(schema),
            nullable: is_nullable(schema) && !self.input,
            input: self.input,
            about: Markup::prose(description(schema)),
            values: items(&inner["enum"]).map(plain).collect(),
            limits: limits(value),
            children,
            parameter: None,
        }
    }

    /// The type of a schema in a few words, without null, with links to named objects.
    pub(crate) fn kind(self, schema: &'a Value) -> Markup {
        if let Some(name) = reference_name(schema) {
            let target = self.resolve(schema);
            let is_object = target["type"] == "object" || target.get("allOf").is_some();
            return match is_object {
                true => Markup::link(&format!("schema-{name}"), name),
                false => self.kind(target),
            };
        }
        if let Some(choices) = choices(schema) {
            let choices = choices.iter().filter(|choice| choice["type"] != "null");
            let kinds: Vec<Markup> = choices.map(|choice| self.kind(choice)).collect();
            return Markup::join(&kinds, " or ");
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            kind => kind.as_str().into_iter().collect(),
        };
        let shown: Vec<Markup> = kinds
            .into_iter()
            .filter(|kind| *kind != "null")
            .map(|kind| match (kind, schema["format"].as_str()) {
                ("array", _) => {
                    let parts = [Markup::text("array of"), self.kind(&schema["items"])];
                    Markup::join(&parts, " ")
                }
                ("string", Some("date-time")) => Markup::text("time"),
                (kind, _) => Markup::text(kind),
            })
            .collect();
        if shown.is_empty() { Markup::text("any") } else { Markup::join(&shown, " or ") }
    }
}

/// What a value must fulfill, in words.
fn limits(schema: &Value) -> Vec<Markup> {
    let mut limits = Vec::new();
    for (low, high, unit) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ] {
        limits.extend(match (schema[low].as_u64(), schema[high].as_u64()) {
            (Some(low), Some(high)) => Some(format!("{low} to {}{unit}", with_commas(high))),
            (None, Some(high)) => Some(format!("at most {}{unit}", with_commas(high))),
            (Some(1), None) if !unit.is_empty() => Some("not empty".to_owned()),
            (Some(low), None) if low > 0 => Some(format!("at least {low}{unit}")),
            _ => None,
        });
    }
    if let Some(default) = schema.get("default") {
        limits.push(format!("default {}", plain(default)));
    }
    let mut limits: Vec<Markup> = limits.iter().map(|limit| Markup::text(limit)).collect();
    // An example says more to a reader than a pattern.
    let code =
        |word: &str, value: &str| Markup::join(&[Markup::text(word), Markup::code(value)], " ");
    let example = schema["examples"].get(0).or(schema.get("example"));
    let is_plain = schema.get("enum").is_none() && schema.get("properties").is_none();
    match (example, schema["pattern"].as_str()) {
        (Some(example), _) if is_plain && !example.is_null() => {
            limits.push(code("for example", &plain(example)));
        }
        (None, Some(pattern)) if pattern.len() <= PATTERN_CHARS_MAX => {
            limits.push(code("matches", pattern));
        }
        _ => {}
    }
    limits
}

/// 10000 as "10,000".
fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn is_nullable(schema: &Value) -> bool {
    let choice = choices(schema).into_iter().flatten().any(|choice| choice["type"] == "null");
    choice || items(&schema["type"]).any(|kind| kind == "null")
}

/// The description of a field. For a nullable field, the description of its non-null type.
fn description(field: &Value) -> &str {
    let otherwise = items(&field["oneOf"]).filter_map(|choice| choice["description"].as_str());
    field["description"].as_str().into_iter().chain(otherwise).next().unwrap_or("")
}

/// The type of a nullable schema that is not null, if there is only one.
fn without_null(schema: &Value) -> &Value {
    let others: Vec<&Value> = choices(schema).into_iter().flatten().collect();
    let mut others = others.into_iter().filter(|choice| choice["type"] != "null");
    match (others.next(), others.next()) {
        (Some(only), None) => only,
        _ => schema,
    }
}

fn reference_name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/components/schemas/")
}

fn choices(schema: &Value) -> Option<&Vec<Value>> {
    schema["oneOf"].as_array().or(schema["anyOf"].as_array())
}

/// A value without quotes.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(crate) fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

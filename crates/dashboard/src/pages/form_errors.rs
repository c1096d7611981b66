//! The errors of a rejected form, each beside its field.
//!
//! A form lists its fields once ([`FormFields`]). [`FormErrors::add_at`] finds the field of an API
//! error by its JSON pointer; the macros in `templates/fields.html` render the rest.

use crate::pages::{escape, icon, number};

/// The fields of a form in the order of the page: the name that is sent, and the label.
pub type FormFields = &'static [(&'static str, &'static str)];

/// Maximum number of errors that are shown for one field: a list may have a thousand bad entries.
const SHOWN_PER_FIELD: usize = 5;

/// The errors of a form. Empty for a form that was not submitted yet.
#[derive(Debug, Clone, Default)]
pub struct FormErrors {
    fields: FormFields,
    /// Errors that belong to no field.
    general: Vec<String>,
    /// Index of the field in `fields`, and the message.
    by_field: Vec<(usize, String)>,
}

impl FormErrors {
    pub fn new(fields: FormFields) -> FormErrors {
        FormErrors { fields, ..FormErrors::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.general.is_empty() && self.by_field.is_empty()
    }

    /// Adds an error of a field; of the whole form if it has no such field.
    pub fn add(&mut self, field: &str, message: impl Into<String>) {
        match self.fields.iter().position(|(name, _)| *name == field) {
            Some(index) => self.by_field.push((index, message.into())),
            None => self.add_general(message),
        }
    }

    /// Adds an error that belongs to no field.
    pub fn add_general(&mut self, message: impl Into<String>) {
        self.general.push(message.into());
    }

    /// Adds an API error. The most specific part of its JSON pointer that is a field of this form
    /// decides where it is shown: `/options/packages/1` belongs to `packages`, `/targets/os` to
    /// `os`.
    pub fn add_at(&mut self, pointer: &str, message: &str) {
        let parts = pointer.split('/').skip(1);
        let is_field = |part: &&str| self.fields.iter().any(|(name, _)| name == part);
        match parts.filter(is_field).last() {
            Some(field) => self.add(field, message),
            None => match pointer.trim_start_matches('/') {
                "" => self.add_general(message),
                place => self.add_general(format!("{}: {message}", place.replace('_', " "))),
            },
        }
    }

    /// Adds other errors of the same form, except those that `skip` selects by their field.
    pub fn merge(&mut self, other: FormErrors, skip: impl Fn(Option<&str>) -> bool) {
        if !skip(None) {
            self.general.extend(other.general);
        }
        let fields = other.fields;
        let kept = other.by_field.into_iter().filter(|(index, _)| !skip(Some(fields[*index].0)));
        self.by_field.extend(kept);
    }

    /// Whether a field has an error.
    pub fn has(&self, field: &str) -> bool {
        self.messages(field).next().is_some()
    }

    /// The first error of a field.
    pub fn first(&self, field: &str) -> Option<&str> {
        self.messages(field).next()
    }

    fn messages(&self, field: &str) -> impl Iterator<Item = &str> {
        let of_field = move |(index, _): &&(usize, String)| self.fields[*index].0 == field;
        self.by_field.iter().filter(of_field).map(|(_, message)| message.as_str())
    }

    /// The attributes of an input, a select or a textarea: id, name, and the references to its help
    /// and its error.
    pub fn control(&self, field: &str, has_help: bool) -> String {
        let invalid = if self.has(field) { " aria-invalid=\"true\"" } else { "" };
        let described = self.described_by(field, has_help);
        let field = escape(field);
        format!(" id=\"f-{field}\" name=\"{field}\"{invalid}{described}")
    }

    /// The attributes of a group of controls.
    pub fn group(&self, field: &str) -> String {
        format!(" id=\"f-{}\" tabindex=\"-1\"{}", escape(field), self.described_by(field, false))
    }

    fn described_by(&self, field: &str, has_help: bool) -> String {
        let field_name = escape(field);
        match (has_help, self.has(field)) {
            (false, false) => String::new(),
            (true, false) => format!(" aria-describedby=\"f-{field_name}-help\""),
            (false, true) => format!(" aria-describedby=\"f-{field_name}-error\""),
            (true, true) => {
                format!(" aria-describedby=\"f-{field_name}-error f-{field_name}-help\"")
            }
        }
    }

    /// The errors of a field as HTML, or nothing.
    pub fn message(&self, field: &str) -> String {
        let all: Vec<&str> = self.messages(field).collect();
        if all.is_empty() {
            return String::new();
        }
        let shown = all.iter().take(SHOWN_PER_FIELD).map(|message| sentence_html(message));
        let mut lines: Vec<String> = shown.collect();
        if all.len() > SHOWN_PER_FIELD {
            lines.push(format!("And {} more.", number(all.len() - SHOWN_PER_FIELD)));
        }
        format!(
            "<p class=\"error\" id=\"f-{}-error\">{}<span>{}</span></p>",
            escape(field),
            icon("warning"),
            lines.join("<br>")
        )
    }

    /// The heading of the summary.
    pub fn headline(&self) -> String {
        match self.fields.iter().filter(|(field, _)| self.has(field)).count() {
            0 => "Not saved.".to_owned(),
            1 => "Not saved: check 1 field.".to_owned(),
            count => format!("Not saved: check {count} fields."),
        }
    }

    /// The lines of the summary as HTML: general errors first, then the fields in the order of the
    /// page, each with a link.
    pub fn summary(&self) -> Vec<String> {
        let general = self.general.iter().map(|message| sentence_html(message));
        let fields = self.fields.iter().filter_map(|(field, label)| {
            let message = sentence_html(self.messages(field).next()?);
            Some(format!("<a href=\"#f-{}\">{}</a>: {message}", escape(field), escape(label)))
        });
        general.chain(fields).collect()
    }
}

/// A message as a sentence, with code between backticks.
pub fn sentence_html(message: &str) -> String {
    let mut html = String::new();
    let parts: Vec<&str> = message.split('`').collect();
    let is_paired = parts.len() % 2 == 1;
    for (index, part) in parts.iter().enumerate() {
        match index % 2 {
            1 if is_paired => html += &format!("<code>{}</code>", escape(part)),
            1 => html += &format!("`{}", escape(part)),
            0 if index == 0 => html += &escape(&capitalized(part)),
            _ if is_paired => html += &escape(part),
            _ => html += &format!("`{}", escape(part)),
        }
    }
    if !message.ends_with(['.', '?', '!']) {
        html.push('.');
    }
    html
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: FormFields =
        &[("name", "Name"), ("targets", "Servers"), ("os", "System"), ("packages", "Packages")];

    #[test]
    fn pointer_finds_its_most_specific_field() {
        for (pointer, field) in [
            ("/name", "name"),
            ("/options/packages", "packages"),
            ("/options/packages/17", "packages"),
            ("/targets", "targets"),
            ("/targets/os", "os"),
            ("/targets/server_ids/3", "targets"),
        ] {
            let mut errors = FormErrors::new(FIELDS);
            errors.add_at(pointer, "must not be empty");
            assert!(errors.has(field), "{pointer}: {errors:?}");
            assert_eq!(errors.headline(), "Not saved: check 1 field.");
        }
        let mut errors = FormErrors::new(FIELDS);
        errors.add_at("", "nothing was selected");
        errors.add_at("/options/dry_run", "must be a boolean");
        assert_eq!(
            errors.summary(),
            ["Nothing was selected.", "Options/dry run: must be a boolean."]
        );
    }

    #[test]
    fn all_errors_are_listed_in_the_order_of_the_page() {
        let mut errors = FormErrors::new(FIELDS);
        errors.add("packages", "`a b` is not a package name");
        errors.add("name", "must not be empty");
        errors.add_general("The schedule changed. Load it again.");
        assert_eq!(
            errors.summary(),
            [
                "The schedule changed. Load it again.",
                "<a href=\"#f-name\">Name</a>: Must not be empty.",
                "<a href=\"#f-packages\">Packages</a>: <code>a b</code> is not a package name.",
            ]
        );
        assert_eq!(errors.headline(), "Not saved: check 2 fields.");
        assert_eq!(
            errors.control("name", true),
            " id=\"f-name\" name=\"name\" aria-invalid=\"true\" aria-describedby=\"f-name-error f-name-help\""
        );
        assert_eq!(errors.control("os", false), " id=\"f-os\" name=\"os\"");
        assert!(errors.message("name").contains("<span>Must not be empty.</span>"));
        assert_eq!(errors.message("os"), "");
    }

    #[test]
    fn messages_are_escaped_and_bounded() {
        let mut errors = FormErrors::new(FIELDS);
        for _ in 0..1_000 {
            errors.add("packages", "`<b>` is not a package name");
        }
        let html = errors.message("packages");
        assert!(html.contains("<code>&lt;b&gt;</code> is not") && !html.contains("<b>"), "{html}");
        assert!(html.ends_with("<br>And 995 more.</span></p>"), "{html}");
        assert_eq!(errors.summary().len(), 1);
        assert_eq!(sentence_html("an odd ` mark"), "An odd ` mark.");
    }
}

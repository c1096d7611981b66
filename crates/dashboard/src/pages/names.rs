//! Display names for ids.

use std::collections::BTreeMap;

use crate::pages::escape;

/// Display names by id.
#[derive(Debug, Default)]
pub struct Names(pub BTreeMap<String, String>);

/// The pages of objects, by the prefix of their id.
const PAGES: [(&str, &str); 3] =
    [("srv_", "/servers/"), ("sch_", "/schedules/"), ("bat_", "/batches/")];

impl Names {
    /// The name, or the id if there is no name.
    pub fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.0.get(id).map_or(id, String::as_str)
    }

    /// The name as HTML, with the id next to it.
    pub fn with_id(&self, id: &str) -> String {
        match self.0.get(id) {
            Some(name) => format!("{} <code class=\"dim\">{}</code>", escape(name), escape(id)),
            None => escape(id),
        }
    }

    /// The name and id as HTML, linked to the object's page if there is one.
    pub fn link(&self, id: &str) -> String {
        let (name, known) = (escape(self.name(id)), escape(id));
        let suffix = match self.0.contains_key(id) {
            true => format!(" <code class=\"dim\">{known}</code>"),
            false => String::new(),
        };
        match PAGES.iter().find(|(start, _)| id.starts_with(start)) {
            Some((_, page)) => format!("<a href=\"{page}{known}\">{name}</a>{suffix}"),
            None => format!("{name}{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_escaped_and_followed_by_its_id() {
        let names = [("usr_1", "ann"), ("srv_1", "<b>")].map(|(id, name)| (id.into(), name.into()));
        let names = Names(names.into());
        assert_eq!(names.with_id("usr_1"), "ann <code class=\"dim\">usr_1</code>");
        assert_eq!(names.with_id("schedule"), "schedule");
        assert_eq!(
            names.link("srv_1"),
            "<a href=\"/servers/srv_1\">&lt;b&gt;</a> <code class=\"dim\">srv_1</code>"
        );
        assert_eq!(names.link("bat_1"), "<a href=\"/batches/bat_1\">bat_1</a>");
        assert_eq!(names.link("<i>"), "&lt;i&gt;");
    }
}

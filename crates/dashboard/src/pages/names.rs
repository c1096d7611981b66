//! Display names for ids.

use std::collections::BTreeMap;

use crate::pages::escape;

/// Display names by id.
#[derive(Debug, Default)]
pub struct Names(pub BTreeMap<String, String>);

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_escaped_and_followed_by_its_id() {
        let names = [("usr_1", "ann"), ("srv_1", "<b>")].map(|(id, name)| (id.into(), name.into()));
        let names = Names(names.into());
        assert_eq!(names.with_id("usr_1"), "ann <code class=\"dim\">usr_1</code>");
        assert_eq!(names.with_id("srv_1"), "&lt;b&gt; <code class=\"dim\">srv_1</code>");
        assert_eq!(names.with_id("schedule"), "schedule");
    }
}

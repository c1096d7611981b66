//! Parses the parts of apt's configuration that tell whether apt installs updates automatically.

/// The last value of a setting, by its full name: `APT::Periodic::Enable`.
///
/// Both notations are supported: `APT::Periodic::Enable "1";` and
/// `APT { Periodic { Enable "1"; }; };`.
pub(super) fn find_value(text: &str, name: &str) -> Option<String> {
    let mut scopes: Vec<String> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut found = None;
    for token in tokens(text) {
        match token.as_str() {
            "{" => scopes.push(words.join("::")),
            "}" => drop(scopes.pop()),
            ";" => {
                if let [key, value] = words.as_slice() {
                    let mut full = scopes.clone();
                    full.push(key.clone());
                    if full.join("::").eq_ignore_ascii_case(name) {
                        found = Some(value.trim_matches('"').to_owned());
                    }
                }
            }
            _ => {
                words.push(token);
                continue;
            }
        }
        words.clear();
    }
    found
}

/// Words, quoted words with their quotes, and `{`, `}`, `;`. Comments are `//` and `#` to the end
/// of the line, and `/* … */`.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") || first == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if "{};".contains(first) {
            tokens.push(first.to_string());
            1
        } else if first == '"' {
            let end = rest[1..].find('"').map_or(rest.len(), |end| end + 2);
            tokens.push(rest[..end].to_owned());
            end
        } else {
            let ends = |c: char| c.is_whitespace() || "{};\"".contains(c);
            let end = rest.find(ends).unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            end
        };
        rest = &rest[length..];
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::find_value;

    #[test]
    fn both_notations_are_parsed_and_the_last_value_wins() {
        let name = "APT::Periodic::Unattended-Upgrade";
        assert_eq!(
            find_value("APT::Periodic::Unattended-Upgrade \"1\";", name).as_deref(),
            Some("1")
        );
        let nested = "/* \"0\"; */ APT { Periodic { // why\n unattended-upgrade \"7\"; }; };";
        assert_eq!(find_value(nested, name).as_deref(), Some("7"));
        let twice =
            "APT::Periodic::Unattended-Upgrade \"1\";\nAPT::Periodic { Unattended-Upgrade 0; }";
        assert_eq!(find_value(twice, name).as_deref(), Some("0"));
        assert_eq!(find_value("#APT::Periodic::Unattended-Upgrade \"1\";\n", name), None);
        assert_eq!(find_value("}}{{;;\"", name), None);
    }
}

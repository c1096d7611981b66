//! The color theme that a user chose.

/// The name of the value under which templates find the [`Theme`].
pub const THEME_VALUE: &str = "theme";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// The theme of the operating system.
    System,
    Light,
    Dark,
}

impl Theme {
    /// Every theme with its label.
    pub const ALL: [(Theme, &'static str); 3] =
        [(Theme::System, "System"), (Theme::Light, "Light"), (Theme::Dark, "Dark")];

    /// The name in the form and in the cookie.
    pub fn name(self) -> &'static str {
        match self {
            Theme::System => "system",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    /// The theme with this name. Any other name is the theme of the system.
    pub fn from_name(name: &str) -> Theme {
        let named = Theme::ALL.into_iter().find(|(theme, _)| theme.name() == name);
        named.map_or(Theme::System, |(theme, _)| theme)
    }

    /// The attribute of the `html` element that selects the theme in the stylesheet.
    pub fn attribute(self) -> &'static str {
        match self {
            Theme::System => "",
            Theme::Light => " data-theme=\"light\"",
            Theme::Dark => " data-theme=\"dark\"",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_theme_is_the_theme_of_the_system() {
        for (theme, _) in Theme::ALL {
            assert_eq!(Theme::from_name(theme.name()), theme);
        }
        assert_eq!(Theme::from_name("\"><script>"), Theme::System);
    }
}

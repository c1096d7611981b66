//! How pages look, as the user chose in this browser: the color theme and the density of lists.

/// The name of the value under which templates find the [`Appearance`].
pub const APPEARANCE_VALUE: &str = "appearance";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appearance {
    pub theme: Theme,
    pub density: Density,
}

impl Appearance {
    pub const DEFAULT: Appearance =
        Appearance { theme: Theme::System, density: Density::Comfortable };

    /// The attributes of the `html` element that select it in the stylesheet.
    pub fn attributes(self) -> String {
        let density = match self.density {
            Density::Comfortable => "",
            Density::Compact => " data-density=\"compact\"",
        };
        format!("{}{density}", self.theme.attribute())
    }
}

/// The height of the rows of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Density {
    Comfortable,
    Compact,
}

impl Density {
    /// Every density with its label.
    pub const ALL: [(Density, &'static str); 2] =
        [(Density::Comfortable, "Comfortable"), (Density::Compact, "Compact")];

    /// The name in the form and in the cookie.
    pub fn name(self) -> &'static str {
        match self {
            Density::Comfortable => "comfortable",
            Density::Compact => "compact",
        }
    }

    /// The density with this name. Any other name is comfortable.
    pub fn from_name(name: &str) -> Density {
        if name == Density::Compact.name() { Density::Compact } else { Density::Comfortable }
    }
}

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
    fn attribute(self) -> &'static str {
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

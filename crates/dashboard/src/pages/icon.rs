//! The icons of the dashboard: strokes on a grid of 24 by 24 units, in the color of their text.

/// The name and the strokes of every icon.
pub const ICONS: [(&str, &str); 23] = [
    ("overview", "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z"),
    ("servers", "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01"),
    ("patches", "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9"),
    ("cves", "M12 3l8 3v6c0 4.5-3.2 7.6-8 9-4.8-1.4-8-4.5-8-9V6zM12 8v5M12 16h.01"),
    ("batches", "M4 6h10M4 12h10M4 18h10M18 5l3 3-3 3M18 13l3 3-3 3"),
    ("schedules", "M5 6h14v14H5zM5 10h14M9 3v4M15 3v4M12 13v3l2 1"),
    ("activity", "M3 12h4l3-7 4 14 3-7h4"),
    (
        "settings",
        "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.1 2.1M16.3 16.3l2.1 2.1M5.6 18.4l2.1-2.1M16.3 7.7l2.1-2.1",
    ),
    ("search", "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5"),
    ("down", "M6 9l6 6 6-6"),
    ("up", "M6 15l6-6 6 6"),
    ("close", "M6 6l12 12M18 6L6 18"),
    ("download", "M12 4v11M7 11l5 5 5-5M4 20h16"),
    ("plus", "M12 5v14M5 12h14"),
    ("edit", "M4 20h4L19 9l-4-4L4 16zM13 7l4 4"),
    ("refresh", "M20 12a8 8 0 1 1-2.3-5.7M20 4v4h-4"),
    ("warning", "M12 4l9 16H3zM12 10v4M12 17h.01"),
    ("columns", "M4 5h16v14H4zM10 5v14M16 5v14"),
    ("bookmark", "M7 4h10v16l-5-4-5 4z"),
    ("check", "M5 12.5l4.5 4.5L19 7.5"),
    ("clock", "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4l3 2"),
    ("more", "M5 12h.01M12 12h.01M19 12h.01"),
    ("power", "M12 4v8M7.5 6.5a7 7 0 1 0 9 0"),
];

/// An icon as inline SVG, hidden from screen readers: the text beside it says the same.
pub fn icon(name: &str) -> String {
    let strokes = ICONS.iter().find(|(known, _)| *known == name).map_or("", |(_, drawn)| drawn);
    format!(
        "<svg class=\"icon\" viewBox=\"0 0 24 24\" aria-hidden=\"true\"><path d=\"{strokes}\"/></svg>"
    )
}

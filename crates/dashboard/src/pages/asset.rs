//! The static assets of the pages.

use httpkit::Asset;

pub const STYLE: Asset = Asset {
    name: "app.css",
    media_type: "text/css; charset=utf-8",
    text: include_str!("../../assets/app.css"),
};
pub const SCRIPT: Asset = Asset {
    name: "app.js",
    media_type: "text/javascript; charset=utf-8",
    text: include_str!("../../assets/app.js"),
};
pub const ICON: Asset = Asset {
    name: "icon.svg",
    media_type: "image/svg+xml",
    text: include_str!("../../assets/icon.svg"),
};

pub const ALL: [Asset; 3] = [STYLE, SCRIPT, ICON];

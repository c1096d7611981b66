//! The static assets of the pages. Their paths contain a hash of their content, so browsers can
//! cache them indefinitely.

#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub text: &'static str,
}

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

impl Asset {
    pub const ALL: [Asset; 3] = [STYLE, SCRIPT, ICON];

    pub fn path(&self) -> String {
        format!("/assets/{:016x}/{}", self.content_hash(), self.name)
    }

    /// FNV-1a hash of the content. It only has to differ between versions; it protects nothing.
    pub fn content_hash(&self) -> u64 {
        self.text.bytes().fold(0xcbf2_9ce4_8422_2325, |mark, byte| {
            (mark ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

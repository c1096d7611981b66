//! The files beside the pages. Their paths change with their content, so that browsers keep them for ever.

/// A file that pages load.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// What it is called.
    pub name: &'static str,
    /// What it is.
    pub media_type: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// The stylesheet.
pub const STYLE: Asset = Asset {
    name: "app.css",
    media_type: "text/css; charset=utf-8",
    text: include_str!("../../assets/app.css"),
};
/// The script.
pub const SCRIPT: Asset = Asset {
    name: "app.js",
    media_type: "text/javascript; charset=utf-8",
    text: include_str!("../../assets/app.js"),
};
/// The picture in the browser's tab.
pub const ICON: Asset = Asset {
    name: "icon.svg",
    media_type: "image/svg+xml",
    text: include_str!("../../assets/icon.svg"),
};

impl Asset {
    /// All of them.
    pub const ALL: [Asset; 3] = [STYLE, SCRIPT, ICON];

    /// Where it is.
    pub fn path(&self) -> String {
        format!("/assets/{:016x}/{}", self.mark(), self.name)
    }

    /// A number that changes with the content (FNV-1a: it guards nothing, it only differs).
    pub fn mark(&self) -> u64 {
        self.text.bytes().fold(0xcbf2_9ce4_8422_2325, |mark, byte| {
            (mark ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

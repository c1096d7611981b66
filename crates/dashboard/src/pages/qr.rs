//! QR codes as SVG.

use qrcodegen::{QrCode, QrCodeEcc};
use std::fmt::Write as _;

/// Width of the empty border in modules, which scanners need (ISO/IEC 18004).
const QUIET_ZONE: i32 = 4;

/// A QR code with this text as SVG; `None` if the text is too long for one. It is black on white in
/// every theme, because scanners expect dark modules.
pub fn qr_code(text: &str, label: &str) -> Option<String> {
    let code = QrCode::encode_text(text, QrCodeEcc::Medium).ok()?;
    let size = code.size() + 2 * QUIET_ZONE;
    let mut path = String::new();
    for y in 0..code.size() {
        let mut x = 0;
        while x < code.size() {
            let run = (x..code.size()).take_while(|x| code.get_module(*x, y)).count() as i32;
            if run > 0 {
                let _ = write!(path, "M{} {}h{run}v1h-{run}z", x + QUIET_ZONE, y + QUIET_ZONE);
            }
            x += run.max(1);
        }
    }
    let label = super::escape(label);
    Some(format!(
        "<svg class=\"qr\" viewBox=\"0 0 {size} {size}\" role=\"img\" aria-label=\"{label}\" shape-rendering=\"crispEdges\">\
         <rect width=\"{size}\" height=\"{size}\" fill=\"#fff\"/><path d=\"{path}\" fill=\"#000\"/></svg>"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modules that the path of the SVG fills.
    fn modules(svg: &str) -> Vec<Vec<bool>> {
        let size: usize =
            svg.split("viewBox=\"0 0 ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let mut filled = vec![vec![false; size]; size];
        let path = svg.split("path d=\"").nth(1).unwrap().split('"').next().unwrap();
        for run in path.split('M').skip(1) {
            let (at, rest) = run.split_once('h').unwrap();
            let (x, y) = at.split_once(' ').unwrap();
            let (x, y): (usize, usize) = (x.parse().unwrap(), y.parse().unwrap());
            let length: usize = rest.split('v').next().unwrap().parse().unwrap();
            filled[y][x..x + length].fill(true);
        }
        filled
    }

    #[test]
    fn every_module_is_drawn_inside_a_quiet_zone() {
        let text =
            "otpauth://totp/Fleetmend:ann?issuer=Fleetmend&secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
        let code = QrCode::encode_text(text, QrCodeEcc::Medium).unwrap();
        let drawn = modules(&qr_code(text, "QR code").unwrap());
        let border = QUIET_ZONE as usize;
        for (y, row) in drawn.iter().enumerate() {
            for (x, is_dark) in row.iter().enumerate() {
                // Outside the code, `get_module` is light.
                let (x, y) = (x as i32 - QUIET_ZONE, y as i32 - QUIET_ZONE);
                assert_eq!(*is_dark, code.get_module(x, y), "{x} {y}");
            }
        }
        assert_eq!(drawn.len(), code.size() as usize + 2 * border);
    }

    #[test]
    fn label_is_escaped_and_long_text_has_no_code() {
        assert!(qr_code("x", "\"><b>").unwrap().contains("aria-label=\"&quot;&gt;&lt;b&gt;\""));
        assert_eq!(qr_code(&"x".repeat(5_000), ""), None);
    }
}

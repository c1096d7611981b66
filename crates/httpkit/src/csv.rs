//! Renders tables as CSV.
//!
//! Not the `csv` crate: it quotes only what RFC 4180 requires. Spreadsheets also split cells at `;`
//! and tabs, depending on the locale, and a formula could start after one.

/// Renders rows as CSV (RFC 4180). A cell that a spreadsheet would evaluate as a formula gets a
/// leading apostrophe, which marks it as text.
pub fn csv(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = line(head.iter().map(|cell| (*cell).to_owned()).collect());
    for row in rows {
        text += &line(row);
    }
    text
}

/// Renders one row, by the same rules.
pub fn line(cells: Vec<String>) -> String {
    cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(",") + "\r\n"
}

fn cell(text: &str) -> String {
    let formula = text.trim_start().starts_with(['=', '+', '-', '@'])
        || text.starts_with(['\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    match text.contains([',', '"', '\r', '\n', ';', '\t', '\'']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_looks_like_a_formula_is_text() {
        for bad in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "\r=1", "＝1"] {
            let text = csv(&["h"], [vec![bad.to_owned()]]);
            let second = text.split_once("\r\n").unwrap().1;
            assert!(second.trim_start_matches('"').starts_with('\''), "{bad:?}: {second:?}");
        }
        // Some spreadsheets split cells here, so such a cell must be quoted.
        for split in ["x;=1", "x\t=1"] {
            let text = csv(&["h"], [vec![split.to_owned()]]);
            assert_eq!(text, format!("h\r\n\"{split}\"\r\n"));
        }
        assert_eq!(
            csv(&["a", "b"], [vec!["x, \"y\"".into(), "1-2".into()]]),
            "a,b\r\n\"x, \"\"y\"\"\",1-2\r\n"
        );
    }
}

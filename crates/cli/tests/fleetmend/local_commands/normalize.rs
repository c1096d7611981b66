//! Normalizes output for snapshots: replaces values that differ between runs, machines and
//! releases.

use std::path::Path;

use serde_json::Value;

use crate::terminal::strip_escapes;

/// Replaces the paths, numbers and times in the output of a command.
pub(crate) fn normalize_text(text: &str, dir: &Path) -> String {
    let text = text.replace(dir.to_str().unwrap(), "DIR");
    let text = text.replace(env!("CARGO_BIN_EXE_fleetmend"), "fleetmend");
    let mut settled: Vec<String> = Vec::new();
    for line in text.lines() {
        // Of a line that was overwritten, keep the last version.
        let line = strip_escapes(line.rsplit("\x1b[1G\x1b[K").next().unwrap());
        let line = normalize_numbers(&normalize_words(&line)).trim_end().to_owned();
        // Collapse the list of migrations, which grows with releases.
        if !(line.contains("NNNN_NAME") && settled.last() == Some(&line)) {
            settled.push(line);
        }
    }
    settled.iter().map(|line| format!("{line}\n")).collect()
}

/// Normalizes JSON.
pub(crate) fn normalize_json(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| match (name.as_str(), value) {
                    (
                        "bytes" | "size_bytes" | "schema_version" | "from" | "to" | "epoch"
                        | "age_seconds",
                        Value::Number(_),
                    ) => (name, "N".into()),
                    ("sha256" | "blake3" | "checksum", _) => (name, "HASH".into()),
                    (_, value) => (name, normalize_json(value)),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(normalize_json).collect()),
        other => other,
    }
}

/// Normalizes a line word by word and keeps the separators.
fn normalize_words(line: &str) -> String {
    let mut settled = String::new();
    let mut word = String::new();
    for c in line.chars().chain(['\n']) {
        if c.is_whitespace() || "\"'`(),;=".contains(c) {
            settled += &normalize_word(&std::mem::take(&mut word));
            settled.push(c);
        } else {
            word.push(c);
        }
    }
    settled.pop();
    settled
}

fn normalize_word(word: &str) -> String {
    let inner = word.trim_end_matches(['.', ':']);
    let rest = &word[inner.len()..];
    if let Some((before, link)) = inner.split_once("/welcome/") {
        return format!("{}/welcome/LINK{rest}", normalize_word(before)).replace(link, "");
    }
    for scheme in ["http://", "https://", ""] {
        let address = inner.strip_prefix(scheme).and_then(|inner| inner.strip_prefix("127.0.0.1:"));
        let port = address.map(|address| address.split('/').next().unwrap());
        if let Some(port) = port.filter(|port| {
            !["7600", "0", "1", ""].contains(port) && port.bytes().all(|byte| byte.is_ascii_digit())
        }) {
            return word.replacen(&format!(":{port}"), ":PORT", 1);
        }
    }
    let name = match inner.split_once('_') {
        Some((kind @ ("fme" | "fmk"), _)) => format!("{kind}_SECRET"),
        Some((kind, id)) if kind.len() == 3 && id.len() == 26 => format!("{kind}_ID"),
        Some((number, _)) if number.len() == 4 && number.parse::<u16>().is_ok() => {
            "NNNN_NAME".to_owned()
        }
        _ if inner.starts_with("20") && inner.contains('T') && inner.ends_with('Z') => {
            "TIME".to_owned()
        }
        _ if is_key_id(inner) => "KEY_ID".to_owned(),
        _ if is_public_key(inner) => "PUBLIC_KEY".to_owned(),
        _ => return word.to_owned(),
    };
    name + rest
}

/// Whether this is a key ID: 16 hexadecimal digits.
fn is_key_id(word: &str) -> bool {
    word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether this is a public key: 32 bytes in Base64, without the equals sign at its end.
fn is_public_key(word: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    word.len() == 43
        && word.bytes().all(is_digit)
        && word.bytes().any(|byte| byte.is_ascii_uppercase())
        && word.bytes().any(|byte| byte.is_ascii_digit())
}

/// Replaces numbers that differ between machines, runs and releases.
fn normalize_numbers(line: &str) -> String {
    const UNITS: [&str; 9] = ["bytes", "B", "KiB", "MiB", "s", "min", "h", "days", "are"];
    const WORDS_BEFORE_NUMBERS: [&str; 3] = ["schema", "at", "epoch"];
    const PUNCTUATION: [char; 7] = [',', '.', ':', ';', '(', ')', '"'];
    let words: Vec<&str> = line.split(' ').map(|word| word.trim_matches(PUNCTUATION)).collect();
    let settled = line.split(' ').enumerate().map(|(nth, word)| {
        let number = words[nth];
        let next = words.get(nth + 1).copied().unwrap_or_default();
        let before = nth.checked_sub(1).map_or("", |before| words[before]);
        let up_to = before == "to" && nth > 1 && words[nth - 2] == "up";
        let meant = up_to || UNITS.contains(&next) || WORDS_BEFORE_NUMBERS.contains(&before);
        match meant && number.parse::<u64>().is_ok() {
            true => word.replacen(number, "N", 1),
            false => word.to_owned(),
        }
    });
    let mut line = settled.collect::<Vec<_>>().join(" ");
    for unit in ["s", "min", "h", "days"] {
        line = line.replace(&format!("N {unit} ago"), "WHEN");
        line = line.replace(&format!("in N {unit}"), "WHEN");
    }
    // In a list of keys, the width of the age column varies.
    if line.contains("KEY_ID") {
        line = line.replace("  now  ", "  WHEN  ");
        if let Some((before, after)) = line.split_once("WHEN") {
            line = format!("{before}WHEN  {}", after.trim_start());
        }
    }
    match line.strip_suffix("  now") {
        Some(line) => format!("{line}  WHEN"),
        None => line,
    }
}

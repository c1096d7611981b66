use super::*;

fn terminal(width: usize) -> Screen {
    Screen { width: Some(width), height: 24, color: false, now: at("2026-11-15T12:00:00Z") }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const COLUMNS: [Column; 4] = [
    truncated_column("NAME"),
    full_column("STATE"),
    full_column("UPDATES").align_right(),
    optional_column("KERNEL"),
];

fn rows() -> Vec<Vec<Cell>> {
    let row = |name: &str, updates: u32| {
        vec![name.into(), Cell::new("online", Tone::Good), updates.into(), "6.1.0-26-amd64".into()]
    };
    vec![row("web-1.example.internal", 12), row("db-1", 0)]
}

#[test]
fn tables_fit_any_terminal_width() {
    let wide = "\
NAME                    STATE   UPDATES  KERNEL
web-1.example.internal  online       12  6.1.0-26-amd64
db-1                    online        0  6.1.0-26-amd64
";
    assert_eq!(terminal(80).table(&COLUMNS, &rows()), wide);
    let narrow = "\
NAME             STATE   UPDATES
web-1.example.…  online       12
db-1             online        0
";
    assert_eq!(terminal(32).table(&COLUMNS, &rows()), narrow);
    for width in 10..120 {
        for line in terminal(width).table(&COLUMNS, &rows()).lines() {
            assert!(line.width() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn piped_output_is_complete_and_uncolored() {
    let pipe = Screen { width: None, ..terminal(0) };
    let text = pipe.table(&COLUMNS, &rows());
    assert_eq!(text.lines().next(), Some("NAME\tSTATE\tUPDATES\tKERNEL"));
    assert_eq!(text.lines().nth(1), Some("web-1.example.internal\tonline\t12\t6.1.0-26-amd64"));
    assert_eq!(pipe.time(at("2026-11-15T11:00:00.5Z")), Cell::from("2026-11-15T11:00:00Z"));
}

#[test]
fn color_does_not_change_the_width() {
    let colourful = Screen { color: true, ..terminal(40) };
    let text = crate::output::render_for_terminal(&colourful.table(&COLUMNS, &rows()));
    assert!(text.contains("\x1b[32monline\x1b[0m"), "{text:?}");
    let mut bare = text.clone();
    for code in ["\x1b[1m", "\x1b[32m", "\x1b[0m"] {
        bare = bare.replace(code, "");
    }
    assert_eq!(bare, terminal(40).table(&COLUMNS, &rows()));
}

/// Users can give a schedule any name.
#[test]
fn names_cannot_control_the_terminal() {
    let text = terminal(80).table(&[full_column("NAME")], &[vec!["a\x1b[2Jb\nc".into()]]);
    assert_eq!(text, "NAME\na\\x1b[2Jb c\n");
}

#[test]
fn wide_characters_count_twice() {
    let text = terminal(20).table(
        &[truncated_column("NAME"), full_column("N")],
        &[vec!["每週更新每週更新每週更新".into(), "1".into()]],
    );
    assert!(text.lines().all(|line| line.width() <= 20), "{text}");
}

#[test]
fn relative_times_are_rounded() {
    let now = at("2026-11-15T12:00:00Z");
    let relative_to_now = |text: &str| relative_time(at(text), now);
    assert_eq!(relative_to_now("2026-11-15T12:00:00Z"), "now");
    assert_eq!(relative_to_now("2026-11-15T11:59:30Z"), "30 s ago");
    assert_eq!(relative_to_now("2026-11-15T10:00:00Z"), "2 h ago");
    assert_eq!(relative_to_now("2026-11-15T12:03:10Z"), "in 3 min");
    assert_eq!(relative_to_now("2026-11-20T12:00:00Z"), "in 5 days");
}

#[test]
fn thousands_are_grouped() {
    let shown = [0, 50, 999, 1_204, 100_000, 1_234_567].map(group_thousands);
    assert_eq!(shown, ["0", "50", "999", "1,204", "100,000", "1,234,567"]);
}

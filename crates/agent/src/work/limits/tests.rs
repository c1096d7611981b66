use super::*;
use crate::work::tests::directory;

fn active_limits(text: &str, local: &str) -> ActiveLimits {
    let limits: Limits = toml::from_str(text).unwrap();
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let now: jiff::civil::DateTime = local.parse().unwrap();
    limits.active_at(
        Path::new("limits.toml"),
        &zone,
        now.to_zoned(zone.clone()).unwrap().timestamp(),
    )
}

#[test]
fn rejection_names_the_file_and_the_key() {
    let frozen = active_limits("frozen = true", "2026-11-15T12:00");
    assert_eq!(frozen.forbids_change().unwrap().as_str(), "limits.toml: `frozen` is set");
    assert_eq!(frozen.forbids_reboot(), frozen.forbids_change());
    let never = active_limits("never_reboot = true", "2026-11-15T12:00");
    assert_eq!(never.forbids_change(), None);
    assert_eq!(never.forbids_reboot().unwrap().as_str(), "limits.toml: `never_reboot` is set");
}

#[test]
fn hours_across_midnight_belong_to_their_start_day() {
    let hours = r#"allowed_hours = [{ days = ["sat"], from = "22:00", to = "05:00" }]"#;
    // 14 November 2026 is a Saturday.
    for (local, open) in [
        ("2026-11-14T21:59", false),
        ("2026-11-14T22:00", true),
        ("2026-11-15T04:59", true),
        ("2026-11-15T05:00", false),
        ("2026-11-15T22:30", false),
        ("2026-11-14T04:00", false),
    ] {
        assert_eq!(active_limits(hours, local).forbids_change().is_none(), open, "{local}");
    }
    let shut = active_limits(hours, "2026-11-15T05:00").forbids_change().unwrap();
    assert_eq!(shut.as_str(), "limits.toml: `allowed_hours` does not include Sun 05:00");
    let day = r#"allowed_hours = [{ from = "00:00", to = "24:00" }]"#;
    assert_eq!(active_limits(day, "2026-11-15T23:59").forbids_change(), None);
    assert!(active_limits("allowed_hours = []", "2026-11-15T12:00").forbids_change().is_some());
}

#[test]
fn invalid_file_is_an_error_with_its_line() {
    let dir = directory("limits");
    let path = dir.join("limits.toml");
    assert_eq!(Limits::read(&path), Ok(Limits::default()));
    for (text, words) in [
        ("frozen = false\nnever_rebot = true\n", "line 2: unknown field `never_rebot`"),
        ("frozen = maybe", "line 1: "),
        ("allowed_hours = [{ from = \"25:00\", to = \"05:00\" }]", "`25:00` is not a time of day"),
        ("exclude = [\"a b\"]", "is not allowed in a pattern"),
    ] {
        std::fs::write(&path, text).unwrap();
        let wrong = Limits::read(&path).unwrap_err();
        assert!(wrong.as_str().contains(words), "{wrong}");
        assert!(wrong.as_str().starts_with(&path.display().to_string()), "{wrong}");
    }
}

#[test]
fn file_writable_by_others_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = directory("limits-owner");
    let path = dir.join("limits.toml");
    std::fs::write(&path, "frozen = false").unwrap();
    for (mode, believed) in [(0o644, true), (0o600, true), (0o664, false), (0o646, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Limits::read(&path).is_ok(), believed, "{mode:o}");
    }
}

#[test]
fn time_zone_is_that_of_the_managed_system() {
    let dir = directory("zone");
    std::fs::create_dir_all(dir.join("etc")).unwrap();
    let root = Root::under(&dir);
    assert_eq!(local_time_zone(&root), TimeZone::UTC);
    std::os::unix::fs::symlink("/usr/share/zoneinfo/Asia/Tokyo", dir.join("etc/localtime"))
        .unwrap();
    assert_eq!(local_time_zone(&root).iana_name(), Some("Asia/Tokyo"));
}

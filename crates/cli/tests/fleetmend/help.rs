//! Help texts, shell completions, man pages, and where the operator commands find their
//! credentials.

use crate::operator_commands::all_commands;
use crate::support::{Dir, Running, first_key, fleetmend};

#[test]
fn every_command_has_help_with_an_example() {
    let commands = all_commands();
    assert!(commands.len() > 50, "{commands:?}");
    for command in commands {
        let mut args: Vec<&str> = command.split(' ').collect();
        args.push("--help");
        let shown = fleetmend(&args).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success() && text.contains("Example"), "{command}: {text}");
        assert!(text.contains(&format!("fleetmend {command}")), "{command}: {text}");
    }
}

#[test]
fn completions_and_man_pages_are_generated() {
    for (shell, part) in
        [("bash", "schedules"), ("zsh", "#compdef fleetmend"), ("fish", "complete")]
    {
        let shown = fleetmend(&["completions", shell]).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success() && text.contains(part), "{shell}");
    }
    let dir = Dir::new();
    let pages = dir.0.join("man1");
    assert!(fleetmend(&["man", pages.to_str().unwrap()]).status().unwrap().success());
    for page in ["fleetmend.1", "fleetmend-servers-patch.1", "fleetmend-dev.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH"), "{page}");
    }
}

/// Flags override environment variables, which override the file; the file written by `dev` comes
/// last.
#[test]
fn credentials_come_from_flags_then_environment_then_file() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let write = |place: &str, key: &str| {
        let place = dir.0.join(place);
        std::fs::create_dir_all(&place).unwrap();
        let text = format!("url = \"{}\"\napi_key = \"{key}\"\n", service.address);
        std::fs::write(place.join("credentials.toml"), text).unwrap();
    };
    let asks = |more: &[(&str, &str)], args: &[&str]| {
        let (config, data) = (dir.0.join("config"), dir.0.join("share"));
        let mut command = fleetmend(&[&["summary"], args].concat());
        command.env("XDG_CONFIG_HOME", config).env("XDG_DATA_HOME", data);
        let output = command.envs(more.iter().copied()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(asks(&[], &[]).0, 2, "there must be no key yet");
    write("share/fleetmend/dev", &key);
    assert_eq!(asks(&[], &[]).0, 0);
    write("config/fleetmend", "fmk_wrong");
    let (code, message) = asks(&[], &[]);
    assert!(code == 1 && message.contains("[401 "), "{message}");
    let known = [("FLEETMEND_API_KEY", key.as_str())];
    assert_eq!(asks(&known, &[]).0, 0);
    assert_eq!(asks(&known, &["--api-key", "fmk_wrong"]).0, 1);
    let file = dir.0.join("share/fleetmend/dev/credentials.toml");
    assert_eq!(asks(&[], &["--credentials", file.to_str().unwrap()]).0, 0);
    let proxy = [("http_proxy", "http://127.0.0.1:1"), ("FLEETMEND_API_KEY", key.as_str())];
    assert_eq!(asks(&proxy, &[]).0, 0, "loopback addresses must not use a proxy");
    let elsewhere = asks(&[("FLEETMEND_URL", "http://127.0.0.1:1")], &[]);
    assert!(
        elsewhere.0 == 2 && elsewhere.1.contains("no API key for http://127.0.0.1:1"),
        "{elsewhere:?}"
    );
}

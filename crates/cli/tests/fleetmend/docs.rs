//! Runs the commands of `docs/postgres.md`. Those of `docs/tutorial.md` are tested with the agent.

use std::path::Path;
use std::process::Command;

use sqlx::postgres::PgConnectOptions;

use crate::database::cluster_url;
use crate::support::{Dir, Running};

/// Every command of the page, in order.
fn commands(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn postgres_page_commands_work_in_order() {
    let Some(cluster) = cluster_url() else { return };
    let options: PgConnectOptions = cluster.parse().unwrap();
    let dir = Dir::new();
    let data = dir.data();
    let mut commands = commands("postgres.md");
    let last = commands.pop().unwrap();
    assert_eq!(last, "fleetmend server --data-dir /var/lib/fleetmend");
    assert!(commands.len() > 5, "{commands:?}");
    let host = cluster.split_once('@').and_then(|(_, rest)| rest.split_once('/')).unwrap().0;
    let script = commands.join("\n");
    let script = script.replace("/var/lib/fleetmend", data.to_str().unwrap());
    let script = script.replace("db.example.org", host);

    let superuser = |script: &str| {
        let programs = Path::new(env!("CARGO_BIN_EXE_fleetmend")).parent().unwrap();
        let host = options.get_socket().map_or(Path::new(options.get_host()), |path| path);
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .env("PGHOST", host)
            .env("PGPORT", options.get_port().to_string())
            .env("PGUSER", options.get_username())
            .env("PGDATABASE", "postgres")
            .output()
            .unwrap()
    };
    // Left behind if an earlier run was interrupted.
    const REMOVE: &str = "dropdb --if-exists --force fleetmend; dropuser --if-exists fleetmend";
    superuser(REMOVE);
    let output = superuser(&script);
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    let service = Running::start(&data, &[]);
    assert!(service.address.starts_with("http://"));
    drop(service);
    assert!(!data.join("fleetmend.db").exists());
    assert!(superuser(REMOVE).status.success());
}

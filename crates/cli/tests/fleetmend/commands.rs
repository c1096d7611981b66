//! Operator commands against a real service with simulated servers.

use reqwest::StatusCode;
use serde_json::{Value, json};
use swarm::Swarm;
use swarm::behavior::Script;
use testkit::mail::MailServer;
use vocab::FailureCode;

use crate::operator::{Operator, POLL_INTERVAL};
use crate::schema::OpenApi;
use crate::support::{Dir, Running, first_key};
use crate::terminal::{Cli, strip_escapes};
use crate::whole_machine::fleet::slow_agents;

/// A running service, six simulated servers, and an operator.
pub(crate) struct World {
    dir: Dir,
    service: Running,
    pub(crate) operator: Operator,
    pub(crate) cli: Cli,
    pub(crate) fleet: Swarm,
    _mail: MailServer,
}

pub(crate) async fn world() -> World {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    // Receivers of webhooks run on this host, too.
    let mail = MailServer::start(&dir.data(), None);
    let (smtp, public) = (mail.url(), "https://fleet.example");
    let args = ["--webhook-allow-local", "--smtp", &smtp, "--public-url", public];
    let service = Running::start(&dir.data(), &args);
    let operator = Operator::new(&service.address, &key);
    let fleet = operator.fleet(6, slow_agents).await;
    for agent in 0..6 {
        fleet.script(agent, Script::Succeed);
    }
    let cli = Cli { url: service.address.clone(), key };
    // Patches are counted about a second after the scans: wait until every update of every server
    // is included.
    let mut counted = false;
    while !counted {
        tokio::time::sleep(POLL_INTERVAL).await;
        let count = |rows: &[Value], field: fn(&Value) -> &Value| -> u64 {
            rows.iter().filter_map(|row| field(row).as_u64()).sum()
        };
        let servers = operator.all("/v1/servers").await;
        let patches = operator.all("/v1/patches").await;
        let scanned = servers.iter().filter(|row| row["summary"]["packages"] != 0).count();
        let updates = count(&servers, |row| &row["summary"]["updates"]);
        let affected = count(&patches, |row| &row["affected_servers"]);
        // CVEs are matched in the background, too.
        let matched = operator.get("/v1/summary").await["assessment"]["not_scanned"] == 0;
        counted = scanned == 6 && updates > 0 && updates == affected && matched;
    }
    World { dir, service, operator, cli, fleet, _mail: mail }
}

impl World {
    async fn servers(&self) -> Vec<(String, String)> {
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let rows = self.operator.all("/v1/servers").await;
        rows.iter().map(|row| (text(row, "hostname"), text(row, "id"))).collect()
    }
}

async fn body(cli: &Cli, path: &str) -> String {
    let request = reqwest::Client::new().get(format!("{}{path}", cli.url));
    let response = request.bearer_auth(&cli.key).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    response.text().await.unwrap()
}

/// With `--json`, the output is exactly the response body.
#[tokio::test(flavor = "multi_thread")]
async fn json_flag_prints_the_api_response_unchanged() {
    let world = world().await;
    let servers = world.servers().await;
    let ((hostname, id), (_, other)) = (servers[0].clone(), servers[1].clone());
    world.cli.run_ok(&[
        "schedules",
        "create",
        "--name",
        "Nightly",
        "--cron",
        "@daily",
        "--all",
        "--security-only",
    ]);
    let order = ["servers", "patch", &hostname, "--all-updates", "--yes", "--watch", "--json"];
    let ended: Value = serde_json::from_str(&world.cli.run_ok(&order)).unwrap();
    assert_eq!(ended["state"], "succeeded");
    let batch = ended["id"].as_str().unwrap();
    let World { fleet, operator, cli, dir: _dir, service: _service, _mail } = world;
    fleet.stop().await;
    // A package that another server still has pending.
    let pending = operator.get(&format!("/v1/patches?server_id={other}")).await;
    let package = pending["data"][0]["package_name"].clone();
    let package = package.as_str().unwrap();
    let cases: [(&[&str], String); 20] = [
        (&["summary"], "/v1/summary".into()),
        (&["servers", "list"], "/v1/servers".into()),
        (
            &["servers", "list", "--limit", "2", "--offset", "3"],
            "/v1/servers?limit=2&offset=3".into(),
        ),
        (
            &["servers", "list", "--status", "online", "--sort", "newest"],
            "/v1/servers?status=online&sort=newest".into(),
        ),
        (&["servers", "show", &hostname], format!("/v1/servers/{id}")),
        (
            &["patches", "list", "--severity", "high,unknown"],
            "/v1/patches?severity=high%2Cunknown".into(),
        ),
        (&["patches", "show", package], format!("/v1/patches/{package}")),
        (&["explain", &other, package], format!("/v1/servers/{other}/updates/{package}")),
        (&["cves", "list"], "/v1/cves".into()),
        (&["cves", "list", "--suppressed"], "/v1/cves?suppressed=true".into()),
        (&["suppressions", "list"], "/v1/suppressions".into()),
        (&["batches", "list", "--state", "succeeded"], "/v1/batches?state=succeeded".into()),
        (&["batches", "show", batch], format!("/v1/batches/{batch}")),
        (&["schedules", "list"], "/v1/schedules".into()),
        (&["freezes", "list"], "/v1/freezes".into()),
        (&["policies", "list"], "/v1/policies".into()),
        (&["compliance", "show"], "/v1/compliance".into()),
        (&["compliance", "server", &hostname], format!("/v1/servers/{id}/compliance")),
        (&["tokens", "list"], "/v1/enrollment-tokens".into()),
        (&["keys", "list"], "/v1/api-keys".into()),
    ];
    let description = OpenApi::load();
    let described = |path: &str| {
        let path = path.split('?').next().unwrap();
        let named = [
            (&*id, "{server_id}"),
            (&*other, "{server_id}"),
            (batch, "{batch_id}"),
            (package, "{package_name}"),
        ];
        named.iter().fold(path.to_owned(), |path, (word, name)| path.replace(word, name))
    };
    for (args, path) in cases {
        // Values that change on their own, such as a key's last use: read until they are stable.
        let (mut before, mut printed) = (String::new(), String::new());
        let mut after = body(&cli, &path).await;
        while before != after {
            before = after;
            printed = cli.run_ok(&[args, &["--json"]].concat());
            after = body(&cli, &path).await;
        }
        assert_eq!(printed, format!("{after}\n"), "{args:?}");
        let printed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(description.violations(&described(&path), &printed), [""; 0], "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_fit_the_terminal_and_are_complete_in_a_pipe() {
    let world = world().await;
    let piped = world.cli.run_ok(&["servers", "list"]);
    let lines: Vec<Vec<&str>> = piped.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 7);
    assert_eq!(
        lines[0],
        [
            "NAME",
            "STATUS",
            "ENVIRONMENT",
            "OS",
            "UPDATES",
            "SECURITY",
            "ASSESSMENT",
            "REBOOT",
            "SEEN",
            "ID"
        ]
    );
    let servers = world.servers().await;
    for (line, (hostname, id)) in lines[1..].iter().zip(&servers) {
        assert_eq!((line[0], line[9]), (hostname.as_str(), id.as_str()));
        assert!(line[8].ends_with('Z'), "{line:?}");
    }
    assert!(!piped.contains('\x1b'));
    for width in [40, 64, 80, 132] {
        let output = world.cli.run_on_terminal(width, &["servers", "list"], "");
        assert_eq!(output.code, 0);
        assert!(output.out.contains("\x1b[32monline\x1b[0m"), "{}", output.out);
        let shown = strip_escapes(&output.out);
        assert_eq!(shown.lines().count(), 7);
        for line in shown.lines() {
            assert!(line.chars().count() <= usize::from(width), "{width}: {line}");
        }
    }
    for more in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let output = world.cli.run_on_terminal_with(80, &["servers", "list"], "", &[more]);
        assert!(!output.out.contains('\x1b'), "{more:?}: {}", output.out);
    }
    let three = world.cli.run_on_terminal(80, &["servers", "list", "--limit", "3"], "").out;
    assert!(
        strip_escapes(&three).ends_with("\nShowing 3 of 6 servers; use --all or --limit.\n"),
        "{three}"
    );
}

/// One API page is 50 rows by default and 500 at most: a list of 503 needs two of the largest.
#[tokio::test(flavor = "multi_thread")]
async fn lists_say_when_they_are_cut_and_all_prints_every_row() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let operator = Operator::new(&service.address, &key);
    let cli = Cli { url: service.address.clone(), key };
    let empty: Value =
        serde_json::from_str(&cli.run_ok(&["tokens", "list", "--json", "--all"])).unwrap();
    assert_eq!(empty, json!({"data": [], "meta": {"total": 0, "limit": 0, "offset": 0}}));
    for number in 0..503 {
        operator.post("/v1/enrollment-tokens", json!({"name": format!("token {number}")})).await;
    }

    let page = cli.run_piped(&["tokens", "list", "--json"]);
    assert_eq!(
        (page.code, page.err.as_str()),
        (0, "Showing 50 of 503 tokens; use --all or --limit.\n")
    );
    let few = cli.run_piped(&["tokens", "list", "--limit", "3"]);
    assert_eq!((few.code, few.out.lines().count()), (0, 4));
    assert_eq!(few.err, "Showing 3 of 503 tokens; use --all or --limit.\n");
    let end = cli.run_piped(&["tokens", "list", "--json", "--offset", "460"]);
    assert_eq!((end.code, end.err.as_str()), (0, ""));

    let all = cli.run_piped(&["tokens", "list", "--json", "--all"]);
    assert_eq!((all.code, all.err.as_str()), (0, ""));
    let all: Value = serde_json::from_str(&all.out).unwrap();
    assert_eq!(all["data"].as_array().unwrap(), &operator.all("/v1/enrollment-tokens").await);
    assert_eq!(all["meta"], json!({"total": 503, "limit": 503, "offset": 0}));
    let rest = cli.run_ok(&["tokens", "list", "--json", "--all", "--offset", "2"]);
    let rest: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(rest["data"].as_array().unwrap()[..], all["data"].as_array().unwrap()[2..]);
    let table = cli.run_piped(&["tokens", "list", "--all"]);
    assert_eq!((table.out.lines().count(), table.err.as_str()), (504, ""));
    assert_eq!(cli.run_piped(&["tokens", "list", "--all", "--limit", "3"]).code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn patching_shows_a_preview_and_asks_first() {
    let world = world().await;
    let (hostname, _) = world.servers().await[0].clone();
    let order = ["servers", "patch", &hostname, "--all-updates", "--reboot", "if_required"];
    let refused = world.cli.run_on_terminal(100, &order, "n\n");
    assert_eq!(refused.code, 1, "{}", refused.out);
    let shown = strip_escapes(&refused.out);
    for part in [
        "SERVER",
        &hostname,
        "if required",
        "PACKAGE",
        "Patch 1 server? [y/N]",
        "nothing was changed",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let unasked = world.cli.run_piped(&order);
    assert_eq!(unasked.code, 2);
    assert!(unasked.err.contains("--yes"), "{}", unasked.err);
    assert_eq!(
        world.operator.get("/v1/batches").await["meta"]["total"],
        0,
        "nothing must have started"
    );

    let agreed = world.cli.run_on_terminal(100, &[&order[..], &["--watch"]].concat(), "y\n");
    assert_eq!(agreed.code, 0, "{}", agreed.out);
    let shown = strip_escapes(&agreed.out);
    assert!(shown.contains('%') && shown.contains("succeeded"), "{shown}");
    assert_eq!(world.operator.get("/v1/batches").await["meta"]["total"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_is_reported_and_fails_the_command() {
    let world = world().await;
    world.fleet.script(2, Script::FailWith(FailureCode::DiskFull));
    let ids: Vec<String> =
        (0..4).map(|agent| world.fleet.server_id(agent).unwrap().to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let order = [&["batches", "create", "--all-updates", "--yes", "--watch"], &ids[..]].concat();
    let output = world.cli.run_piped(&order);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains(": failed: disk_full"), "{}", output.err);
    assert!(
        output.err.contains("the batch ended in state completed_with_errors"),
        "{}",
        output.err
    );
    assert!(output.out.contains("4, 100% done, 3 succeeded, 1 failed"), "{}", output.out);
    let batch = output.out.lines().next().unwrap().split('\t').nth(1).unwrap().to_owned();

    world.fleet.script(2, Script::Succeed);
    let again = world.cli.run_piped(&["batches", "retry", &batch, "--yes", "--watch"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.out.contains("1, 100% done"), "{}", again.out);
    let listed = world.cli.run_ok(&["batches", "list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
}

/// Watching ends when a batch halts and needs a decision: a script must not wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn watching_a_halted_batch_ends_with_advice() {
    let world = world().await;
    for agent in 0..6 {
        world.fleet.script(agent, Script::FailWith(FailureCode::RepoUnreachable));
    }
    let order =
        ["batches", "create", "--all", "--all-updates", "--canary", "1", "--yes", "--watch"];
    let output = world.cli.run_piped(&order);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains(": failed: repo_unreachable"), "{}", output.err);
    assert!(
        output.err.contains("the batch halted: `fleetmend batches resume bat_"),
        "{}",
        output.err
    );
    assert!(
        output.out.contains("state\thalted") && output.out.contains("5 waiting"),
        "{}",
        output.out
    );
    let batch = output.out.lines().next().unwrap().split('\t').nth(1).unwrap().to_owned();
    assert!(world.cli.run_ok(&["batches", "cancel", &batch]).contains("state\tcancel"));
    let ended = world.cli.run_piped(&["batches", "watch", &batch]);
    assert!(ended.code == 1 && ended.err.contains("ended in state canceled"), "{}", ended.err);
}

/// One server at a time, so that one is always waiting.
#[tokio::test(flavor = "multi_thread")]
async fn batch_can_be_paused_resumed_and_its_log_read() {
    let world = world().await;
    let order =
        ["batches", "create", "--all", "--all-updates", "--max-parallel", "1", "--yes", "--json"];
    let batch: Value = serde_json::from_str(&world.cli.run_ok(&order)).unwrap();
    let id = batch["id"].as_str().unwrap();
    let paused = world.cli.run_ok(&["batches", "pause", id]);
    assert!(paused.contains("state\tpaused"), "{paused}");
    let again: Value =
        serde_json::from_str(&world.cli.run_ok(&["batches", "pause", id, "--json"])).unwrap();
    assert_eq!(again["state"], "paused");
    let resumed = world.cli.run_ok(&["batches", "resume", id]);
    assert!(resumed.contains("state\trunning"), "{resumed}");
    world.cli.run_ok(&["batches", "watch", id]);
    let refused = world.cli.run_piped(&["batches", "resume", id]);
    assert!(refused.code == 1 && refused.err.contains("[409 batch_state]"), "{}", refused.err);
    let (hostname, _) = world.servers().await[0].clone();
    let log = world.cli.run_ok(&["batches", "log", id, &hostname]);
    assert!(log.lines().count() > 1, "{log}");
    let unknown = world.cli.run_piped(&["batches", "log", id, "unknown"]);
    assert_eq!(unknown.code, 1, "{}", unknown.err);
}

/// A copy of a host syncs under the same identity. An operator releases the server, and it receives
/// orders again.
#[tokio::test(flavor = "multi_thread")]
async fn quarantined_server_is_released_by_name() {
    let World { fleet, operator, cli, dir, service, _mail } = world().await;
    let hostname = operator.all("/v1/servers").await[0]["hostname"].as_str().unwrap().to_owned();
    let early = cli.run_piped(&["servers", "release", &hostname]);
    assert!(early.code == 1 && early.err.contains("not in quarantine"), "{}", early.err);
    // All agents stop. Their state of a moment ago is what a restored snapshot of the host would
    // have.
    let file = dir.0.join("fleet");
    fleet.stop().await.write(&file).unwrap();
    let older = || swarm::SavedAgents::read(&file).unwrap().unwrap();
    let start = async |saved| {
        let token = operator.post("/v1/enrollment-tokens", json!({"name": "copies"})).await;
        let token = token["token"].as_str().unwrap().parse().unwrap();
        let config = slow_agents(swarm::Config::new(&service.address, token, 6));
        Swarm::start(swarm::Config { saved: Some(saved), ..config }).unwrap()
    };
    let real = start(older()).await;
    while real.counts().syncs < 60 {
        for server in operator.all("/v1/servers").await {
            let path = format!("/v1/servers/{}/refresh", server["id"].as_str().unwrap());
            operator.post(&path, json!({})).await;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let copy = start(older()).await;
    let quarantined = async || -> Vec<String> {
        let servers = operator.all("/v1/servers").await;
        let found = servers.iter().filter(|server| !server["quarantine"].is_null());
        found.map(|server| server["hostname"].as_str().unwrap().to_owned()).collect()
    };
    let found = loop {
        let found = quarantined().await;
        if found.len() > 1 {
            break found;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    copy.stop().await;
    let released = cli.run_ok(&["servers", "release", &found[0]]);
    assert!(released.contains("receives orders again"), "{released}");
    let released = cli.run_ok(&["servers", "release", &found[1], "--json"]);
    let released: Value = serde_json::from_str(&released).unwrap();
    let path = "/v1/servers/{server_id}/release";
    let wrong = OpenApi::load().response_violations("post", path, "200", &released);
    assert_eq!((&released["quarantine"], wrong), (&Value::Null, vec![]));
    real.stop().await;
}

/// The service is killed while a command watches a batch, and restarted a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn watching_continues_after_a_service_restart() {
    let mut world = world().await;
    let (url, key) = (world.cli.url.clone(), world.cli.key.clone());
    let watcher = Cli { url: url.clone(), key };
    let order = json!({"server_ids": (0..6).map(|agent| world.fleet.server_id(agent)).collect::<Vec<_>>(),
        "packages": [], "max_parallel": 1});
    let batch = world.operator.post("/v1/batches", order).await["id"].as_str().unwrap().to_owned();
    let watched = batch.clone();
    let watching =
        tokio::task::spawn_blocking(move || watcher.run_piped(&["batches", "watch", &watched]));
    world.operator.until(&batch, |seen| seen["progress"]["succeeded"].as_u64() >= Some(1)).await;
    world.service.child.kill().unwrap();
    world.service.child.wait().unwrap();
    let listen = url.strip_prefix("http://").unwrap();
    let _again = Running::at(listen, &world.dir.data(), &[]);
    let output = watching.await.unwrap();
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(output.out.contains("6, 100% done, 6 succeeded"), "{}", output.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_without_servers_needs_confirmation_and_its_run_fails() {
    let world = world().await;
    let cli = &world.cli;
    let create = |name: &'static str, environment: &'static str| {
        let args = ["schedules", "create", "--cron", "@daily", "--security-only", "--environment"];
        [&args[..], &[environment, "--name", name]].concat()
    };
    let reported = "No server has the environment \"prodction\". Did you mean \"production\"?";
    let refused = cli.run_piped(&create("Piped", "prodction"));
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    for part in [reported, "[no_servers_match]", "--allow-empty"] {
        assert!(refused.err.contains(part), "no `{part}` in {}", refused.err);
    }
    let no = cli.run_on_terminal(200, &create("Typed", "prodction"), "n\n");
    assert_eq!(no.code, 1, "{}", no.out);
    assert!(no.out.contains(reported) && no.out.contains("Create it anyway? [y/N]"), "{}", no.out);
    assert_eq!(cli.run_ok(&["schedules", "list"]).lines().count(), 1, "nothing was created");
    let yes = cli.run_on_terminal(200, &create("Typed", "prodction"), "y\n");
    assert_eq!(yes.code, 0, "{}", yes.out);
    assert!(yes.out.contains("Runs are skipped until a server matches."), "{}", yes.out);
    let allowed = [&create("Piped", "prodction")[..], &["--allow-empty", "--json"]].concat();
    let made: Value = serde_json::from_str(&cli.run_ok(&allowed)).unwrap();
    assert!(made["warnings"][0].as_str().unwrap().starts_with(reported), "{made}");

    let ran = cli.run_piped(&["schedules", "run", "Piped", "--yes"]);
    let why = "Skipped: no server matches the schedule's targets.";
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
    assert!(ran.err.contains(why), "{}", ran.err);
    let ran = cli.run_piped(&["schedules", "run", "Piped", "--yes", "--watch", "--json"]);
    let run: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &run["skip_reason"], &run["batch_id"]),
        (1, &json!("no_servers"), &Value::Null)
    );
    let runs = cli.run_ok(&["schedules", "runs", "Piped"]);
    assert!(runs.contains("\tskipped (no servers)\tmanual\t"), "{runs}");

    let update = ["schedules", "update", "Piped", "--environment"];
    let refused = cli.run_piped(&[&update[..], &["prod"]].concat());
    assert!(refused.code == 1 && refused.err.contains("--allow-empty"), "{}", refused.err);
    cli.run_ok(&[&update[..], &["production"]].concat());
    let shown = cli.run_ok(&["schedules", "show", "Piped"]);
    assert!(!shown.contains("Warning"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_is_created_updated_run_and_deleted_by_name() {
    let world = world().await;
    let cli = &world.cli;
    let created = cli.run_ok(&[
        "schedules",
        "create",
        "--name",
        "Weekly",
        "--cron",
        "0 3 * * sun",
        "--timezone",
        "Europe/Berlin",
        "--all",
        "--security-only",
        "--reboot",
        "if_required",
        "--stagger-minutes",
        "5",
        "--canary",
        "10%",
        "--json",
    ]);
    let created: Value = serde_json::from_str(&created).unwrap();
    cli.run_ok(&["schedules", "update", "Weekly", "--stagger-minutes", "0", "--canary", "0"]);
    let seen: Value =
        serde_json::from_str(&cli.run_ok(&["schedules", "show", "weekly", "--json"])).unwrap();
    let changed = json!({"stagger_minutes": 0, "canary": 0});
    let mut expected = created["options"].clone();
    expected.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    assert_eq!(seen["options"], expected, "only the given options may change");
    assert_eq!((&seen["cron"], &seen["timezone"]), (&created["cron"], &created["timezone"]));

    let ran = cli.run_piped(&["schedules", "run", "Weekly", "--yes", "--watch"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("6, 100% done"), "{}", ran.out);
    let runs = cli.run_ok(&["schedules", "runs", "Weekly"]);
    assert!(runs.contains("\tsucceeded\tmanual\t6\t0\t"), "{runs}");
    assert_eq!(cli.run_piped(&["schedules", "delete", "Weekly"]).code, 2);
    cli.run_ok(&["schedules", "delete", "Weekly", "--yes"]);
    assert_eq!(cli.run_ok(&["schedules", "list"]).lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_tokens_are_shown_once_and_can_be_revoked() {
    let world = world().await;
    let cli = &world.cli;
    let viewer = cli.run_ok(&["keys", "create", "--name", "looks", "--role", "viewer"]);
    let viewer = Cli { url: cli.url.clone(), key: viewer.trim().to_owned() };
    viewer.run_ok(&["servers", "list"]);
    let refused = viewer.run_piped(&["keys", "list"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("[403 ") && refused.err.contains("request "), "{}", refused.err);
    cli.run_ok(&["keys", "revoke", "looks", "--yes"]);
    let ended = viewer.run_piped(&["servers", "list"]);
    assert!(ended.code == 1 && ended.err.contains("[401 "), "{}", ended.err);

    let token = cli.run_ok(&[
        "tokens",
        "create",
        "--name",
        "web",
        "--environment",
        "production",
        "--max-uses",
        "1",
    ]);
    assert!(token.starts_with("fme_") && token.lines().count() == 1, "{token}");
    assert!(cli.run_ok(&["tokens", "list"]).contains("web\tvalid\t0/1\tproduction"));
    cli.run_ok(&["tokens", "revoke", "web", "--yes"]);
    assert!(cli.run_ok(&["tokens", "list"]).contains("web\trevoked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_is_suppressed_with_a_reason_and_unsuppressed() {
    let world = world().await;
    let cli = &world.cli;
    let suppression = ["suppressions", "create", "CVE-2023-45853", "--package", "zlib"];
    let id = cli.run_ok(&[&suppression[..], &["--reason", "it is not built"]].concat());
    let id = id.trim();
    assert!(id.starts_with("sup_"), "{id}");
    let listed = cli.run_ok(&["suppressions", "list", "--cve", "CVE-2023-45853"]);
    assert!(listed.contains("CVE-2023-45853\tactive\tzlib\t-\tit is not built"), "{listed}");
    assert_eq!(cli.run_ok(&["suppressions", "list", "--cve", "CVE-1"]).lines().count(), 1);
    let without_reason = cli.run_piped(&suppression);
    assert_eq!(without_reason.code, 2);
    assert_eq!(
        cli.run_piped(&["suppressions", "remove", id]).code,
        2,
        "it asks for confirmation, and there is no terminal"
    );
    cli.run_ok(&["suppressions", "remove", id, "--yes"]);
    assert_eq!(cli.run_ok(&["suppressions", "list"]).lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_failure_has_a_clear_message() {
    let world = world().await;
    let cli = &world.cli;
    let (hostname, _) = world.servers().await[0].clone();
    let fails = |args: &[&str], code: i32, parts: &[&str]| {
        let output = cli.run_piped(args);
        assert_eq!(output.code, code, "{args:?}: {}", output.err);
        assert!(output.out.is_empty(), "{args:?}: {}", output.out);
        for part in parts {
            assert!(output.err.contains(part), "{args:?}: no `{part}` in {}", output.err);
        }
    };
    let mistyped = format!("{hostname}x");
    fails(&["servers", "show", &mistyped], 1, &["no server named"]);
    fails(&["servers", "show", "srv_01jcqk3m8ye0fr5cq0k6s8v2xw"], 1, &["[404 ", "request "]);
    fails(
        &["servers", "list", "--status", "onlin"],
        1,
        &["did you mean `online`?", "[400 ", "request "],
    );
    fails(
        &["schedules", "create", "--name", "x", "--cron", "61 * * * *", "--timezone", "Mars/Base"],
        1,
        &["[422 ", "\n  cron: ", "\n  timezone: ", "\n  targets: ", "\n  request "],
    );
    fails(&["servers", "patch", &hostname, "--yes"], 2, &["--security-only"]);
    fails(&["batches", "create", "--all-updates", "--yes"], 2, &["select servers"]);
    fails(&["batches", "watch", "bat_01jcqk3m8ye0fr5cq0k6s8v2xw"], 1, &["[404 "]);
    fails(&["servers", "list", "--nothing"], 2, &["--nothing"]);
    // Nothing listens on this port.
    let dead = ["--to", "http://127.0.0.1:9/hook", "--type", "*"];
    cli.run_ok(&[&["webhooks", "create", "dead"], &dead[..]].concat());
    fails(&["webhooks", "test", "dead"], 1, &["was not accepted", "cannot connect"]);
    fails(&["webhooks", "show", "dea"], 1, &["did you mean `dead`?"]);
    fails(&["webhooks", "edit", "dead"], 2, &["nothing to change"]);
    fails(&["webhooks", "delete", "dead"], 2, &["--yes"]);
    fails(&["webhooks", "rotate", "dead"], 2, &["--yes"]);
    fails(
        &["webhooks", "create", "x", "--to", "nonsense", "--type", "batch.halt"],
        1,
        &["[422 ", "\n  url: ", "did you mean `batch.halted`?"],
    );

    let unreachable = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = Cli { url: format!("http://{unreachable}"), key: cli.key.clone() };
    let output = unreachable.run_piped(&["servers", "list"]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("is not reachable"), "{}", output.err);
    let keyless = crate::support::fleetmend(&["servers", "list"]).output().unwrap();
    assert_eq!(keyless.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&keyless.stderr).contains("FLEETMEND_API_KEY"));
}

/// Two hosts with the same name: the name identifies neither.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_name_is_rejected_with_the_candidate_ids() {
    let world = world().await;
    let twins = world.operator.fleet(6, slow_agents).await;
    let (hostname, id) = world.servers().await[0].clone();
    let output = world.cli.run_piped(&["servers", "show", &hostname]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("matches 2 servers") && output.err.contains(&id), "{}", output.err);
    world.cli.run_ok(&["servers", "show", &id]);
    world.cli.run_ok(&["servers", "remove", &id, "--yes"]);
    world.cli.run_ok(&["servers", "show", &hostname]);
    twins.stop().await;
}

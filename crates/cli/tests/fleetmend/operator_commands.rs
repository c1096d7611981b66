//! Snapshots of every operator command: on a terminal, in a pipe, and with `--json`, which is
//! checked against the OpenAPI document.
//!
//! Commands that work on the installation itself are in `local_commands`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use swarm::behavior::Script;
use vocab::FailureCode;

use crate::commands::{World, world};
use crate::receiver::Receiver;
use crate::schema::OpenApi;
use crate::support::fleetmend;
use crate::terminal::{Cli, CommandOutput, strip_escapes};

/// Wide enough that no column is omitted or truncated.
const WIDTH: u16 = 240;
const THREE: [&str; 3] = ["one", "two", "three"];
/// Three of the six servers, each with a different operating system.
const SERVERS: [&str; 3] = ["cache-01", "dns-01", "stg-php-01"];

/// The command groups that use the API; `summary`, `explain` and `forecast` are commands without a group.
pub(crate) const GROUPS: [&str; 16] = [
    "audit",
    "servers",
    "patches",
    "cves",
    "suppressions",
    "batches",
    "schedules",
    "freezes",
    "policies",
    "compliance",
    "events",
    "webhooks",
    "notifications",
    "agents",
    "tokens",
    "keys",
];

/// The API operation (method, path, status) whose response a command prints with `--json`.
type Operation = (&'static str, &'static str, &'static str);

/// Runs commands and records their output.
struct SnapshotRecorder<'a> {
    cli: &'a Cli,
    description: OpenApi,
    tried: BTreeSet<String>,
    log: String,
}

impl SnapshotRecorder<'_> {
    /// Runs a read-only command in all three forms.
    fn run_read_only(&mut self, args: &[&str], operation: Operation) -> Value {
        self.run_changing(args, [""; 3], operation)
    }

    /// Runs a command that changes something, each time for another target, which replaces `{}`.
    fn run_changing(&mut self, args: &[&str], to: [&str; 3], operation: Operation) -> Value {
        self.run_on_terminal(args, to[0], "");
        self.run_piped(args, to[1]);
        self.run_json(args, to[2], operation)
    }

    /// Runs a command that asks for confirmation: typed on the terminal, `--yes` elsewhere.
    fn run_confirmed(&mut self, args: &[&str], to: [&str; 3], operation: Operation) -> Value {
        self.run_on_terminal(args, to[0], "y\n");
        let sure = [args, &["--yes"]].concat();
        self.run_piped(&sure, to[1]);
        self.run_json(&sure, to[2], operation)
    }

    /// Like [`SnapshotRecorder::run_confirmed`], but waits for each batch to end before the next
    /// command.
    async fn run_confirmed_batch(
        &mut self,
        args: &[&str],
        to: [&str; 3],
        operation: Operation,
        world: &World,
    ) -> Value {
        self.run_on_terminal(args, to[0], "y\n");
        wait_for_open_batches(world).await;
        let sure = [args, &["--yes"]].concat();
        self.run_piped(&sure, to[1]);
        wait_for_open_batches(world).await;
        let printed = self.run_json(&sure, to[2], operation);
        wait_for_open_batches(world).await;
        printed
    }

    /// Like [`SnapshotRecorder::run_confirmed`], for commands that print nothing with `--json`.
    fn run_without_output(&mut self, args: &[&str], to: [&str; 3]) {
        self.run_on_terminal(args, to[0], "y\n");
        let sure = [args, &["--yes"]].concat();
        self.run_piped(&sure, to[1]);
        let output = self.cli.run_piped(&fill_target(&[&sure[..], &["--json"]].concat(), to[2]));
        assert_eq!((output.code, output.out.as_str()), (0, ""), "{args:?}: {}", output.err);
    }

    fn run_on_terminal(&mut self, args: &[&str], to: &str, keys: &str) {
        let args = fill_target(args, to);
        let output = self.cli.run_on_terminal(WIDTH, &args, keys);
        self.record("on a terminal", &args, &output);
    }

    fn run_piped(&mut self, args: &[&str], to: &str) {
        let args = fill_target(args, to);
        let output = self.cli.run_piped(&args);
        self.record("in a pipe", &args, &output);
    }

    fn run_json(&mut self, args: &[&str], to: &str, (method, path, status): Operation) -> Value {
        let printed = self.cli.run_ok(&[&fill_target(args, to)[..], &["--json"]].concat());
        let printed: Value = serde_json::from_str(&printed).unwrap();
        let wrong = self.description.response_violations(method, path, status, &printed);
        assert_eq!(wrong, [""; 0], "{args:?}");
        printed
    }

    fn record(&mut self, how: &str, args: &[&str], output: &CommandOutput) {
        assert_eq!(output.code, 0, "{args:?}: {}{}", output.out, output.err);
        self.tried.insert(args.iter().take(2).copied().collect::<Vec<_>>().join(" "));
        let settled = |text: &str| normalize(&text.replace(&self.cli.url, "URL"));
        let (command, out) = (settled(&args.join(" ")), settled(&output.out));
        let mut diary = format!("$ fleetmend {} ({how})\n{out}", command.trim_end());
        if !output.err.is_empty() {
            write!(diary, "[stderr]\n{}", settled(&output.err)).unwrap();
        }
        self.log += &(diary + "\n");
    }

    fn take_log(&mut self) -> String {
        std::mem::take(&mut self.log)
    }
}

fn fill_target<'a>(args: &[&'a str], target: &'a str) -> Vec<&'a str> {
    args.iter().map(|arg| if *arg == "{}" { target } else { arg }).collect()
}

/// Replaces values that differ between runs, and collapses column padding.
fn normalize(text: &str) -> String {
    let mut settled = String::new();
    for line in strip_escapes(text).lines() {
        let cells: Vec<String> = line.split('\t').map(normalize_cell).collect();
        // Whether a batch has started, and a server is still waiting, depends on timing.
        let line = cells.join("\t").replace("bat_ID: running for", "bat_ID: scheduled for");
        settled += line.replace(", 1 waiting", "").trim_end();
        settled.push('\n');
    }
    settled
}

fn normalize_cell(text: &str) -> String {
    let is_unit = |word: &String| matches!(word.as_str(), "s" | "min" | "h" | "days");
    let mut words: Vec<String> = text.split(' ').map(normalize_word).collect();
    words.dedup_by(|one, before| one.is_empty() && before.is_empty());
    let mut settled: Vec<String> = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let counts = word.parse::<u64>().is_ok();
        if !counts || words.next_if(is_unit).is_none() {
            settled.push(if word == "now" { "WHEN".to_owned() } else { word });
            continue;
        }
        let ago = words.next_if(|next| next == "ago").is_some();
        let soon = settled.pop_if(|before| before == "in").is_some();
        settled.push(if ago || soon { "WHEN" } else { "SPAN" }.to_owned());
    }
    settled.join(" ")
}

fn normalize_word(word: &str) -> String {
    let inner = word.trim_matches(['(', ')', '`', ':', ',', '.', '?']);
    let name = match inner.split_once('_') {
        Some((kind @ ("fme" | "fmk" | "whsec"), _)) => format!("{kind}_SECRET"),
        Some((kind, rest)) if kind.len() == 3 && rest.len() == 26 => format!("{kind}_ID"),
        _ if is_receiver(inner) => "RECEIVER".to_owned(),
        _ if inner.len() == 20 && inner.ends_with('Z') => "TIME".to_owned(),
        _ => return word.to_owned(),
    };
    word.replace(inner, &name)
}

/// Whether this is the address of a receiver on this host, at whatever port.
fn is_receiver(word: &str) -> bool {
    let port = word.strip_prefix("http://127.0.0.1:").map(|rest| rest.split('/').next());
    port.flatten().is_some_and(|port| port.len() > 3)
}

/// The commands of a group, from its help.
fn commands_of(group: &str) -> Vec<String> {
    let named = commands_in_help(&[group, "--help"]).into_iter();
    named.map(|name| format!("{group} {name}")).collect()
}

/// Every command, from the help.
pub(crate) fn all_commands() -> Vec<String> {
    let groups = commands_in_help(&["--help"]).into_iter();
    let within = |name: String| match commands_of(&name) {
        none if none.is_empty() => vec![name],
        some => some,
    };
    groups.flat_map(within).collect()
}

/// The commands listed in a help text; none if it has no list.
fn commands_in_help(args: &[&str]) -> Vec<String> {
    let shown = fleetmend(args).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let Some((_, listed)) = text.split_once("Commands:\n") else { return Vec::new() };
    let listed = listed.lines().take_while(|line| !line.is_empty());
    let named = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let named = named.filter_map(|line| line.split_whitespace().next());
    named.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_commands_match_snapshots_and_openapi() {
    let world = world().await;
    wait_for_cves(&world).await;
    let description = OpenApi::load();
    let (tried, log) = (BTreeSet::new(), String::new());
    let mut recorder = SnapshotRecorder { cli: &world.cli, description, tried, log };
    pending(&mut recorder);
    insta::assert_snapshot!("pending", recorder.take_log());
    credentials(&mut recorder, &world).await;
    insta::assert_snapshot!("credentials", recorder.take_log());
    agents(&mut recorder);
    insta::assert_snapshot!("agents", recorder.take_log());
    suppressions(&mut recorder);
    insta::assert_snapshot!("suppressions", recorder.take_log());
    webhooks(&mut recorder, &world).await;
    insta::assert_snapshot!("webhooks", recorder.take_log());
    let test = ("post", "/v1/notifications/test", "200");
    recorder.run_read_only(&["notifications", "test", "ann@example.com"], test);
    insta::assert_snapshot!("notifications", recorder.take_log());
    feeds(&mut recorder, &world).await;
    insta::assert_snapshot!("feeds", recorder.take_log());
    batches(&mut recorder, &world).await;
    decisions(&mut recorder, &world).await;
    insta::assert_snapshot!("batches", recorder.take_log());
    schedules(&mut recorder, &world).await;
    insta::assert_snapshot!("schedules", recorder.take_log());
    freezes(&mut recorder);
    insta::assert_snapshot!("freezes", recorder.take_log());
    policies(&mut recorder);
    insta::assert_snapshot!("policies", recorder.take_log());
    servers(&mut recorder, &world).await;
    insta::assert_snapshot!("servers", recorder.take_log());
    audit(&mut recorder);
    insta::assert_snapshot!("audit", normalize_entries(&recorder.take_log()));
    let mut forgotten: Vec<String> = GROUPS.into_iter().flat_map(commands_of).collect();
    assert!(forgotten.len() > 30, "{forgotten:?}");
    forgotten.retain(|command| !recorder.tried.contains(command));
    // The first needs a copied host. What the others print follows the background task. They are
    // tested in `commands`, and reports in `operator::compliance::report`.
    let elsewhere = ["show", "servers", "server", "report", "verify"];
    let elsewhere = elsewhere.map(|command| format!("compliance {command}"));
    let expected: Vec<String> =
        ["servers release".to_owned()].into_iter().chain(elsewhere).collect();
    assert_eq!(forgotten, expected);
}

/// Replaces the numbers, ids and times of audit entries: what the engine does is in the log, too.
fn normalize_entries(log: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    let word = |word: &str| match word {
        _ if word.len() > 20 && word.starts_with("20") && word.ends_with('Z') => "TIME".to_owned(),
        number if number.trim_end_matches('.').parse::<u64>().is_ok() => "N".to_owned(),
        // An id, which a narrow column truncates.
        other => match other.split_once('_') {
            Some((kind, rest)) if kind.len() == 3 && rest.len() > 15 => format!("{kind}_ID"),
            _ => other.to_owned(),
        },
    };
    let mut settled = String::new();
    let mut start = 0;
    for (at, c) in log.char_indices().filter(|(_, c)| !is_word(*c)) {
        settled += &word(&log[start..at]);
        settled.push(c);
        start = at + c.len_utf8();
    }
    settled + &word(&log[start..])
}

fn audit(recorder: &mut SnapshotRecorder<'_>) {
    let list = ["audit", "list", "--action", "suppression.create", "--limit", "2"];
    recorder.run_read_only(&list, ("get", "/v1/audit", "200"));
    let export = ["audit", "export", "--action", "suppression.create"];
    recorder.run_on_terminal(&export, "", "");
    recorder.run_piped(&export, "");
    // The number of entries depends on timing; the text is tested in `audited`.
    let verified = recorder.run_json(&["audit", "verify"], "", ("post", "/v1/audit/verify", "200"));
    assert_eq!(verified["valid"], true, "{verified}");
    recorder.tried.insert("audit verify".to_owned());
}

fn pending(recorder: &mut SnapshotRecorder<'_>) {
    recorder.run_read_only(&["summary"], ("get", "/v1/summary", "200"));
    recorder.run_read_only(&["servers", "list"], ("get", "/v1/servers", "200"));
    recorder.run_read_only(&["patches", "list", "--limit", "3"], ("get", "/v1/patches", "200"));
    recorder
        .run_read_only(&["patches", "show", "ipset"], ("get", "/v1/patches/{package_name}", "200"));
    let listed =
        recorder.run_read_only(&["cves", "list", "--limit", "3"], ("get", "/v1/cves", "200"));
    let first = listed["data"][0]["id"].as_str().unwrap();
    let shown =
        recorder.run_read_only(&["cves", "show", first], ("get", "/v1/cves/{cve_id}", "200"));
    let server = shown["servers"][0]["hostname"].as_str().unwrap();
    recorder.run_read_only(
        &["explain", server, first],
        ("get", "/v1/servers/{server_id}/cves/{cve_id}", "200"),
    );
    let update = ("get", "/v1/servers/{server_id}/updates/{package_name}", "200");
    recorder.run_read_only(&["explain", "cache-01", "ipset"], update);
}

/// The service of this test carries no agent.
fn agents(recorder: &mut SnapshotRecorder<'_>) {
    recorder.run_read_only(&["agents", "status"], ("get", "/v1/agents", "200"));
    let upgrade = ["agents", "upgrade", "--with-tag", "{}"];
    recorder.run_confirmed(&upgrade, ["web"; 3], ("post", "/v1/agents/upgrade", "202"));
}

async fn credentials(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    let token =
        ["tokens", "create", "--environment", "production", "--max-uses", "3", "--name", "{}"];
    recorder.run_changing(&token, THREE, ("post", "/v1/enrollment-tokens", "201"));
    recorder.run_without_output(&["tokens", "revoke", "{}"], THREE);
    recorder.run_read_only(&["tokens", "list"], ("get", "/v1/enrollment-tokens", "200"));
    let used = |seen: &Value| {
        seen["data"].as_array().unwrap().iter().any(|key| !key["last_used_at"].is_null())
    };
    world.operator.until_at("/v1/api-keys", used).await;
    let key = ["keys", "create", "--role", "operator", "--environment", "staging", "--name", "{}"];
    recorder.run_changing(&key, THREE, ("post", "/v1/api-keys", "201"));
    recorder.run_without_output(&["keys", "revoke", "{}"], THREE);
    recorder.run_read_only(&["keys", "list"], ("get", "/v1/api-keys", "200"));
}

fn suppressions(recorder: &mut SnapshotRecorder<'_>) {
    let cves = ["CVE-2023-45853", "CVE-2024-0001", "CVE-2024-0002"];
    let suppression =
        ["suppressions", "create", "{}", "--package", "zlib", "--reason", "it is not built"];
    recorder.run_changing(&suppression, cves, ("post", "/v1/suppressions", "201"));
    let listed =
        recorder.run_read_only(&["suppressions", "list"], ("get", "/v1/suppressions", "200"));
    let ids = listed["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap());
    let ids: Vec<&str> = ids.collect();
    recorder.run_without_output(&["suppressions", "remove", "{}"], ids.try_into().unwrap());
}

async fn webhooks(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    let receiver = Receiver::start().url;
    let create = [
        "webhooks",
        "create",
        "{}",
        "--to",
        &receiver,
        "--type",
        "suppression.created,cve.exploited",
        "--environment",
        "production",
        "--tag",
        "web",
    ];
    recorder.run_changing(&create, THREE, ("post", "/v1/webhooks", "201"));
    let all = world.operator.get("/v1/webhooks").await;
    let ids: Vec<&str> =
        all["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    // Each webhook sends this event.
    let suppression = json!({"cve": "CVE-2023-45853", "reason": "it is not built"});
    world.operator.post("/v1/suppressions", suppression).await;
    let delivered = async || {
        for id in &ids {
            let path = format!("/v1/webhooks/{id}/deliveries?state=delivered");
            world.operator.until_at(&path, |seen| seen["meta"]["total"] == 1).await;
        }
    };
    delivered().await;
    recorder.run_read_only(&["webhooks", "list"], ("get", "/v1/webhooks", "200"));
    let one = ("get", "/v1/webhooks/{webhook_id}", "200");
    recorder.run_read_only(&["webhooks", "show", "one"], one);
    let test = ("post", "/v1/webhooks/{webhook_id}/test", "200");
    recorder.run_read_only(&["webhooks", "test", "one"], test);
    let list = ["webhooks", "deliveries", "one", "--state", "pending,delivered"];
    let log = recorder.run_read_only(&list, ("get", "/v1/webhooks/{webhook_id}/deliveries", "200"));
    let delivery = log["data"][0]["id"].as_str().unwrap();
    let path = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver";
    recorder.run_read_only(&["webhooks", "redeliver", "one", delivery], ("post", path, "202"));
    delivered().await;
    let change = ("patch", "/v1/webhooks/{webhook_id}", "200");
    let edit =
        ["webhooks", "edit", "{}", "--format", "slack", "--type", "batch.*", "--all-servers"];
    recorder.run_changing(&edit, THREE, change);
    recorder.run_changing(&["webhooks", "disable", "{}"], THREE, change);
    recorder.run_changing(&["webhooks", "enable", "{}"], THREE, change);
    let rotate = ("post", "/v1/webhooks/{webhook_id}/rotate", "200");
    recorder.run_confirmed(&["webhooks", "rotate", "{}"], THREE, rotate);
    // With `--json`, these are lines.
    let events = ["events", "tail", "--no-follow", "--after", "0", "--type", "webhook.created"];
    recorder.run_on_terminal(&events, "", "");
    recorder.run_piped(&events, "");
    // How many events there were before depends on timing.
    let created = world.operator.get("/v1/events?type=webhook.created").await;
    for event in created["data"].as_array().unwrap() {
        let number = format!(" {}  ", event["sequence"]);
        recorder.log = recorder.log.replace(&number, " SEQUENCE  ");
    }
    recorder.run_without_output(&["webhooks", "delete", "{}"], THREE);
}

/// `feeds` has commands for the API and commands for the database, which are in `local_commands`.
async fn feeds(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    // Nothing listens on this port: the feeds fail, always with the same error.
    let failed = async |times: u32| {
        let is_failed = |feed: &&Value| THREE.iter().any(|name| feed["name"] == *name);
        let all_failed = |seen: &Value| {
            let mut ours = seen["data"].as_array().unwrap().iter().filter(is_failed);
            ours.clone().count() == 3 && ours.all(|feed| feed["failures"] == times)
        };
        world.operator.until_at("/v1/feeds", all_failed).await;
    };
    let add = ["feeds", "add", "http://127.0.0.1:9/all.zip", "--name", "{}"];
    recorder.run_changing(&add, THREE, ("post", "/v1/feeds", "201"));
    failed(1).await;
    recorder.run_read_only(&["feeds", "status"], ("get", "/v1/feeds", "200"));
    let update = ["feeds", "update", "{}"];
    recorder.run_changing(&update, THREE, ("post", "/v1/feeds/{feed_id}/update", "202"));
    failed(2).await;
    recorder.run_without_output(&["feeds", "remove", "{}"], THREE);
}

/// Waves that someone else started are approved and rejected.
async fn decisions(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    let (_, id) = agent_named(world, "db-01").await;
    let key = json!({"name": "night shift", "role": "operator"});
    let key = world.operator.post("/v1/api-keys", key).await;
    let key = key["api_key"].as_str().unwrap().to_owned();
    for (command, path) in
        [("approve", "/v1/batches/{batch_id}/approve"), ("reject", "/v1/batches/{batch_id}/reject")]
    {
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let body = json!({"server_ids": [id], "packages": [], "waves": [{"approval": true}]});
            let request = reqwest::Client::new()
                .post(format!("{}/v1/batches", world.cli.url))
                .bearer_auth(&key)
                .json(&body);
            let created: Value = request.send().await.unwrap().json().await.unwrap();
            let batch = created["id"].as_str().unwrap().to_owned();
            world.operator.until(&batch, |seen| seen["state"] == "awaiting_approval").await;
            waiting.push(batch);
        }
        let ids: [&str; 3] = std::array::from_fn(|place| waiting[place].as_str());
        let args = ["batches", command, "{}", "--comment", "as agreed"];
        recorder.run_confirmed(&args, ids, ("post", path, "200"));
        wait_for_open_batches(world).await;
    }
}

async fn batches(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    // A server that does not respond stays in its state, and so does its batch.
    for hostname in SERVERS {
        let (agent, _) = agent_named(world, hostname).await;
        world.fleet.script(agent, Script::IgnoreOrders);
    }
    let order = ["batches", "create", "{}", "--security-only", "--name", "Hotfix"];
    let operation = ("post", "/v1/batches", "202");
    recorder.run_confirmed(&order, SERVERS, operation);
    let open = world.operator.all("/v1/batches").await;
    let open: Vec<String> = open.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    let ids: [&str; 3] = std::array::from_fn(|place| open[2 - place].as_str());
    // Wait each time until the tasks are in the state that the next command needs.
    for (settled, command, path) in [
        ("dispatched", "pause", "/v1/batches/{batch_id}/pause"),
        ("waiting", "resume", "/v1/batches/{batch_id}/resume"),
        ("dispatched", "cancel", "/v1/batches/{batch_id}/cancel"),
    ] {
        for id in ids {
            world.operator.until(id, |seen| seen["progress"][settled] == 1).await;
        }
        recorder.run_changing(&["batches", command, "{}"], ids, ("post", path, "200"));
    }
    wait_for_open_batches(world).await;
    let (agent, id) = agent_named(world, "db-01").await;
    world.fleet.script(agent, Script::FailWith(FailureCode::DiskFull));
    let order = json!({"server_ids": [id], "packages": []});
    let failed = world.operator.post("/v1/batches", order).await["id"].as_str().unwrap().to_owned();
    world.operator.until_ended(&failed).await;
    recorder.run_read_only(&["batches", "show", &failed], ("get", "/v1/batches/{batch_id}", "200"));
    for agent in 0..6 {
        world.fleet.script(agent, Script::Succeed);
    }
    let retried = ["batches", "retry", &failed];
    let again = recorder
        .run_confirmed_batch(
            &retried,
            [""; 3],
            ("post", "/v1/batches/{batch_id}/retry", "202"),
            world,
        )
        .await;
    let again = again["id"].as_str().unwrap();
    recorder.run_read_only(&["batches", "watch", again], ("get", "/v1/batches/{batch_id}", "200"));
    recorder.run_read_only(&["batches", "list"], ("get", "/v1/batches", "200"));
    // The log of a batch that had something to install.
    let first = world.operator.all("/v1/batches").await[2]["id"].as_str().unwrap().to_owned();
    recorder.run_on_terminal(&["batches", "log", &first, "db-01"], "", "");
    recorder.run_piped(&["batches", "log", &first, "db-01"], "");
}

async fn schedules(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    let create = ["schedules", "create", "--cron", "0 3 * * sun", "--timezone", "Europe/Berlin"];
    let create =
        [&create[..], &["--server", SERVERS[0], "--security-only", "--name", "{}"]].concat();
    recorder.run_changing(&create, THREE, ("post", "/v1/schedules", "201"));
    let one = "/v1/schedules/{schedule_id}";
    let update = ["schedules", "update", "{}", "--cron", "30 2 1 * *", "--reboot", "if_required"];
    recorder.run_changing(&update, THREE, ("put", one, "200"));
    recorder.run_read_only(&["schedules", "show", "one"], ("get", one, "200"));
    let run = ["schedules", "run", "{}"];
    recorder
        .run_confirmed_batch(&run, THREE, ("post", "/v1/schedules/{schedule_id}/run", "202"), world)
        .await;
    recorder.run_read_only(
        &["schedules", "runs", "one"],
        ("get", "/v1/schedules/{schedule_id}/runs", "200"),
    );
    recorder.run_read_only(&["schedules", "list"], ("get", "/v1/schedules", "200"));
    recorder.run_without_output(&["schedules", "delete", "{}"], THREE);
}

fn freezes(recorder: &mut SnapshotRecorder<'_>) {
    let create = ["freezes", "create", "--reason", "Holidays", "--server", SERVERS[0]];
    let times =
        ["--from", "2098-12-24T00:00:00Z", "--until", "2098-12-27T00:00:00Z", "--name", "{}"];
    let create = [&create[..], &times].concat();
    recorder.run_changing(&create, THREE, ("post", "/v1/freezes", "201"));
    let one = "/v1/freezes/{freeze_id}";
    let update = ["freezes", "update", "{}", "--until", "2098-12-28T00:00:00Z", "--all"];
    recorder.run_changing(&update, THREE, ("put", one, "200"));
    recorder.run_read_only(&["freezes", "show", "one"], ("get", one, "200"));
    recorder.run_read_only(&["freezes", "list"], ("get", "/v1/freezes", "200"));
    recorder.run_without_output(&["freezes", "delete", "{}"], THREE);
}

fn policies(recorder: &mut SnapshotRecorder<'_>) {
    let create = ["policies", "create", "--name", "{}", "--rule", "critical=7", "--rule", "kev=2"];
    let create = [&create[..], &["--server", SERVERS[0]]].concat();
    recorder.run_changing(&create, THREE, ("post", "/v1/policies", "201"));
    let one = "/v1/policies/{policy_id}";
    let update = ["policies", "update", "{}", "--rule", "security=30", "--description", "Baseline"];
    recorder.run_changing(&update, THREE, ("put", one, "200"));
    recorder.run_read_only(&["policies", "show", "one"], ("get", one, "200"));
    recorder.run_read_only(&["policies", "list"], ("get", "/v1/policies", "200"));
    recorder.run_without_output(&["policies", "delete", "{}"], THREE);
}

async fn servers(recorder: &mut SnapshotRecorder<'_>, world: &World) {
    let one = "/v1/servers/{server_id}";
    recorder.run_read_only(&["servers", "show", SERVERS[0]], ("get", one, "200"));
    recorder.run_changing(
        &["servers", "refresh", "{}"],
        SERVERS,
        ("post", "/v1/servers/{server_id}/refresh", "202"),
    );
    recorder.run_changing(
        &["servers", "edit", "{}", "--environment", "staging", "--add-tag", "blue"],
        SERVERS,
        ("patch", one, "200"),
    );
    let order = ["servers", "patch", "{}", "--all-updates"];
    recorder
        .run_confirmed_batch(
            &order,
            SERVERS,
            ("post", "/v1/servers/{server_id}/patch", "202"),
            world,
        )
        .await;
    recorder.run_without_output(&["servers", "remove", "{}"], SERVERS);
}

/// Waits until every CVE fixed by a pending update is listed.
async fn wait_for_cves(world: &World) {
    let patches = world.operator.all("/v1/patches").await;
    let cves = patches.iter().flat_map(|patch| patch["cves"].as_array().unwrap());
    let cves: BTreeSet<&str> = cves.map(|cve| cve.as_str().unwrap()).collect();
    let all = |seen: &Value| seen["meta"]["total"].as_u64() == Some(cves.len() as u64);
    world.operator.until_at("/v1/cves", all).await;
}

async fn wait_for_open_batches(world: &World) {
    for batch in world.operator.all("/v1/batches").await {
        world.operator.until_ended(batch["id"].as_str().unwrap()).await;
    }
}

/// The agent with this hostname, and the ID of its server.
async fn agent_named(world: &World, hostname: &str) -> (usize, String) {
    let servers = world.operator.all("/v1/servers").await;
    let server = servers.iter().find(|server| server["hostname"] == hostname).unwrap();
    let id = server["id"].as_str().unwrap();
    let is_it = |agent: &usize| world.fleet.server_id(*agent).unwrap().to_string() == id;
    ((0..6).find(is_it).unwrap(), id.to_owned())
}

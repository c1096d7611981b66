-- The tables of the first release. Both engines get the same text; placeholders in double braces
-- stand for column types (`src/sql.rs`). Once released, this file is never edited: a change is a
-- new file with the next number.

create table organizations (
    id {{text}} primary key,
    name {{text}} not null,
    created_at {{time}} not null,
    removed_at {{time}},
    generation {{int}} not null
) {{strict}};
create unique index organizations_name on organizations (name) where removed_at is null;

create table api_keys (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    hash {{bytes}} not null,
    role {{text}} not null,
    environments {{text}},
    created_at {{time}} not null,
    created_by {{text}} not null,
    expires_at {{time}},
    revoked_at {{time}},
    last_used_at {{time}},
    generation {{int}} not null,
    -- The root key that the credential was created with.
    root_key_id {{text}}
) {{strict}};
create unique index api_keys_hash on api_keys (hash);
create index api_keys_page on api_keys (org_id, id);

create table enrollment_tokens (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    hash {{bytes}} not null,
    environment {{text}},
    tags {{text}} not null,
    uses {{int}} not null,
    uses_max {{int}},
    created_at {{time}} not null,
    created_by {{text}} not null,
    expires_at {{time}},
    revoked_at {{time}},
    root_key_id {{text}}
) {{strict}};
create unique index enrollment_tokens_hash on enrollment_tokens (hash);
create index enrollment_tokens_page on enrollment_tokens (org_id, id);

create table leases (
    name {{text}} primary key,
    holder {{text}} not null,
    token {{int}} not null,
    until {{time}} not null
) {{strict}};

create table idempotency_keys (
    org_id {{text}} not null,
    idempotency_key {{text}} not null,
    fingerprint {{bytes}} not null,
    locked_until {{time}} not null,
    expires_at {{time}} not null,
    status {{int}},
    headers {{text}},
    body {{bytes}},
    -- The resource that the request changed, written in the same transaction as the change. If the
    -- response is lost in a crash, a repetition learns that the work was done.
    subject {{text}},
    -- The caller, so that stored responses can be limited per caller.
    caller {{text}} not null default '',
    -- The process that works on the request (`src/idempotency.rs`). Written on PostgreSQL only.
    holder {{int}},
    primary key (org_id, idempotency_key)
) {{strict}};
create index idempotency_keys_expiry on idempotency_keys (expires_at);
create index idempotency_keys_caller on idempotency_keys (org_id, caller);

-- Numbers of the installation: how many times it was restored.
create table counters (
    name {{text}} primary key,
    value {{int}} not null
) {{strict}};

-- The sequence number of each organization's last event. The transaction that takes the next one
-- locks the row until it ends, so that the order of the numbers is the order of the commits.
create table event_heads (
    org_id {{text}} primary key references organizations (id),
    sequence {{int}} not null
) {{strict}};

create table events (
    org_id {{text}} not null,
    -- Without gaps within the organization, from 1.
    sequence {{int}} not null,
    id {{text}} not null,
    kind {{text}} not null,
    at {{time}} not null,
    -- The key, user or part of the service that caused it, and its name at that time.
    actor {{text}} not null,
    actor_name {{text}},
    -- What it is about: the type, the id and the name at that time.
    subject_kind {{text}} not null,
    subject_id {{text}} not null,
    subject_name {{text}} not null,
    -- The environment of the server that it is about.
    environment {{text}},
    data {{text}} not null,
    primary key (org_id, sequence)
) {{clustered}};
create index events_age on events (at);
create index events_subject on events (org_id, subject_id, sequence);
-- When servers went offline and came back, for forecasts.
create index events_presence on events (org_id, sequence) where kind in ('server.offline', 'server.online');

-- Where events are sent.
create table webhooks (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    url {{text}} not null,
    -- JSON arrays: the types of events, and the selector of servers (null: all).
    types {{text}} not null,
    targets {{text}},
    format {{text}} not null,
    enabled {{bool}} not null,
    -- Why the service disabled it.
    disabled_reason {{text}},
    -- The signing secrets, encrypted with a key that is not in the database. The old one also signs
    -- until it expires.
    secret {{bytes}} not null,
    old_secret {{bytes}},
    old_secret_until {{time}},
    -- Events up to this sequence number were sent, or are in the queue.
    position {{int}} not null,
    -- Since when every attempt has failed.
    failing_since {{time}},
    created_at {{time}} not null,
    created_by {{text}} not null,
    generation {{int}} not null
) {{strict}};
create unique index webhooks_name on webhooks (org_id, name);

-- The log of deliveries, and the queue of those that are tried again. A delivery whose `next_at` is
-- null waits for an earlier one about the same subject.
create table webhook_deliveries (
    webhook_id {{text}} not null,
    sequence {{int}} not null,
    id {{text}} not null,
    event_id {{text}} not null,
    kind {{text}} not null,
    subject_id {{text}} not null,
    subject_name {{text}} not null,
    state {{text}} not null,
    attempts {{int}} not null,
    next_at {{time}},
    created_at {{time}} not null,
    -- The last attempt: when, its duration, the response and the error.
    tried_at {{time}},
    duration_ms {{int}},
    status {{int}},
    response {{text}},
    error {{text}},
    primary key (webhook_id, sequence)
) {{clustered}};
create unique index webhook_deliveries_id on webhook_deliveries (id);
create index webhook_deliveries_due on webhook_deliveries (webhook_id, next_at) where next_at is not null;
create index webhook_deliveries_subject on webhook_deliveries (webhook_id, subject_id, sequence) where state = 'pending';
create index webhook_deliveries_state on webhook_deliveries (webhook_id, state, sequence);
create index webhook_deliveries_age on webhook_deliveries (created_at);

create table audit_heads (
    org_id {{text}} primary key references organizations (id),
    seq {{int}} not null,
    hash {{bytes}} not null,
    -- The root key that the next entry must be sealed with. Null: none was recorded yet.
    root_key_id {{text}}
) {{strict}};

create table audit_entries (
    org_id {{text}} not null,
    seq {{int}} not null,
    at {{time}} not null,
    actor {{text}} not null,
    action {{text}} not null,
    subject {{text}} not null,
    detail {{text}} not null,
    previous {{bytes}} not null,
    hash {{bytes}} not null,
    primary key (org_id, seq)
) {{strict}};
-- The filters of the activity page.
create index audit_entries_actor on audit_entries (org_id, actor, seq);
create index audit_entries_action on audit_entries (org_id, action, seq);
create index audit_entries_subject on audit_entries (org_id, subject, seq);
create index audit_entries_time on audit_entries (org_id, at, seq);

-- Servers, and what their agents last reported.
create table servers (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    hostname {{text}} not null,
    -- Shown instead of the hostname. Null: none.
    display_name {{text}},
    notes {{text}} not null default '',
    -- The names in lower case, for sorting and searching: the hostname, after the display name and
    -- a line feed if there is one.
    sort_name {{text}} not null,
    environment {{text}},
    tags {{text}} not null,
    os {{text}} not null,
    -- `debian` and `debian 12`: the two forms in which a filter may name an operating system.
    os_id {{text}} not null,
    os_release {{text}} not null,
    kernel {{text}} not null,
    arch {{text}} not null,
    package_manager {{text}},
    agent_version {{text}} not null,
    public_key {{bytes}} not null,
    enrolled_at {{time}} not null,
    last_scan_at {{time}},
    reboot_required {{bool}} not null,
    reboot_reasons {{text}} not null,
    activity {{text}} not null,
    package_set {{bytes}},
    update_set {{bytes}},
    packages {{int}} not null,
    updates {{int}} not null,
    security_updates {{int}} not null,
    facts {{text}} not null,
    quarantine {{text}},
    removed_at {{time}},
    generation {{int}} not null,
    -- Running code that differs from the installed packages, as JSON: whether the kernel belongs to
    -- the machine below (in a container), the packages whose old code still runs, and the package
    -- set from before the first change since then. Empty: none.
    runs {{text}} not null default '',
    root_key_id {{text}}
) {{strict}};
create unique index servers_public_key on servers (public_key);
create index servers_page on servers (org_id, sort_name, id) where removed_at is null;
create index servers_package_set on servers (org_id, package_set) where removed_at is null;
create index servers_barred on servers (id) where removed_at is not null or quarantine is not null;
-- Few of many servers are busy, and the engine reads them whenever a server reports that it is.
create index servers_at_work on servers (id) where activity in ('patching', 'rebooting') and removed_at is null;
-- With the environment, so that the servers with an update are counted by environment without a
-- look at their rows.
create index servers_update_set on servers (org_id, update_set, package_set, environment) where removed_at is null;
-- For the number of agents per version. The rows are wide, so the index holds every column that is
-- needed. The organization comes last, so that SQLite never chooses this index for another query.
create index servers_agent on servers (arch, agent_version, environment, org_id) where removed_at is null;

-- What changes with every sync is separate from what changes with a scan: this table is written
-- thousands of times per second and must stay narrow, with no index but the one below.
create table presence (
    org {{text}} not null,
    server_id {{text}} not null,
    last_seen_at {{time}} not null,
    counter {{int}} not null,
    primary key (org, server_id)
) {{clustered}};
create index presence_seen on presence (org, last_seen_at, server_id);

-- Package sets by content: one row, however many servers have the set.
create table package_sets (
    org_id {{text}} not null,
    kind {{text}} not null,
    digest {{bytes}} not null,
    entries {{int}} not null,
    size_bytes {{int}} not null,
    compressed {{bytes}} not null,
    created_at {{time}} not null,
    last_used_at {{time}} not null,
    primary key (org_id, kind, digest)
) {{strict}};
create index package_sets_age on package_sets (last_used_at);

-- Schedules, their runs, and rollouts.
create table schedules (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    description {{text}} not null,
    enabled {{bool}} not null,
    cron {{text}} not null,
    timezone {{text}} not null,
    targets {{text}} not null,
    options {{text}} not null,
    next_run_at {{time}},
    created_at {{time}} not null,
    updated_at {{time}} not null,
    generation {{int}} not null,
    seal {{bytes}}
) {{strict}};
create unique index schedules_name on schedules (org_id, name);
create index schedules_due on schedules (next_run_at, id) where next_run_at is not null;

-- Times in which no task starts. Either `starts_at` and `ends_at`, or `cron`, `duration_minutes` and
-- `timezone`. The rows are not sealed: see `src/freezes.rs`.
create table freezes (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    reason {{text}} not null,
    targets {{text}} not null,
    starts_at {{time}},
    ends_at {{time}},
    cron {{text}},
    duration_minutes {{int}},
    timezone {{text}},
    created_at {{time}} not null,
    created_by {{text}} not null,
    updated_at {{time}} not null,
    generation {{int}} not null
) {{strict}};
create unique index freezes_name on freezes (org_id, name);

create table runs (
    id {{text}} primary key,
    org_id {{text}} not null,
    schedule_id {{text}} not null references schedules (id) on delete cascade,
    trigger_kind {{text}} not null,
    state {{text}} not null,
    skip_reason {{text}},
    -- The instant of the schedule; null for a run that a user started.
    scheduled_for {{time}},
    started_at {{time}} not null,
    finished_at {{time}},
    batch_id {{text}},
    targets {{text}} not null,
    options {{text}} not null,
    generation {{int}} not null,
    seal {{bytes}}
) {{strict}};
-- One start per instant, and one unfinished run at a time, however many replicas try.
create unique index runs_instant on runs (schedule_id, scheduled_for);
create unique index runs_unfinished on runs (schedule_id) where finished_at is null;
create index runs_page on runs (schedule_id, started_at, id);
create index runs_batch on runs (batch_id) where batch_id is not null;
create index runs_finished on runs (finished_at) where finished_at is not null;

create table rollouts (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    -- Typed by a user, or derived when the batch was created.
    name {{text}} not null,
    head {{text}} not null,
    phase {{text}} not null,
    -- The patch options, which the planner does not read: packages, reboot policy and so on.
    options {{text}} not null,
    origin {{text}} not null,
    started_by {{text}} not null,
    run_id {{text}},
    -- The batch whose failed servers it patches again.
    retry_of {{text}},
    total {{int}} not null,
    created_at {{time}} not null,
    ended_at {{time}},
    -- Grows with changes of the head only: a report of one server must not make every plan stale.
    generation {{int}} not null,
    -- Grows with every transaction that changes the head or a task.
    revision {{int}} not null,
    -- The number of tasks per state, as JSON: counting the tasks for a list of batches over the
    -- whole fleet would read millions of rows. Valid while `counted` equals `revision`; otherwise
    -- the tasks are counted again.
    counts {{text}},
    -- The same for the tasks that started in each wave, by its number.
    wave_counts {{text}},
    counted {{int}} not null default 0,
    -- Authentication codes of rows that make hosts act, with a key that is not in the database
    -- (`src/seals.rs`).
    seal {{bytes}},
    head_seal {{bytes}}
) {{strict}};
create index rollouts_page on rollouts (org_id, created_at, id);
create index rollouts_open on rollouts (id) where ended_at is null;
-- A batch has at most one unfinished retry.
create unique index rollouts_retry on rollouts (retry_of) where retry_of is not null and ended_at is null;
create index rollouts_ended on rollouts (ended_at) where ended_at is not null;

create table rollout_tasks (
    rollout_id {{text}} not null references rollouts (id) on delete cascade,
    task_id {{text}} not null,
    server_id {{text}} not null,
    position {{int}} not null,
    state {{text}} not null,
    target {{text}} not null,
    -- Not null exactly while the task is active.
    deadline {{time}},
    result {{text}},
    generation {{int}} not null,
    revision {{int}} not null,
    seal {{bytes}},
    -- The last known health of the server, as JSON, and its state if it was measured after the
    -- change.
    health {{text}},
    health_state {{text}},
    primary key (rollout_id, server_id)
) {{strict}};
create unique index rollout_tasks_task on rollout_tasks (task_id);
create unique index rollout_tasks_position on rollout_tasks (rollout_id, position);
-- A server has an active task in at most one rollout.
create unique index rollout_tasks_in_work on rollout_tasks (server_id) where deadline is not null;
create index rollout_tasks_deadline on rollout_tasks (deadline) where deadline is not null;
create index rollout_tasks_state on rollout_tasks (rollout_id, state, position);
create index rollout_tasks_revision on rollout_tasks (rollout_id, revision);
create index rollout_tasks_server on rollout_tasks (server_id, rollout_id);
create index rollout_tasks_degraded on rollout_tasks (rollout_id, position) where health_state = 'degraded';

-- The versions that the first wave of a batch installed, per kind of system, if the batch pins
-- versions: later waves install exactly these.
create table rollout_pins (
    rollout_id {{text}} not null references rollouts (id) on delete cascade,
    -- `debian 12 apt x86_64`
    system {{text}} not null,
    -- JSON: name, architecture and version of each package.
    versions {{text}} not null,
    created_at {{time}} not null,
    seal {{bytes}},
    primary key (rollout_id, system)
) {{strict}};

-- Requests to scan a server now.
create table refreshes (
    -- Also the id of the agent's order.
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    server_id {{text}} not null references servers (id),
    state {{text}} not null,
    requested_by {{text}} not null,
    requested_at {{time}} not null,
    deadline {{time}} not null,
    ended_at {{time}},
    message {{text}},
    -- The agent's program to upgrade to, as JSON; null for a scan.
    upgrade {{text}},
    seal {{bytes}}
) {{strict}};
-- One open request of each kind per server: a second request returns the open one.
create unique index refreshes_unfinished on refreshes (server_id, (upgrade is null)) where ended_at is null;
create index refreshes_upgrades on refreshes (server_id, requested_at) where upgrade is not null;
create index refreshes_deadline on refreshes (deadline) where ended_at is null;
create index refreshes_age on refreshes (requested_at);

create table task_logs (
    task_id {{text}} not null,
    position {{int}} not null,
    size {{int}} not null,
    body {{bytes}} not null,
    at {{time}} not null,
    primary key (task_id, position)
) {{strict}};
create index task_logs_age on task_logs (at);

-- Servers that were announced as offline, until they are announced as online.
create table presence_transitions (
    org_id {{text}} not null,
    server_id {{text}} primary key,
    since {{time}} not null
) {{strict}};

-- Pending updates by package, ready to be listed. Computed from the distinct sets of pending
-- updates and the number of servers with each, never from single servers. One row per package name.
-- The three `…_order` columns are the sort order of the list, ascending.
create table patches (
    org_id {{text}} not null,
    package_name {{text}} not null,
    severity_order {{int}} not null,
    kev_order {{int}} not null,
    servers_order {{int}} not null,
    update_type {{text}} not null,
    severity_source {{text}},
    versions {{text}} not null,
    cves {{text}} not null,
    first_seen_at {{time}} not null,
    primary key (org_id, package_name)
) {{strict}};
create index patches_page on patches (org_id, severity_order, kev_order, servers_order, package_name);
-- For counting how long patches have been pending: the rows themselves are wide.
create index patches_age on patches (org_id, severity_order, first_seen_at);

-- Which sets of pending updates name a package: leads from a package to its servers by two indexes.
create table patch_sets (
    org_id {{text}} not null,
    package_name {{text}} not null,
    update_set {{bytes}} not null,
    primary key (org_id, package_name, update_set)
) {{clustered}};
create index patch_sets_set on patch_sets (org_id, update_set);

-- A digest of what the rows above were computed from, and the counts of the organization at that
-- time.
create table fleet_summaries (
    org_id {{text}} primary key,
    basis {{bytes}} not null,
    counts {{text}} not null,
    made_at {{time}} not null,
    generation {{int}} not null
) {{strict}};

-- The number of servers per environment and operating system, so that a total is a sum over some
-- ten rows and not a scan of the fleet. Written with every commit that changes a server
-- (`src/counts.rs`).
create table server_counts (
    org_id {{text}} not null,
    -- Empty: none.
    environment {{text}} not null,
    os_id {{text}} not null,
    os_release {{text}} not null,
    servers {{int}} not null,
    primary key (org_id, environment, os_id, os_release)
) {{clustered}};

-- The number of servers per tag. Written like `server_counts`.
create table tag_counts (
    org_id {{text}} not null,
    tag {{text}} not null,
    servers {{int}} not null,
    primary key (org_id, tag)
) {{clustered}};

-- Published vulnerability data, the same for all organizations: one row per feed.
create table feeds (
    name {{text}} primary key,
    kind {{text}} not null,
    source {{text}} not null,
    records {{int}} not null,
    size_bytes {{int}} not null,
    -- The date of its content; null if unknown.
    as_of {{time}},
    -- Null: it was never imported.
    imported_at {{time}},
    -- Why the last attempt failed; null if it succeeded.
    last_error {{text}},
    tried_at {{time}} not null,
    -- When the feed was last known to be up to date: after an import, or when its publisher
    -- reported no change.
    checked_at {{time}}
) {{strict}};

-- Grows whenever any advisory data changes. One row, which an import locks first, so that imports
-- do not run at the same time.
create table feed_revision (
    one {{int}} primary key,
    revision {{int}} not null
) {{strict}};
insert into feed_revision (one, revision) values (1, 0);

-- The revision at which the advisories for a package last changed: older findings must be computed
-- again.
create table advisory_changes (
    base {{text}} not null,
    name {{text}} not null,
    revision {{int}} not null,
    primary key (base, name)
) {{clustered}};
create index advisory_changes_revision on advisory_changes (base, revision);

-- Known exploited CVEs (KEV), and how likely the others are to be exploited (EPSS). `as_of` keeps
-- an older list from changing anything.
create table exploited (
    cve {{text}} primary key,
    statement {{text}} not null,
    as_of {{time}} not null
) {{strict}};

create table epss (
    cve {{text}} primary key,
    statement {{text}} not null,
    as_of {{time}} not null
) {{strict}};

-- One row per CVE. The three `…_order` columns are the sort order of the list, ascending.
create table cves (
    org_id {{text}} not null,
    id {{text}} not null,
    severity_order {{int}} not null,
    kev_order {{int}} not null,
    servers_order {{int}} not null,
    severity_source {{text}},
    cvss {{text}},
    published {{time}},
    packages {{text}} not null,
    -- The number of servers on which it is suppressed; `servers_order` counts the others.
    suppressed {{int}} not null default 0,
    primary key (org_id, id)
) {{strict}};
create index cves_page on cves (org_id, severity_order, kev_order, servers_order, id);

-- What the rows above were computed from.
create table cve_summaries (
    org_id {{text}} primary key,
    basis {{bytes}} not null,
    made_at {{time}} not null,
    generation {{int}} not null,
    revision {{int}} not null default 0,
    -- The version of the matching rules that findings were computed with. A release that changes
    -- the rules matches everything again.
    rules {{int}} not null default 0,
    -- The number of servers in each state of assessment, as JSON.
    assessments {{text}} not null default '{}'
) {{strict}};

-- CVEs that a user has reviewed and suppressed. They stay in every list and are counted separately.
create table suppressions (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    cve {{text}} not null,
    -- The source package and the environment that it applies to; null: all of them.
    package {{text}},
    environment {{text}},
    reason {{text}} not null,
    -- Null: until it is deleted.
    expires_at {{time}},
    created_at {{time}} not null,
    created_by {{text}} not null
) {{strict}};
create index suppressions_page on suppressions (org_id, id);

-- Feeds that are downloaded automatically.
create table feed_sources (
    name {{text}} primary key,
    url {{text}} not null,
    -- The format of its content; null if it is detected.
    kind {{text}},
    every_seconds {{int}} not null,
    next_at {{time}} not null,
    -- The number of failed downloads in a row.
    failures {{int}} not null,
    -- The version that was last imported, as its publisher names it.
    etag {{text}},
    last_modified {{text}},
    -- The service follows it because servers need it; no operator added it.
    automatic {{bool}} not null
) {{strict}};
create index feed_sources_next on feed_sources (next_at);

-- Feeds that an operator removed. The service does not follow them again on its own. Their data is
-- deleted in the background.
create table feed_removals (
    name {{text}} primary key,
    removed_at {{time}} not null
) {{strict}};

-- Imports in progress, one row per feed. A row whose `updated_at` is old belongs to a process that
-- was killed.
create table feed_progress (
    name {{text}} primary key,
    -- `downloading`, `checking` or `importing`.
    phase {{text}} not null,
    bytes {{int}} not null,
    -- Null: the publisher does not say.
    total_bytes {{int}},
    records {{int}} not null,
    -- Null: not known before the feed was checked.
    total_records {{int}},
    phase_started_at {{time}} not null,
    updated_at {{time}} not null
) {{strict}};

-- Findings of package groups that have any, as compressed JSON.
create table finding_groups (
    org_id {{text}} not null,
    base {{text}} not null,
    digest {{bytes}} not null,
    report {{bytes}} not null,
    primary key (org_id, base, digest)
) {{strict}};

-- Package sets that were assessed. `report` keeps the findings of a set that running code comes
-- from: the set itself may be deleted before the code stops running.
create table finding_sets (
    org_id {{text}} not null,
    package_set {{bytes}} not null,
    base {{text}} not null,
    -- The revision at which the findings of the set last changed.
    changed {{int}} not null,
    report {{bytes}},
    primary key (org_id, package_set, base)
) {{strict}};

-- CVEs by severity: one row for all servers that are equal in everything that decides the counts.
create table finding_counts (
    org_id {{text}} not null,
    count_key {{bytes}} not null,
    cves {{text}} not null,
    -- The number of a server's packages that could not be assessed.
    unassessed {{int}} not null default 0,
    primary key (org_id, count_key)
) {{clustered}};

-- Sets of pending updates that name a CVE which only the hosts' package managers report.
create table cve_updates (
    org_id {{text}} not null,
    cve {{text}} not null,
    update_set {{bytes}} not null,
    primary key (org_id, cve, update_set)
) {{clustered}};
create index cve_updates_set on cve_updates (org_id, update_set);

-- Users who sign in to the dashboard.
create table users (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    -- The name that they sign in with, in lower case; unique in the organization.
    name {{text}} not null,
    role {{text}} not null,
    -- A PHC string of Argon2id; null until the user has set a password.
    password {{text}},
    -- The hash of the one-time link for setting a password.
    link_hash {{bytes}},
    link_expires_at {{time}},
    -- The TOTP secret, encrypted with a key that is not in the database; null without a second
    -- factor.
    totp_secret {{bytes}},
    -- The time step of the last TOTP code that was used.
    totp_step {{int}} not null,
    created_at {{time}} not null,
    created_by {{text}} not null,
    removed_at {{time}},
    generation {{int}} not null
) {{strict}};
create unique index users_link on users (link_hash);
create index users_page on users (org_id, name);
create unique index users_name on users (org_id, name) where removed_at is null;

create table sessions (
    -- The hash of the token.
    hash {{bytes}} primary key,
    -- Names the session on the account page. It proves nothing.
    id {{text}} not null,
    user_id {{text}} not null references users (id),
    created_at {{time}} not null,
    expires_at {{time}} not null,
    -- When it was last used, to within some minutes.
    used_at {{time}} not null,
    -- The address and the user agent that signed in; empty if unknown.
    address {{text}} not null,
    user_agent {{text}} not null
) {{strict}};
create index sessions_user on sessions (user_id, created_at);
create unique index sessions_id on sessions (id);
create index sessions_expiry on sessions (expires_at);

-- One-time codes for users who lost their authenticator. A code that was used is deleted.
create table recovery_codes (
    user_id {{text}} not null references users (id),
    hash {{bytes}} not null,
    primary key (user_id, hash)
) {{strict}};

-- Saved views of the lists in the dashboard. A view that is not shared is visible to its user only.
create table saved_views (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    user_id {{text}} not null references users (id),
    -- The list: servers, patches, cves or batches.
    list {{text}} not null,
    name {{text}} not null,
    -- The query string of the list, without the question mark.
    query {{text}} not null,
    shared {{bool}} not null,
    created_at {{time}} not null
) {{strict}};
create unique index saved_views_name on saved_views (user_id, list, shared, name);
create index saved_views_list on saved_views (org_id, list, name);

-- The email addresses of users. Notifications are sent to confirmed addresses only.
create table email_addresses (
    user_id {{text}} primary key references users (id),
    org_id {{text}} not null references organizations (id),
    address {{text}} not null,
    -- The time zone in which digests are sent in the morning.
    timezone {{text}} not null,
    -- Null: the address is not confirmed.
    confirmed_at {{time}},
    -- The hash of the link that confirms the address, and when it was sent.
    link_hash {{bytes}},
    link_sent_at {{time}},
    -- Since when no message could be sent, and why.
    failing_since {{time}},
    error {{text}},
    -- When a message was last sent.
    sent_at {{time}},
    generation {{int}} not null
) {{strict}};
create unique index email_addresses_link on email_addresses (link_hash) where link_hash is not null;

-- What users are notified of.
create table notification_rules (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    user_id {{text}} not null references users (id),
    -- JSON: the types of events, and the selector of servers (null: all).
    types {{text}} not null,
    targets {{text}},
    -- immediate, daily or weekly.
    rhythm {{text}} not null,
    -- Events up to this sequence number were sent.
    position {{int}} not null,
    -- When the next message may be sent. Null: with the next event.
    next_at {{time}},
    -- Failed attempts to send the next message.
    attempts {{int}} not null,
    created_at {{time}} not null
) {{strict}};
create index notification_rules_user on notification_rules (user_id, created_at);

-- Links between users and their accounts at an identity provider. An account is identified by the
-- provider's id for it, which never changes, not by a name, which may.
create table identities (
    issuer {{text}} not null,
    subject {{text}} not null,
    user_id {{text}} not null references users (id),
    created_at {{time}} not null,
    primary key (issuer, subject)
) {{strict}};
-- A user has at most one account at a provider: an email address that was given to another person
-- there does not open the user's account.
create unique index identities_user on identities (user_id, issuer);

-- Daily statistics of an organization, for the trend of the last weeks. The row of the current day
-- is overwritten until the day is over.
create table daily_stats (
    org_id {{text}} not null,
    -- The day in UTC: 2026-11-15.
    day {{text}} not null,
    servers {{int}} not null,
    up_to_date {{int}} not null,
    -- Unsuppressed CVEs by severity, including those that are known to be exploited.
    critical {{int}} not null,
    high {{int}} not null,
    medium {{int}} not null,
    low {{int}} not null,
    unknown {{int}} not null,
    -- The number of these CVEs that are known to be exploited.
    exploited {{int}} not null,
    primary key (org_id, day)
) {{clustered}};
-- Old days are deleted for all organizations at once.
create index daily_stats_day on daily_stats (day);

create table server_kinds (
    org_id {{text}} not null,
    number {{int}} not null,
    package_set {{bytes}} not null,
    os_release {{text}} not null,
    kernel {{text}} not null,
    runs {{text}} not null,
    primary key (org_id, number)
) {{clustered}};

create table cve_server_kinds (
    org_id {{text}} not null,
    cve {{text}} not null,
    page {{int}} not null,
    -- A JSON array: the positions, within the page, of the numbers of the kinds.
    kinds {{text}} not null,
    primary key (org_id, cve, page)
) {{clustered}};

-- The columns that servers are filtered and sorted by. Any filter may have to read all servers, and
-- the rows of `servers` are wide and written with every scan. Written when a server is enrolled or
-- removed, and when one of these columns changes (`src/server_index.rs`).
create table server_index (
    org_id {{text}} not null,
    sort_name {{text}} not null,
    id {{text}} not null,
    environment {{text}},
    os_id {{text}} not null,
    os_release {{text}} not null,
    reboot_required {{bool}} not null,
    -- For the order by security updates: if the servers that match come last, a scan reads all
    -- others first. `server_index_security` and `server_index_id` contain every column that a filter uses, so a
    -- scan in their order needs no lookups.
    security_updates {{int}} not null default 0,
    primary key (org_id, sort_name, id)
) {{clustered}};
create index server_index_environment on server_index (org_id, environment, sort_name, id);
create index server_index_os on server_index (org_id, os_id, sort_name, id, os_release);
create index server_index_reboot on server_index (org_id, reboot_required, sort_name, id);
create index server_index_security on server_index (org_id, security_updates desc, sort_name, id, environment, os_id, os_release, reboot_required);
create index server_index_id on server_index (org_id, id, sort_name, environment, os_id, os_release, reboot_required);

-- The servers of each tag, sorted by name: a page of them must not scan the fleet until enough are
-- found, because all servers of one tag may come last. Written when a server is enrolled, renamed,
-- tagged or removed (`src/server_tags.rs`).
create table server_tags (
    owner {{text}} not null,
    tag {{text}} not null,
    -- In lower case.
    name {{text}} not null,
    named {{text}} not null,
    primary key (owner, tag, name, named)
) {{clustered}};
create index server_tags_named on server_tags (named);

create table advisories (
    feed {{text}} not null,
    id {{text}} not null,
    statement {{bytes}} not null,
    primary key (feed, id)
) {{strict}};

create table advisory_names (
    base {{text}} not null,
    name {{text}} not null,
    feed {{text}} not null,
    id {{text}} not null,
    primary key (base, name, feed, id)
) {{clustered}};
create index advisory_names_id on advisory_names (feed, id);

-- The package set that a server was last asked to upload, per kind. The replica that receives an
-- upload refuses it if it was not requested. At most two rows per server.
create table package_set_requests (
    server_id {{text}} not null,
    kind {{text}} not null,
    digest {{bytes}} not null,
    asked_at {{time}} not null,
    primary key (server_id, kind)
) {{strict}};

-- Which replica owns the session of an agent, and the syncs that it received
-- (`src/sync_sessions.rs`). Written on PostgreSQL only: SQLite has one process.
create table sync_sessions (
    server_id {{text}} primary key,
    owner {{text}} not null,
    counter {{int}} not null,
    recent {{bytes}} not null,
    -- The syncs that another replica received after it had lost the session.
    contested {{bytes}} not null
) {{strict}};

-- The id of the root key in use, and of the one that it replaces (`src/root_keys.rs`). One row.
create table root_keys (
    place {{int}} primary key,
    id {{text}} not null,
    -- Not null while the key is rotated.
    old_id {{text}},
    -- When a service first used it.
    since {{time}} not null,
    -- When everything was resealed with it.
    resealed_at {{time}}
) {{strict}};

-- How much of an organization's audit log is resealed with a new root key (`src/audit.rs`). No row:
-- all of it.
create table audit_reseals (
    org_id {{text}} primary key,
    -- The entries up to this one are sealed with the new key.
    seq {{int}} not null,
    -- The old hash of that entry, to which the next entry refers, and its new hash.
    hash {{bytes}} not null,
    resealed {{bytes}} not null,
    -- The last entry that was written with the old key.
    until_seq {{int}} not null,
    code {{bytes}} not null
) {{strict}};

-- Policies, and where each server stands with them (`src/policies.rs`, `src/compliance.rs`).
create table policies (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    name {{text}} not null,
    description {{text}} not null,
    targets {{text}} not null,
    -- A JSON array: what each rule matches, and the number of days.
    rules {{text}} not null,
    created_at {{time}} not null,
    created_by {{text}} not null,
    updated_at {{time}} not null,
    generation {{int}} not null
) {{strict}};
create unique index policies_name on policies (org_id, name);

-- What servers have to fix, and since when: one row for all servers that are equal in both.
create table compliance_obligations (
    org_id {{text}} not null,
    digest {{bytes}} not null,
    obligations {{bytes}} not null,
    primary key (org_id, digest)
) {{strict}};

-- The state of each server when it was last judged. A server is judged again if any of these
-- differs now, or at `next_at`.
create table compliance_servers (
    org_id {{text}} not null,
    server_id {{text}} not null,
    generation {{int}} not null,
    -- The revision at which the findings of its package set last changed; -1: not matched yet.
    findings_revision {{int}} not null,
    -- What decides which fixes exist, and what decides how they are judged.
    fixes_basis {{bytes}} not null,
    basis {{bytes}} not null,
    -- Null: nothing is known about the server yet.
    obligations {{bytes}},
    next_at {{time}},
    primary key (org_id, server_id)
) {{clustered}};
create index compliance_servers_next on compliance_servers (org_id, next_at) where next_at is not null;
create index compliance_servers_obligations on compliance_servers (org_id, obligations) where obligations is not null;

create table compliance_states (
    org_id {{text}} not null,
    policy_id {{text}} not null,
    server_id {{text}} not null,
    -- Empty: none.
    environment {{text}} not null,
    state {{text}} not null,
    unknown {{text}},
    -- The earliest due date in microseconds, or the greatest number if nothing is due: the order of
    -- lists, the same on both engines.
    due {{int}} not null,
    open {{int}} not null,
    overdue {{int}} not null,
    -- Whether the server has breached the policy and has not satisfied it since.
    breached {{bool}} not null,
    primary key (org_id, policy_id, server_id)
) {{clustered}};
create index compliance_states_due on compliance_states (org_id, policy_id, due, server_id);
create index compliance_states_state on compliance_states (org_id, policy_id, state, due, server_id);
create index compliance_states_environment on compliance_states (org_id, policy_id, environment, state, due, server_id);
create index compliance_states_server on compliance_states (org_id, server_id);

create table compliance_counts (
    org_id {{text}} not null,
    policy_id {{text}} not null,
    environment {{text}} not null,
    state {{text}} not null,
    servers {{int}} not null,
    primary key (org_id, policy_id, environment, state)
) {{clustered}};

-- The counts of each day, for the trend. The rows of the current day are overwritten until it is
-- over.
create table compliance_days (
    org_id {{text}} not null,
    policy_id {{text}} not null,
    environment {{text}} not null,
    -- The day in UTC: 2026-11-15.
    day {{text}} not null,
    compliant {{int}} not null,
    due_soon {{int}} not null,
    breaching {{int}} not null,
    unknown {{int}} not null,
    primary key (org_id, policy_id, environment, day)
) {{clustered}};
create index compliance_days_day on compliance_days (day);

-- Who wrote the rows above last, so that one replica writes at a time.
create table compliance_summaries (
    org_id {{text}} primary key,
    -- What the servers were last judged by.
    basis {{bytes}} not null,
    -- The day whose counts were written last.
    day {{text}} not null,
    made_at {{time}} not null,
    generation {{int}} not null
) {{strict}};

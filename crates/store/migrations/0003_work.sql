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
    generation {{int}} not null
) {{strict}};
create unique index schedules_name on schedules (org_id, name);
create index schedules_due on schedules (next_run_at, id) where next_run_at is not null;

create table runs (
    id {{text}} primary key,
    org_id {{text}} not null,
    schedule_id {{text}} not null references schedules (id) on delete cascade,
    trigger_kind {{text}} not null,
    state {{text}} not null,
    skip_reason {{text}},
    -- The instant of the schedule; null for a run that a person started.
    scheduled_for {{time}},
    started_at {{time}} not null,
    finished_at {{time}},
    batch_id {{text}},
    targets {{text}} not null,
    options {{text}} not null,
    generation {{int}} not null
) {{strict}};
-- One start for one instant, and one unfinished run at a time, however many replicas try.
create unique index runs_instant on runs (schedule_id, scheduled_for);
create unique index runs_unfinished on runs (schedule_id) where finished_at is null;
create index runs_page on runs (schedule_id, started_at, id);
create index runs_batch on runs (batch_id) where batch_id is not null;

create table rollouts (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    head {{text}} not null,
    phase {{text}} not null,
    -- What the planner does not read: packages, reboot policy and the rest of the order.
    options {{text}} not null,
    origin {{text}} not null,
    started_by {{text}} not null,
    run_id {{text}},
    total {{int}} not null,
    created_at {{time}} not null,
    ended_at {{time}},
    -- Of the head alone: a report of one server must not make every plan stale.
    generation {{int}} not null,
    -- Of the whole: one more with every transaction that changes the head or a target.
    revision {{int}} not null
) {{strict}};
create index rollouts_page on rollouts (org_id, created_at, id);
create index rollouts_open on rollouts (id) where ended_at is null;

create table rollout_targets (
    rollout_id {{text}} not null references rollouts (id) on delete cascade,
    task_id {{text}} not null,
    server_id {{text}} not null,
    position {{int}} not null,
    state {{text}} not null,
    target {{text}} not null,
    -- Not null exactly while the server is in work.
    deadline {{time}},
    result {{text}},
    generation {{int}} not null,
    revision {{int}} not null,
    primary key (rollout_id, server_id)
) {{strict}};
create unique index rollout_targets_task on rollout_targets (task_id);
create unique index rollout_targets_position on rollout_targets (rollout_id, position);
-- A server is in work in one rollout at a time.
create unique index rollout_targets_in_work on rollout_targets (server_id)
    where deadline is not null;
create index rollout_targets_deadline on rollout_targets (deadline) where deadline is not null;
create index rollout_targets_state on rollout_targets (rollout_id, state, position);
create index rollout_targets_revision on rollout_targets (rollout_id, revision);
create index rollout_targets_server on rollout_targets (server_id, rollout_id);

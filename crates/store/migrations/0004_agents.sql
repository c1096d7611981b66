-- What the agents' door and the engine keep besides: refreshes, logs of tasks, who is away.

create table refreshes (
    -- The id of the order that the agent gets.
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    server_id {{text}} not null references servers (id),
    state {{text}} not null,
    requested_by {{text}} not null,
    requested_at {{time}} not null,
    deadline {{time}} not null,
    ended_at {{time}},
    message {{text}}
) {{strict}};
-- One at a time a server: who asks again is shown the one that is under way.
create unique index refreshes_unfinished on refreshes (server_id) where ended_at is null;
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

-- Servers of which it was said that they went away, until it is said that they are back.
create table absences (
    org_id {{text}} not null,
    server_id {{text}} primary key,
    since {{time}} not null
) {{strict}};

create index servers_barred on servers (id) where removed_at is not null or quarantine is not null;
create index rollouts_ended on rollouts (ended_at) where ended_at is not null;
create index runs_finished on runs (finished_at) where finished_at is not null;

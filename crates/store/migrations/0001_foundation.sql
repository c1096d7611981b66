-- One text for both engines: see src/migrate.rs for what the words in double braces become.
-- Applied once and never edited: a change is a new file with the next number.

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
    generation {{int}} not null
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
    revoked_at {{time}}
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
    primary key (org_id, idempotency_key)
) {{strict}};
create index idempotency_keys_expiry on idempotency_keys (expires_at);

-- The next number of each series. Whoever takes one holds the row until its transaction ends, so
-- that the order of the numbers is the order of the commits.
create table counters (
    name {{text}} primary key,
    value {{int}} not null
) {{strict}};
insert into counters (name, value) values ('events', 0);

create table events (
    seq {{int}} primary key,
    id {{text}} not null,
    org_id {{text}} not null,
    kind {{text}} not null,
    at {{time}} not null,
    data {{text}} not null
) {{strict}};
create index events_page on events (org_id, seq);
create index events_age on events (at);

create table audit_heads (
    org_id {{text}} primary key references organizations (id),
    seq {{int}} not null,
    hash {{bytes}} not null
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

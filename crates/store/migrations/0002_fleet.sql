-- Servers and what lies on them.

create table servers (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    hostname {{text}} not null,
    -- The hostname in lower case: what lists are sorted by and searches look in.
    sort_name {{text}} not null,
    environment {{text}},
    tags {{text}} not null,
    os {{text}} not null,
    -- `debian` and `debian 12`: the two ways in which a filter may name a system.
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
    cves {{text}} not null,
    facts {{text}} not null,
    quarantine {{text}},
    removed_at {{time}},
    generation {{int}} not null
) {{strict}};
create unique index servers_public_key on servers (public_key);
create index servers_page on servers (org_id, sort_name, id) where removed_at is null;
-- `removed_at` is always null in these two, and stands there so that SQLite can count without a
-- look at the table.
create index servers_environment on servers (org_id, environment, sort_name, id, removed_at)
    where removed_at is null;
create index servers_os on servers (org_id, os_id, sort_name, id, os_release, removed_at)
    where removed_at is null;
create index servers_package_set on servers (org_id, package_set) where removed_at is null;
create index servers_update_set on servers (org_id, update_set) where removed_at is null;

-- What changes with every sync lies apart from what changes with a scan: this table is written
-- thousands of times a second and must stay narrow and without further indexes.
create table presence (
    org {{text}} not null,
    server_id {{text}} not null,
    last_seen_at {{time}} not null,
    counter {{int}} not null,
    primary key (org, server_id)
) {{clustered}};

create table server_tags (
    org_id {{text}} not null,
    tag {{text}} not null,
    server_id {{text}} not null references servers (id),
    primary key (org_id, tag, server_id)
) {{clustered}};
create index server_tags_server on server_tags (server_id);

-- Package lists by content: one row however many servers carry it.
create table listings (
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
create index listings_age on listings (last_used_at);

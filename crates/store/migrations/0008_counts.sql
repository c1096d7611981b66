-- How many servers an organization has of each kind that lists are filtered by, so that a total is the sum of some
-- ten rows and not a walk over the fleet. Written with every commit that changes a server (`src/counts.rs`).
create table server_counts (
    org_id {{text}} not null,
    -- Empty: none.
    environment {{text}} not null,
    os_id {{text}} not null,
    os_release {{text}} not null,
    servers {{int}} not null,
    primary key (org_id, environment, os_id, os_release)
) {{clustered}};
insert into server_counts (org_id, environment, os_id, os_release, servers)
    select org_id, coalesce(environment, ''), os_id, os_release, count(*)
      from servers where removed_at is null
     group by org_id, coalesce(environment, ''), os_id, os_release;

-- Who is offline is found and counted here; the rest is online.
create index presence_seen on presence (org, last_seen_at);

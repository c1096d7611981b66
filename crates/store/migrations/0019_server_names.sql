-- What servers are called, apart from what is known of them: a search by name must read every name of the fleet, and the
-- servers' own rows are wide and written with every scan. Written when a server joins, is renamed or leaves
-- (`src/server_names.rs`).
create table server_names (
    owner {{text}} not null,
    -- In lower case.
    name {{text}} not null,
    named {{text}} not null,
    primary key (owner, name, named)
) {{clustered}};
insert into server_names (owner, name, named)
    select org_id, sort_name, id from servers where removed_at is null;

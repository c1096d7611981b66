-- What servers are found by, apart from what is known of them: any filter may have to look at everyone, and the servers' own
-- rows are wide and written with every scan. Written when a server joins or leaves, and when one of these changes
-- (`src/roster.rs`).
create table roster (
    org_id {{text}} not null,
    sort_name {{text}} not null,
    id {{text}} not null,
    environment {{text}},
    os_id {{text}} not null,
    os_release {{text}} not null,
    reboot_required {{bool}} not null,
    primary key (org_id, sort_name, id)
) {{clustered}};
create index roster_id on roster (org_id, id);
create index roster_environment on roster (org_id, environment, sort_name, id);
create index roster_os on roster (org_id, os_id, sort_name, id, os_release);
create index roster_reboot on roster (org_id, reboot_required, sort_name, id);
insert into roster (org_id, sort_name, id, environment, os_id, os_release, reboot_required)
    select org_id, sort_name, id, environment, os_id, os_release, reboot_required
      from servers where removed_at is null;
drop table server_names;
drop index servers_environment;
drop index servers_os;
drop index servers_reboot;

-- Who has a tag, in the order of their names: a page of them must not walk the fleet until enough are found, and all servers
-- of one tag may well come last. Written when a server joins, is renamed, tagged otherwise or leaves (`src/tagged.rs`).
create table tagged (
    owner {{text}} not null,
    tag {{text}} not null,
    -- In lower case.
    name {{text}} not null,
    named {{text}} not null,
    primary key (owner, tag, name, named)
) {{clustered}};
create index tagged_named on tagged (named);
insert into tagged (owner, tag, name, named)
    select t.org_id, t.tag, s.sort_name, s.id
      from server_tags t join servers s on s.id = t.server_id where s.removed_at is null;
drop table server_tags;

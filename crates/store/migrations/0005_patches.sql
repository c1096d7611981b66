-- What is pending where, kept ready to be read: made from the distinct lists of pending updates and how
-- many servers carry each, never from the servers one by one.

-- One row a package name. The three `…_order` columns are the order of the list, ascending.
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

-- Which lists of pending updates name a package: from a package to its servers by two indexes.
create table patch_sets (
    org_id {{text}} not null,
    package_name {{text}} not null,
    update_set {{bytes}} not null,
    primary key (org_id, package_name, update_set)
) {{clustered}};
create index patch_sets_set on patch_sets (org_id, update_set);

-- What the rows above were made from, and the organization in numbers at that moment.
create table fleet_summaries (
    org_id {{text}} primary key,
    basis {{bytes}} not null,
    counts {{text}} not null,
    made_at {{time}} not null,
    generation {{int}} not null
) {{strict}};

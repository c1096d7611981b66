-- What is known of a list is known of its groups: everything in it that is of one source. A group is judged once, however
-- many lists carry it, and one new advisory changes the groups of one source instead of every list. All of this is
-- made from lists and advisories, so what was there is dropped and made anew.
drop table finding_sets;

-- Only groups of which there is anything to say; compressed JSON.
create table finding_groups (
    org_id {{text}} not null,
    base {{text}} not null,
    digest {{bytes}} not null,
    report {{bytes}} not null,
    primary key (org_id, base, digest)
) {{strict}};

-- The lists that were judged. Of a list that old code is from, what is known of it: it may be gone before the old code is.
create table finding_sets (
    org_id {{text}} not null,
    package_set {{bytes}} not null,
    base {{text}} not null,
    -- The revision at which what is known of it last became something else.
    changed {{int}} not null,
    report {{bytes}},
    primary key (org_id, package_set, base)
) {{strict}};

-- How many flaws of each severity servers have that are alike in all that decides how many: one row for them all.
create table finding_counts (
    org_id {{text}} not null,
    alike {{bytes}} not null,
    cves {{text}} not null,
    primary key (org_id, alike)
) {{clustered}};
alter table servers drop column cves;

-- Which lists of pending updates name a flaw, where only the hosts' package managers know of any.
create table cve_updates (
    org_id {{text}} not null,
    cve {{text}} not null,
    update_set {{bytes}} not null,
    primary key (org_id, cve, update_set)
) {{clustered}};
create index cve_updates_set on cve_updates (org_id, update_set);

-- The revision of what is published that all of it was made from.
delete from cve_summaries;
alter table cve_summaries add column revision {{int}} not null default 0;

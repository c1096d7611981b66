-- An advisory belongs to the feed that it came from: two feeds may use the same id for different
-- releases, and a feed replaces its own statements only. Rows from before have no feed until it is
-- imported again.
create table moved_advisories (
    id {{text}} not null,
    statement {{bytes}} not null
) {{strict}};
insert into moved_advisories (id, statement) select id, statement from advisories;
drop table advisories;
create table advisories (
    feed {{text}} not null,
    id {{text}} not null,
    statement {{bytes}} not null,
    primary key (feed, id)
) {{strict}};
insert into advisories (feed, id, statement) select '', id, statement from moved_advisories;
drop table moved_advisories;

create table moved_names (
    base {{text}} not null,
    name {{text}} not null,
    id {{text}} not null
) {{strict}};
insert into moved_names (base, name, id) select base, name, id from advisory_names;
drop table advisory_names;
create table advisory_names (
    base {{text}} not null,
    name {{text}} not null,
    feed {{text}} not null,
    id {{text}} not null,
    primary key (base, name, feed, id)
) {{clustered}};
create index advisory_names_id on advisory_names (feed, id);
insert into advisory_names (base, name, feed, id) select base, name, '', id from moved_names;
drop table moved_names;

-- The version of the matching rules that findings were made with. A release that changes the rules
-- matches everything again.
alter table cve_summaries add column rules {{int}} not null default 0;
-- How many servers are in each state of assessment, as JSON.
alter table cve_summaries add column assessments {{text}} not null default '{}';

-- How many of a server's packages could not be assessed.
alter table finding_counts add column unassessed {{int}} not null default 0;

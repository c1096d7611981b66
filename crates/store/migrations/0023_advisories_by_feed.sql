-- An advisory belongs to the feed that it came from: two feeds may use the same id for different
-- releases, and a feed replaces its own statements only. Rows from before have no feed until it is
-- imported again.
create table advisories_by_feed (
    feed {{text}} not null,
    id {{text}} not null,
    statement {{bytes}} not null,
    primary key (feed, id)
) {{strict}};
insert into advisories_by_feed (feed, id, statement) select '', id, statement from advisories;
drop table advisories;
alter table advisories_by_feed rename to advisories;

create table advisory_names_by_feed (
    base {{text}} not null,
    name {{text}} not null,
    feed {{text}} not null,
    id {{text}} not null,
    primary key (base, name, feed, id)
) {{clustered}};
insert into advisory_names_by_feed (base, name, feed, id) select base, name, '', id from advisory_names;
drop table advisory_names;
alter table advisory_names_by_feed rename to advisory_names;
create index advisory_names_id on advisory_names (feed, id);

-- The version of the matching rules that findings were made with. A release that changes the rules
-- matches everything again.
alter table cve_summaries add column rules {{int}} not null default 0;
-- How many servers are in each state of assessment, as JSON.
alter table cve_summaries add column assessments {{text}} not null default '{}';

-- The organization in numbers, a row a day: what the trend of the last weeks is drawn from. A day's row is written over
-- until the day is over, and then stands.
create table fleet_days (
    org_id {{text}} not null,
    -- Of UTC: 2026-11-15.
    day {{text}} not null,
    servers {{int}} not null,
    up_to_date {{int}} not null,
    -- Open CVEs by severity, those that are known to be exploited among them.
    critical {{int}} not null,
    high {{int}} not null,
    medium {{int}} not null,
    low {{int}} not null,
    unknown {{int}} not null,
    -- How many of them are known to be exploited.
    exploited {{int}} not null,
    primary key (org_id, day)
) {{clustered}};
-- What is old goes, of whichever organization.
create index fleet_days_day on fleet_days (day);

-- How long patches have been pending is counted here alone: their rows are wide.
create index patches_age on patches (org_id, severity_order, first_seen_at);

-- How many targets of a large rollout stand where, once it has ended: a list of batches over the whole fleet would count
-- millions. True as long as `counted` is its revision; what is reported late makes it count anew.
alter table rollouts add column counts {{text}};
alter table rollouts add column counted {{int}} not null default 0;
create index rollouts_uncounted on rollouts (id)
    where ended_at is not null and counted <> revision and total > 500;

-- The orders and the filter that the dashboard leads to, by an index each: a page of them must not sort the fleet.
create index servers_security on servers (org_id, security_updates desc, sort_name, id)
    where removed_at is null;
create index servers_reboot on servers (org_id, reboot_required, sort_name, id)
    where removed_at is null;
-- With the id, so that those seen at one moment are in order, too.
drop index presence_seen;
create index presence_seen on presence (org, last_seen_at, server_id);

-- In the order of their security updates, too, servers are found without their own rows: where those who match come last, a
-- walk passes everyone else. Two indexes have all that a filter asks for, so that a walk in their order looks up nobody.
alter table roster add column security_updates {{int}} not null default 0;
update roster set security_updates =
    (select s.security_updates from servers s where s.org_id = roster.org_id and s.id = roster.id);
create index roster_security on roster
    (org_id, security_updates desc, sort_name, id, environment, os_id, os_release, reboot_required);
drop index servers_security;
drop index roster_id;
create index roster_id on roster (org_id, id, sort_name, environment, os_id, os_release, reboot_required);

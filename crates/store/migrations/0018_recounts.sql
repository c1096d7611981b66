-- How many of a server's updates are for security is judged once for all servers that are alike, and written to those that
-- have another number. They are found by both of their lists: one list of updates may be that of nearly all.
drop index servers_update_set;
create index servers_update_set on servers (org_id, update_set, package_set) where removed_at is null;

-- A name is unique in its organization only, so that no organization can learn, take or block the names of another.

drop index users_name;
create unique index users_name on users (org_id, name) where removed_at is null;

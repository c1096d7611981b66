-- The root key that the services of this installation use, by its id, and the one that it replaces (`src/root_keys.rs`). One row.
create table root_keys (
    place {{int}} primary key,
    id {{text}} not null,
    -- Not null while it is rotated.
    old_id {{text}},
    -- When a service first used it.
    since {{time}} not null,
    -- When everything had been sealed again with it.
    resealed_at {{time}}
) {{strict}};

-- How far the audit log of an organization has been sealed again with a new root key (`src/audit.rs`). No row: all of it.
create table audit_seams (
    org_id {{text}} primary key,
    -- The entries up to here are sealed with the new key.
    seq {{int}} not null,
    -- The hash of the last of them before, to which the next one refers, and now.
    hash {{bytes}} not null,
    resealed {{bytes}} not null,
    -- The last entry that was written with the old key.
    until_seq {{int}} not null,
    code {{bytes}} not null
) {{strict}};

-- The root key that the next entry must be sealed with. Null: nobody has said.
alter table audit_heads add column root_key_id {{text}};

-- The root key that a credential was made with. Null: one before this column.
alter table api_keys add column root_key_id {{text}};
alter table enrollment_tokens add column root_key_id {{text}};
alter table servers add column root_key_id {{text}};

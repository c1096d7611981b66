-- People who sign in to the dashboard.

create table users (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    -- What they sign in with, in lower case: one person of one organization.
    name {{text}} not null,
    role {{text}} not null,
    -- A PHC string of Argon2id; empty until its owner has set one.
    password {{text}},
    -- Of the one-time link with which a password is set.
    link_hash {{bytes}},
    link_expires_at {{time}},
    -- What their authenticator knows, sealed with a key that is not here; empty if they have none.
    totp_secret {{bytes}},
    -- The step of the last code that was used.
    totp_step {{int}} not null,
    created_at {{time}} not null,
    created_by {{text}} not null,
    removed_at {{time}},
    generation {{int}} not null
) {{strict}};
create unique index users_name on users (name) where removed_at is null;
create unique index users_link on users (link_hash);
create index users_page on users (org_id, name);

create table sessions (
    hash {{bytes}} primary key,
    user_id {{text}} not null references users (id),
    created_at {{time}} not null,
    expires_at {{time}} not null
) {{strict}};
create index sessions_user on sessions (user_id);
create index sessions_expiry on sessions (expires_at);

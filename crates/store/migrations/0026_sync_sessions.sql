-- Which replica an agent last talked to, and the syncs that it heard (`src/sync_sessions.rs`). Written with PostgreSQL only:
-- SQLite has one process.
create table sync_sessions (
    server_id {{text}} primary key,
    owner {{text}} not null,
    counter {{int}} not null,
    recent {{bytes}} not null,
    -- What a replica heard after it had lost the session.
    contested {{bytes}} not null
) {{strict}};

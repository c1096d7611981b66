-- The package set that a server was last asked to upload, per kind. An upload that was not asked
-- for is refused, by whichever replica receives it. At most two rows per server.
create table wanted_listings (
    server_id {{text}} not null,
    kind {{text}} not null,
    digest {{bytes}} not null,
    asked_at {{time}} not null,
    primary key (server_id, kind)
) {{strict}};

-- Who used an idempotency key, so that stored answers can be limited per caller.
alter table idempotency_keys add column caller {{text}} not null default '';
create index idempotency_keys_caller on idempotency_keys (org_id, caller);

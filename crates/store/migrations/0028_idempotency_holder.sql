-- Which process is at work on a request (`src/idempotency.rs`). Written with PostgreSQL only.
alter table idempotency_keys add column holder {{int}};

-- Authentication codes of the rows that make hosts act, under a key that is not in the database (`src/seals.rs`).
-- Null: written by an earlier release.
alter table rollouts add column seal {{bytes}};
alter table rollouts add column head_seal {{bytes}};
alter table rollout_targets add column seal {{bytes}};
alter table schedules add column seal {{bytes}};
alter table runs add column seal {{bytes}};
alter table refreshes add column seal {{bytes}};

-- How many targets of a rollout stand where is kept with every change of it, open or ended (`src/rollouts.rs`), so nobody
-- looks any more for those that were not counted. The index named the revision, so PostgreSQL could write no step of a rollout
-- in place.
drop index rollouts_uncounted;

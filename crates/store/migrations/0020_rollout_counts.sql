-- How many targets of a rollout stand where is kept with every change of it, open or ended (`src/rollouts.rs`), so nobody
-- looks any more for those that were not counted. On PostgreSQL it also kept every step of a rollout from being written in
-- place.
drop index rollouts_uncounted;

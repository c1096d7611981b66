-- What a request with an idempotency key has done, written in the same transaction as the doing: if the answer is
-- lost in a crash, a repetition finds that there is nothing left to do.
alter table idempotency_keys add column subject {{text}};

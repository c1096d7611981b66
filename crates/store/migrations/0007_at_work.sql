-- Few of many servers are at work, and the engine asks for them whenever one says so.
create index servers_at_work on servers (id)
    where activity in ('patching', 'rebooting') and removed_at is null;

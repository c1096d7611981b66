-- Feeds that are kept up to date from where they are published.

-- When a feed was last known to be as it is published: after an import, or when its publisher said that nothing changed.
alter table feeds add column checked_at {{time}};
update feeds set checked_at = imported_at;

create table feed_sources (
    name {{text}} primary key,
    url {{text}} not null,
    -- What it holds; empty where its beginning tells.
    kind {{text}},
    every_seconds {{int}} not null,
    next_at {{time}} not null,
    -- How many times in a row it could not be had.
    failures {{int}} not null,
    -- What its publisher calls the copy that was last taken in.
    etag {{text}},
    last_modified {{text}}
) {{strict}};
create index feed_sources_next on feed_sources (next_at);

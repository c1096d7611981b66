-- What is published about flaws: the same for all organizations.

-- Where it came from, one row a feed.
create table feeds (
    name {{text}} primary key,
    kind {{text}} not null,
    source {{text}} not null,
    records {{int}} not null,
    size_bytes {{int}} not null,
    -- Of when what it says is; empty where nobody knows.
    as_of {{time}},
    -- Empty: it was never imported.
    imported_at {{time}},
    -- Why the last try failed; empty if it did not.
    last_error {{text}},
    tried_at {{time}} not null
) {{strict}};

-- How often anything that is published changed. One row, which an import locks first, so that imports take turns.
create table feed_revision (
    one {{int}} primary key,
    revision {{int}} not null
) {{strict}};
insert into feed_revision (one, revision) values (1, 0);

-- The statement itself is compressed JSON.
create table advisories (
    id {{text}} primary key,
    statement {{bytes}} not null
) {{strict}};

-- Which statements name a package of a base.
create table advisory_names (
    base {{text}} not null,
    name {{text}} not null,
    id {{text}} not null,
    primary key (base, name, id)
) {{clustered}};
create index advisory_names_id on advisory_names (id);

-- When something last changed about a name: what was judged before has to be judged again.
create table advisory_changes (
    base {{text}} not null,
    name {{text}} not null,
    revision {{int}} not null,
    primary key (base, name)
) {{clustered}};
create index advisory_changes_revision on advisory_changes (base, revision);

-- Flaws that are exploited, and how likely the others are to be. `as_of` keeps an older list from changing anything.
create table exploited (
    cve {{text}} primary key,
    statement {{text}} not null,
    as_of {{time}} not null
) {{strict}};
create table epss (
    cve {{text}} primary key,
    statement {{text}} not null,
    as_of {{time}} not null
) {{strict}};

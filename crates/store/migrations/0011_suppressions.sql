-- When what is known of a list last became something else; 0: before anybody looked.
alter table finding_sets add column changed {{int}} not null default 0;

-- Flaws that someone has looked at and set aside. They stay where they are found, and are counted apart.
create table suppressions (
    id {{text}} primary key,
    org_id {{text}} not null references organizations (id),
    cve {{text}} not null,
    -- The source package, and the environment, that it is about; empty: all of them.
    package {{text}},
    environment {{text}},
    reason {{text}} not null,
    -- Empty: until it is taken back.
    expires_at {{time}},
    created_at {{time}} not null,
    created_by {{text}} not null
) {{strict}};
create index suppressions_page on suppressions (org_id, id);

-- On how many servers a flaw is set aside; `servers_order` counts the others.
alter table cves add column suppressed {{int}} not null default 0;

-- What runs beside what is installed, as JSON: a foreign kernel, old code and since which list. Empty: nothing.
alter table servers add column runs {{text}} not null default '';
alter table finding_kinds add column runs {{text}} not null default '';

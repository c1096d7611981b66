-- Which flaws an organization's servers have, kept ready to be read: made from the distinct lists of packages, never
-- from the servers one by one.

-- What is known of a list of packages, judged once however many servers carry it; compressed JSON.
create table finding_sets (
    org_id {{text}} not null,
    package_set {{bytes}} not null,
    base {{text}} not null,
    revision {{int}} not null,
    report {{bytes}} not null,
    primary key (org_id, package_set, base)
) {{strict}};

-- Servers that are alike in everything that decides which flaws they have.
create table finding_kinds (
    org_id {{text}} not null,
    kind {{bytes}} not null,
    package_set {{bytes}} not null,
    os_release {{text}} not null,
    kernel {{text}} not null,
    -- Stands for what the rows of `cve_kinds` were made from.
    basis {{bytes}} not null,
    primary key (org_id, kind)
) {{strict}};

-- Which kinds have a flaw.
create table cve_kinds (
    org_id {{text}} not null,
    cve {{text}} not null,
    kind {{bytes}} not null,
    primary key (org_id, cve, kind)
) {{clustered}};
create index cve_kinds_kind on cve_kinds (org_id, kind);

-- One row a flaw. The three `…_order` columns are the order of the list, ascending.
create table cves (
    org_id {{text}} not null,
    id {{text}} not null,
    severity_order {{int}} not null,
    kev_order {{int}} not null,
    servers_order {{int}} not null,
    severity_source {{text}},
    cvss {{text}},
    published {{time}},
    packages {{text}} not null,
    primary key (org_id, id)
) {{strict}};
create index cves_page on cves (org_id, severity_order, kev_order, servers_order, id);

-- What the rows above were made from.
create table cve_summaries (
    org_id {{text}} primary key,
    basis {{bytes}} not null,
    made_at {{time}} not null,
    generation {{int}} not null
) {{strict}};

-- Which kinds of servers have a flaw, by the number of the kind. A row names all kinds of one page of numbers that have it,
-- so that a thousand kinds with a thousand flaws are some thousand rows and not a million, each in two trees. What was
-- there is made anew.
drop table cve_kinds;
drop table finding_kinds;

create table finding_kinds (
    org_id {{text}} not null,
    number {{int}} not null,
    package_set {{bytes}} not null,
    os_release {{text}} not null,
    kernel {{text}} not null,
    runs {{text}} not null,
    primary key (org_id, number)
) {{clustered}};

create table cve_kinds (
    org_id {{text}} not null,
    cve {{text}} not null,
    page {{int}} not null,
    -- A JSON array: where in its page the number of each kind lies.
    kinds {{text}} not null,
    primary key (org_id, cve, page)
) {{clustered}};

delete from cve_summaries;

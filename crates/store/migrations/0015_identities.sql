-- Who a person is at a provider of identities: known by its word for them, which never changes, not by a name, which may.

create table identities (
    issuer {{text}} not null,
    subject {{text}} not null,
    user_id {{text}} not null references users (id),
    created_at {{time}} not null,
    primary key (issuer, subject)
) {{strict}};
-- One person is one at a provider: an address that was given to someone else there does not open their account.
create unique index identities_user on identities (user_id, issuer);

//! Servers that are alike in everything that decides which flaws they have.

use std::collections::BTreeMap;

use vocab::{Digest, Environment, OrgId, Os, Severity};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// Servers with one list of packages and one system, on which the same runs.
    pub struct Kind in "servers" by "os_release" {
        /// The list.
        pub package_set: Digest,
        /// The system: `debian 12`.
        pub os_release: String,
        /// The kernel that runs.
        pub kernel: String,
        /// What else runs beside what is installed.
        pub runs: String,
        /// The system, as one of them tells it.
        pub os: Os,
        /// Their environment, if it was asked to tell those in it from others.
        pub environment: Option<Environment>,
        /// How many they are.
        pub servers: u64,
    }
}

impl Kind {
    /// What it is known by. Servers of several environments have the same flaws, if all else is alike.
    pub fn digest(&self) -> Digest {
        let Kind { package_set, os_release, kernel, runs, .. } = self;
        Digest::of(format!("{package_set}\n{os_release}\n{kernel}\n{runs}").as_bytes())
    }
}

/// Every kind of server; those in an environment of `apart` are a kind of their own. Walks the servers, so it is for
/// the background, and for a key that sees a few environments only.
pub async fn kinds(
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
    apart: &[Environment],
) -> Result<Vec<Kind>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Kind::COLUMNS).add(
            " from (select package_set, os_release, kernel, runs, environment, min(os) as os,
                      count(*) as servers
               from (select package_set, os_release, kernel, runs, os, ",
        );
        match apart {
            [] => text.add("cast(null as text) as environment"),
            some => text
                .add("case when environment in ")
                .list(some.iter().map(put))
                .add(" then environment end as environment"),
        };
        text.add(
            " from servers where removed_at is null and package_set is not null and org_id = ",
        );
        text.bind(put(&org));
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(") s group by package_set, os_release, kernel, runs, environment) k");
        text.add(" order by package_set, os_release, kernel, runs, environment");
        text.build_as().fetch_all(c).await
    })?)
}

/// Which kinds are written down, and from what each was made.
pub async fn known_kinds(conn: &mut Conn, org: OrgId) -> Result<BTreeMap<Digest, Digest>> {
    row! {
        struct Known in "finding_kinds" by "org_id" {
            kind: Digest,
            basis: Digest,
        }
    }
    let found: Vec<Known> = on!(conn, |c| {
        sqlx::query_as(join(&["select ", Known::COLUMNS, " from finding_kinds where org_id = $1"]))
            .bind(put(&org))
            .fetch_all(c)
            .await
    })?;
    Ok(found.into_iter().map(|known| (known.kind, known.basis)).collect())
}

/// Writes down which flaws a kind has, sorted, each once; `basis` stands for them.
pub async fn put_kind(
    tx: &mut Tx,
    org: OrgId,
    kind: &Kind,
    basis: Digest,
    cves: &[&str],
) -> Result<()> {
    let digest = kind.digest();
    drop_kinds(tx, org, &[digest]).await?;
    on!(tx, |c| {
        sqlx::query(
            "insert into finding_kinds (org_id, kind, package_set, os_release, kernel, runs, basis)
             values ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(put(&org))
        .bind(put(&digest))
        .bind(put(&kind.package_set))
        .bind(put(&kind.os_release))
        .bind(put(&kind.kernel))
        .bind(put(&kind.runs))
        .bind(put(&basis))
        .execute(c)
        .await
        .map(drop)
    })?;
    for chunk in cves.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into cve_kinds (org_id, cve, kind) ")
                .rows(chunk, |row, cve| {
                    row.bind(put(&org)).bind((*cve).to_owned()).bind(put(&digest));
                })
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Forgets kinds.
pub async fn drop_kinds(tx: &mut Tx, org: OrgId, kinds: &[Digest]) -> Result<()> {
    for table in
        ["delete from cve_kinds where org_id = ", "delete from finding_kinds where org_id = "]
    {
        for chunk in kinds.chunks(ROWS_MAX) {
            on!(tx, |c| {
                let mut text = Text::new(table);
                text.bind(put(&org)).add(" and kind in ").list(chunk.iter().map(put));
                text.build().execute(c).await.map(drop)
            })?;
        }
    }
    Ok(())
}

/// Sets the counts of flaws on every server of a kind, and says on how many that changed anything. `apart` as when the
/// kinds were asked for.
pub async fn recount(
    tx: &mut Tx,
    org: OrgId,
    kind: &Kind,
    apart: &[Environment],
    cves: &BTreeMap<Severity, u32>,
) -> Result<u64> {
    Ok(on!(tx, |c| {
        let mut text = Text::new("update servers set generation = generation + 1, cves = ");
        text.bind(put(cves)).add(" where org_id = ").bind(put(&org));
        text.add(" and package_set = ").bind(put(&kind.package_set));
        text.add(" and os_release = ").bind(put(&kind.os_release));
        text.add(" and kernel = ").bind(put(&kind.kernel));
        text.add(" and runs = ").bind(put(&kind.runs));
        match (&kind.environment, apart) {
            (Some(environment), _) => drop(text.add(" and environment = ").bind(put(environment))),
            (None, []) => {}
            (None, apart) => {
                text.add(" and (environment is null or environment not in ");
                text.list(apart.iter().map(put)).add(")");
            }
        }
        text.add(" and removed_at is null and cves <> ").bind(put(cves));
        text.build().execute(c).await.map(|done| done.rows_affected())
    })?)
}

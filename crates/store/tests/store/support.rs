//! A fresh database of either engine for each test (see [`testkit::both!`]), and helpers to fill it.

use store::audit::Seal;
use store::{Db, Options};
pub(crate) use testkit::{TestDatabase, at};

/// Opens a test's database.
pub(crate) trait Open {
    fn options(&self) -> Options;
    async fn open(&self) -> Db;
}

impl Open for TestDatabase {
    fn options(&self) -> Options {
        let mut options = Options::new(&self.url, seal());
        // The machine may be busy. Timeouts have their own tests.
        options.timeout = std::time::Duration::from_secs(30);
        options
    }

    async fn open(&self) -> Db {
        Db::open(&self.options()).await.unwrap()
    }
}

/// A migrated database of PostgreSQL: a copy of a template, which is created once.
pub(crate) async fn migrated_postgres() -> Option<TestDatabase> {
    let migrations = include_str!("../../migrations/0001_baseline.sql");
    let digest = vocab::Digest::compute(migrations.as_bytes()).to_string();
    let migrate = async |empty: TestDatabase| empty.open().await.close().await;
    let template = TestDatabase::template(&digest[..16], migrate).await?;
    TestDatabase::postgres_with(&format!("template {template}")).await
}

/// For tests that get the address of a migrated database.
pub(crate) mod database {
    use super::{TestDatabase, migrated_postgres};

    pub(crate) async fn sqlite(test: impl AsyncFnOnce(TestDatabase)) {
        let database = TestDatabase::sqlite();
        test(database.clone()).await;
        database.remove().await;
    }

    pub(crate) async fn postgres(test: impl AsyncFnOnce(TestDatabase)) {
        let Some(database) = migrated_postgres().await else { return };
        test(database.clone()).await;
        database.remove().await;
    }
}

/// For tests that get the address of an empty database, because they create the tables.
pub(crate) mod empty {
    use super::TestDatabase;

    pub(crate) use super::database::sqlite;

    pub(crate) async fn postgres(test: impl AsyncFnOnce(TestDatabase)) {
        let Some(database) = TestDatabase::postgres().await else { return };
        test(database.clone()).await;
        database.remove().await;
    }
}

/// For tests that get an open, migrated database.
pub(crate) mod db {
    use super::{Db, Open as _};

    pub(crate) async fn sqlite(test: impl AsyncFnOnce(Db)) {
        super::database::sqlite(async |database| test(database.open().await).await).await;
    }

    pub(crate) async fn postgres(test: impl AsyncFnOnce(Db)) {
        super::database::postgres(async |database| test(database.open().await).await).await;
    }
}

/// A stand-in for the keyed hash: these tests only check who calls it with what.
pub(crate) fn seal() -> Seal {
    Seal::new(|previous, seq, entry| {
        let mut bytes = previous.to_vec();
        bytes.extend(format!("{seq}{entry:?}").bytes());
        vocab::Digest::compute(&bytes).as_bytes().to_vec()
    })
}

/// The nth id of a type.
macro_rules! nth {
    ($kind:ident, $n:expr) => {
        vocab::$kind::new($crate::support::at(0), u128::from($n))
    };
}
pub(crate) use nth;

/// Creates an organization.
pub(crate) async fn org(db: &Db) -> vocab::OrgId {
    let id = nth!(OrgId, 1_u32);
    let mut tx = db.begin().await.unwrap();
    store::organizations::create(&mut tx, id, "Acme", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    id
}

/// Creates another organization, which must never see the data of the first.
pub(crate) async fn other_org(db: &Db) -> vocab::OrgId {
    let id = nth!(OrgId, 2_u32);
    let mut tx = db.begin().await.unwrap();
    store::organizations::create(&mut tx, id, "Umbrella", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    id
}

//! Opens databases in unit tests.

use testkit::TestDatabase;

use crate::audit::Seal;
use crate::{Db, Options};

/// Options with a stand-in for the keyed hash of the audit log.
pub(crate) fn options(database: &TestDatabase) -> Options {
    Options::new(&database.url, Seal::new(|previous, _, _| previous.to_vec()))
}

pub(crate) async fn open(database: &TestDatabase) -> Db {
    Db::open(&options(database)).await.unwrap()
}

/// Runs a test with an empty database of SQLite.
pub(crate) async fn sqlite(test: impl AsyncFnOnce(&TestDatabase)) {
    let database = TestDatabase::sqlite();
    test(&database).await;
    database.remove().await;
}

/// Runs a test with an empty database of PostgreSQL, if there is one.
pub(crate) async fn postgres(test: impl AsyncFnOnce(&TestDatabase)) {
    let Some(database) = TestDatabase::postgres().await else { return };
    test(&database).await;
    database.remove().await;
}

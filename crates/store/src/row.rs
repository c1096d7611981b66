//! How values are stored in columns, and how rows become structs.
//!
//! A `vocab` type is stored as its text form; a time as `timestamptz`, or as an INTEGER of
//! microseconds in SQLite; a structure as JSON text. No statement may look inside the JSON, so text
//! is enough.

use jiff::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Postgres, Sqlite, Type};

use crate::error::{Cause, CorruptRow};

/// A value that is stored in one column.
pub(crate) trait Column: Sized {
    /// The type that the drivers read and write.
    type Raw;
    fn to_raw(&self) -> Self::Raw;
    fn from_raw(raw: Self::Raw) -> Result<Self, Cause>;
}

/// The value to bind for `value`.
pub(crate) fn put<T: Column>(value: &T) -> T::Raw {
    value.to_raw()
}

impl<T: Column> Column for Option<T> {
    type Raw = Option<T::Raw>;
    fn to_raw(&self) -> Self::Raw {
        self.as_ref().map(T::to_raw)
    }
    fn from_raw(raw: Self::Raw) -> Result<Self, Cause> {
        raw.map(T::from_raw).transpose()
    }
}

macro_rules! plain {
    ($($kind:ty),*) => {$(
        impl Column for $kind {
            type Raw = $kind;
            fn to_raw(&self) -> $kind {
                self.clone()
            }
            fn from_raw(raw: $kind) -> Result<Self, Cause> {
                Ok(raw)
            }
        }
    )*};
}
plain!(i64, bool, String, Vec<u8>);

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Column for $kind {
            type Raw = i64;
            fn to_raw(&self) -> i64 {
                // Both engines store 63 bits; our counts and sizes never come near.
                i64::try_from(*self).unwrap_or(i64::MAX)
            }
            fn from_raw(raw: i64) -> Result<Self, Cause> {
                Ok(Self::try_from(raw)?)
            }
        }
    )*};
}
numbers!(u16, u32, u64);

/// Types that are stored in their text form (`Display` and `FromStr`).
macro_rules! via {
    ($($kind:ty),* $(,)?) => {$(
        impl $crate::row::Column for $kind {
            type Raw = String;
            fn to_raw(&self) -> String {
                self.to_string()
            }
            fn from_raw(raw: String) -> Result<Self, $crate::error::Cause> {
                Ok(raw.parse()?)
            }
        }
    )*};
}
pub(crate) use via;

/// Structures that are stored as JSON text.
macro_rules! json {
    ($($kind:ty),* $(,)?) => {$(
        impl $crate::row::Column for $kind {
            type Raw = String;
            fn to_raw(&self) -> String {
                $crate::row::to_json(self)
            }
            fn from_raw(raw: String) -> Result<Self, $crate::error::Cause> {
                Ok(serde_json::from_str(&raw)?)
            }
        }
    )*};
}

/// Serializes one of our types. A type that cannot be serialized is a bug, which its first test
/// finds.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our types serialize to JSON")
}

via!(
    vocab::BatchId,
    vocab::DeliveryId,
    vocab::EventId,
    vocab::FreezeId,
    vocab::PolicyId,
    vocab::NotificationRuleId,
    vocab::WebhookId,
    vocab::ViewId,
    vocab::KeyId,
    vocab::OrgId,
    vocab::RunId,
    vocab::ScheduleId,
    vocab::ServerId,
    vocab::SessionId,
    vocab::TaskId,
    vocab::TokenId,
    vocab::UserId,
    vocab::SuppressionId,
    vocab::Cron,
    vocab::Environment,
    vocab::Hostname,
    vocab::PackageManager,
    vocab::Role,
    vocab::SkipReason,
    vocab::Zone,
);
json!(
    serde_json::Value,
    Vec<String>,
    Vec<vocab::Environment>,
    Vec<vocab::Tag>,
    vocab::Os,
    vocab::Selector,
    Vec<domain::rollout::pins::PinnedVersion>,
    domain::advisory::Epss,
    domain::advisory::KevEntry,
    std::collections::BTreeMap<String, u64>,
    std::collections::BTreeMap<u32, std::collections::BTreeMap<String, u64>>,
    std::collections::BTreeMap<vocab::Severity, u32>,
    std::collections::BTreeMap<vocab::Assessment, u64>,
    std::collections::BTreeSet<u32>,
    Vec<domain::policy::Rule>,
    domain::rollout::RolloutHead,
    domain::rollout::TaskHealth,
    domain::rollout::TaskStatus,
);

impl Column for vocab::Digest {
    type Raw = Vec<u8>;
    fn to_raw(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
    fn from_raw(raw: Vec<u8>) -> Result<Self, Cause> {
        let bytes =
            <[u8; 32]>::try_from(raw).map_err(|raw| format!("{} bytes, not 32", raw.len()))?;
        Ok(Self::from_bytes(bytes))
    }
}

/// A time in microseconds: `timestamptz` on PostgreSQL, INTEGER on SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimestampMicros(i64);

/// Microseconds between the Unix epoch (1970) and PostgreSQL's epoch (2000).
pub(crate) const EPOCH_2000_MICROS: i64 = 946_684_800_000_000;
const TIMESTAMPTZ: PgTypeInfo = PgTypeInfo::with_oid(Oid(1184));

impl Column for Timestamp {
    type Raw = TimestampMicros;
    fn to_raw(&self) -> TimestampMicros {
        TimestampMicros(self.as_microsecond())
    }
    fn from_raw(raw: TimestampMicros) -> Result<Self, Cause> {
        Ok(Timestamp::from_microsecond(raw.0)?)
    }
}

impl Type<Sqlite> for TimestampMicros {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }
    fn compatible(found: &SqliteTypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(found)
    }
}

impl Encode<'_, Sqlite> for TimestampMicros {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Sqlite>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for TimestampMicros {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        <i64 as Decode<Sqlite>>::decode(value).map(Self)
    }
}

impl Type<Postgres> for TimestampMicros {
    fn type_info() -> PgTypeInfo {
        TIMESTAMPTZ
    }
}

impl Encode<'_, Postgres> for TimestampMicros {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Postgres>>::encode(self.0.saturating_sub(EPOCH_2000_MICROS), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for TimestampMicros {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let since_2000 = <i64 as Decode<Postgres>>::decode(value)?;
        since_2000
            .checked_add(EPOCH_2000_MICROS)
            .map(Self)
            .ok_or_else(|| "a time at infinity".into())
    }
}

/// Adds the table and the id to the error of a row that cannot be decoded.
pub(crate) fn corrupt(table: &'static str, id: Option<String>, error: sqlx::Error) -> sqlx::Error {
    let id = id.unwrap_or_else(|| "?".to_owned());
    sqlx::Error::Decode(Box::new(CorruptRow { table, id, source: Box::new(error) }))
}

/// Parses a value that was read alone, without a row.
pub(crate) fn parse<T: std::str::FromStr<Err: Into<Cause>>>(
    table: &'static str,
    text: String,
) -> crate::Result<T> {
    text.parse().map_err(|cause: T::Err| crate::StoreError::Corrupt {
        table,
        source: cause.into(),
        id: text,
    })
}

pub(crate) fn decode_error(column: &'static str, source: Cause) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source }
}

/// Defines a struct, its list of columns, and its conversion from the rows of both drivers.
///
/// `in "table"` and `by "column"` name the table and the id column in the error of a corrupt row.
macro_rules! row {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $table:literal by $key:literal {
            $(#[$first_meta:meta])* $first_vis:vis $first:ident: $first_kind:ty,
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $(#[$first_meta])* $first_vis $first: $first_kind,
            $($(#[$field_meta])* $field_vis $field: $kind,)*
        }

        impl $name {
            pub(crate) const COLUMNS: &'static str =
                concat!(stringify!($first), $(", ", stringify!($field)),*);
        }

        $crate::row::row! {
            @read sqlx::sqlite::SqliteRow, $name, $table, $key,
            $first: $first_kind $(, $field: $kind)*
        }
        $crate::row::row! {
            @read sqlx::postgres::PgRow, $name, $table, $key,
            $first: $first_kind $(, $field: $kind)*
        }
    };
    (@read $row:ty, $name:ident, $table:literal, $key:literal, $($field:ident: $kind:ty),*) => {
        impl<'r> sqlx::FromRow<'r, $row> for $name {
            fn from_row(row: &'r $row) -> Result<Self, sqlx::Error> {
                let read = || -> Result<Self, sqlx::Error> {
                    Ok(Self {$(
                        $field: {
                            let raw = sqlx::Row::try_get(row, stringify!($field))?;
                            <$kind as $crate::row::Column>::from_raw(raw)
                                .map_err(|cause| $crate::row::decode_error(stringify!($field), cause))?
                        },
                    )*})
                };
                let id = || sqlx::Row::try_get(row, $key).ok();
                read().map_err(|error| $crate::row::corrupt($table, id(), error))
            }
        }
    };
}
pub(crate) use row;

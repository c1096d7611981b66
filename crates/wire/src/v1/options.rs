//! How an order is to be carried out: in a schedule under `options`, in a batch and in a single
//! server's patch at the top level.

use serde::{Deserialize, Serialize};
use vocab::{PackageName, PackagePattern, Portion, RebootPolicy};

/// Writes the same ten fields into each body that has them. (`serde(flatten)` would do so too, but
/// cannot refuse unknown fields.)
macro_rules! with_options {
    (
        $(#[$doc:meta])*
        pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Exact names; none means every available update.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<vocab::PackageName>>, max_items = 1_000))]
            pub packages: Option<Vec<String>>,
            /// Names or globs never to touch.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<vocab::PackagePattern>>, max_items = 1_000))]
            pub exclude: Option<Vec<String>>,
            /// Only updates that fix security flaws.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub security_only: Option<bool>,
            /// A reboot policy.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<vocab::RebootPolicy>))]
            pub reboot: Option<String>,
            /// The least time between two servers' starts.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_440))]
            pub stagger_minutes: Option<i64>,
            /// How many servers may be in work at once.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
            pub max_parallel: Option<i64>,
            /// How many servers go first and must succeed.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub canary: Option<vocab::Portion>,
            /// At how many failed servers the batch halts by itself.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_failures: Option<vocab::Portion>,
            /// How long after the start servers may still start.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 40_320))]
            pub window_minutes: Option<i64>,
            /// Report the transaction and change nothing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_run: Option<bool>,
        }
    };
}
pub(super) use with_options;

with_options! {
    /// The `options` of a schedule, as they are asked for.
    pub struct OptionsRequest {}
}

macro_rules! takes_options {
    ($name:ty) => {
        impl $name {
            /// Only how it is to be carried out.
            pub fn options(&self) -> crate::v1::OptionsRequest {
                crate::v1::OptionsRequest {
                    packages: self.packages.clone(),
                    exclude: self.exclude.clone(),
                    security_only: self.security_only,
                    reboot: self.reboot.clone(),
                    stagger_minutes: self.stagger_minutes,
                    max_parallel: self.max_parallel,
                    canary: self.canary,
                    max_failures: self.max_failures,
                    window_minutes: self.window_minutes,
                    dry_run: self.dry_run,
                }
            }
        }
    };
}
pub(super) use takes_options;

/// How an order is carried out, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Options {
    /// Exact names; none means every available update.
    pub packages: Vec<PackageName>,
    /// Names or globs never to touch.
    pub exclude: Vec<PackagePattern>,
    /// Only updates that fix security flaws.
    pub security_only: bool,
    /// Whether servers may be rebooted.
    pub reboot: RebootPolicy,
    /// The least time between two servers' starts.
    pub stagger_minutes: u32,
    /// How many servers may be in work at once.
    pub max_parallel: Option<u32>,
    /// How many servers go first and must succeed.
    pub canary: Portion,
    /// At how many failed servers the batch halts by itself.
    pub max_failures: Option<Portion>,
    /// How long after the start servers may still start.
    pub window_minutes: Option<u32>,
    /// Report the transaction and change nothing.
    pub dry_run: bool,
}

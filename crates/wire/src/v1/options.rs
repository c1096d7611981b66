//! Patch options: under `options` in a schedule, at the top level in a batch and in the patch
//! request of a single server.

use serde::{Deserialize, Serialize};
use vocab::{HealthMode, PackageName, PackagePattern, Portion, RebootPolicy, Wave};

/// Adds the same option fields to each request body that has them. (`serde(flatten)` would do
/// the same, but cannot reject unknown fields.)
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
            /// Package names; an empty list means all available updates.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<vocab::PackageName>>, max_items = 1_000))]
            pub packages: Option<Vec<String>>,
            /// Package names or globs to exclude.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<vocab::PackagePattern>>, max_items = 1_000))]
            pub exclude: Option<Vec<String>>,
            /// Install security updates only.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub security_only: Option<bool>,
            /// Reboot policy.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<vocab::RebootPolicy>))]
            pub reboot: Option<String>,
            /// Minimum number of minutes between the starts of two servers.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_440))]
            pub stagger_minutes: Option<i64>,
            /// Maximum number of servers in progress at a time.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
            pub max_parallel: Option<i64>,
            /// Number or percentage of servers that go first and must succeed.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub canary: Option<vocab::Portion>,
            /// Waves, in order; servers that no wave covers are the last wave. Not together with
            /// `canary`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(max_items = 20))]
            pub waves: Option<Vec<crate::v1::WaveRequest>>,
            /// Number or percentage of failed servers at which the batch halts.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_failures: Option<vocab::Portion>,
            /// Minutes after the start of the batch during which servers can start.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 40_320))]
            pub window_minutes: Option<i64>,
            /// Reason for which freezes are ignored. Requires the role `admin`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
            pub override_freeze: Option<String>,
            /// Whether later waves install exactly the versions that the first wave installed. Needs
            /// `canary` or at least two waves.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub pin_versions: Option<bool>,
            /// What the batch does about the health of its servers: `off`, `report` (measured and
            /// shown), or `gate` (a wave passes only if it is healthy).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(value_type = Option<vocab::HealthMode>))]
            pub health: Option<String>,
            /// Number or percentage (rounded down) of the servers of each wave that may become
            /// unhealthy before the batch halts. Only with `gate`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_unhealthy: Option<vocab::Portion>,
            /// Report what would be installed, without changing anything.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_run: Option<bool>,
        }
    };
}
pub(super) use with_options;

with_options! {
    /// The `options` of a schedule, as sent by a client.
    pub struct OptionsRequest {}
}

/// A wave: servers that are patched before the next ones, as sent by a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WaveRequest {
    /// Number or percentage of servers. Only the last wave may omit it: it takes the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Portion>,
    /// Minutes between the end of the last server of this wave and the start of the next wave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 10_080))]
    pub soak_minutes: Option<i64>,
    /// Whether this wave starts only after someone other than the creator has approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<bool>,
}

impl From<Wave> for WaveRequest {
    fn from(wave: Wave) -> WaveRequest {
        WaveRequest {
            size: wave.size,
            soak_minutes: Some(i64::from(wave.soak_minutes)),
            approval: Some(wave.approval),
        }
    }
}

macro_rules! takes_options {
    ($name:ty) => {
        impl $name {
            /// Returns the option fields alone.
            pub fn options(&self) -> crate::v1::OptionsRequest {
                crate::v1::OptionsRequest {
                    packages: self.packages.clone(),
                    exclude: self.exclude.clone(),
                    security_only: self.security_only,
                    reboot: self.reboot.clone(),
                    stagger_minutes: self.stagger_minutes,
                    max_parallel: self.max_parallel,
                    canary: self.canary,
                    waves: self.waves.clone(),
                    max_failures: self.max_failures,
                    window_minutes: self.window_minutes,
                    override_freeze: self.override_freeze.clone(),
                    pin_versions: self.pin_versions,
                    health: self.health.clone(),
                    max_unhealthy: self.max_unhealthy,
                    dry_run: self.dry_run,
                }
            }
        }
    };
}
pub(super) use takes_options;

/// Patch options, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Options {
    /// Package names; an empty list means all available updates.
    pub packages: Vec<PackageName>,
    /// Package names or globs to exclude.
    pub exclude: Vec<PackagePattern>,
    /// Install security updates only.
    pub security_only: bool,
    /// Reboot policy.
    pub reboot: RebootPolicy,
    /// Minimum number of minutes between the starts of two servers.
    pub stagger_minutes: u32,
    /// Maximum number of servers in progress at a time.
    pub max_parallel: Option<u32>,
    /// Number or percentage of servers that go first and must succeed.
    pub canary: Portion,
    /// Waves as requested; empty if there are none.
    #[serde(default)]
    pub waves: Vec<Wave>,
    /// Number or percentage of failed servers at which the batch halts.
    pub max_failures: Option<Portion>,
    /// Minutes after the start of the batch during which servers can start.
    pub window_minutes: Option<u32>,
    /// Reason for which freezes are ignored.
    #[serde(default)]
    pub override_freeze: Option<String>,
    /// Whether later waves install exactly the versions that the first wave installed.
    #[serde(default)]
    pub pin_versions: bool,
    /// What the batch does about the health of its servers.
    #[serde(default)]
    pub health: HealthMode,
    /// Number or percentage (rounded down) of the servers of each wave that may become unhealthy.
    #[serde(default = "none_unhealthy")]
    pub max_unhealthy: Portion,
    /// Report what would be installed, without changing anything.
    pub dry_run: bool,
}

fn none_unhealthy() -> Portion {
    Portion::Count(0)
}

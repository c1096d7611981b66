//! OpenAPI schemas of the value types. Compiled only with the feature `openapi`.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

fn text(description: &str, example: Value) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
        .examples([example])
}

/// A schema format, for text that a pattern cannot describe.
fn format(name: &str) -> SchemaFormat {
    SchemaFormat::Custom(name.to_owned())
}

macro_rules! named {
    ($($word:ident => $schema:expr;)*) => {$(
        impl PartialSchema for crate::$word {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for crate::$word {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($word))
            }
        }
    )*};
}

macro_rules! id_schemas {
    ($($id:ident $noun:literal;)*) => {
        named! {$(
            $id => text(
                concat!("ID of ", $noun, "."),
                json!(format!("{}_01jcqk3m8ye0fr5cq0k6s8v2xw", crate::$id::PREFIX)),
            )
            .pattern(Some(format!("^{}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$", crate::$id::PREFIX)));
        )*}
    };
}

macro_rules! word_schemas {
    ($($word:ident $description:literal;)*) => {
        named! {$(
            $word => ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some($description))
                .enum_values(Some(crate::$word::ALL.iter().map(|word| word.as_str())));
        )*}
    };
}

id_schemas! {
    ServerId "a server";
    ScheduleId "a schedule";
    FreezeId "a freeze";
    PolicyId "a policy";
    RunId "a run of a schedule";
    BatchId "a batch";
    TaskId "a task, which is the part of a batch for one server";
    OrgId "an organization";
    KeyId "an API key";
    TokenId "an enrollment token";
    WebhookId "a webhook";
    DeliveryId "a delivery to a webhook";
    SuppressionId "a suppression";
    EventId "an event";
    UserId "a user";
    FeedId "a feed";
}

word_schemas! {
    Severity "Severity of a vulnerability, as rated by the distribution.";
    UpdateType "Type of an update.";
    RebootPolicy "Whether a server may be rebooted after its updates: `never`; `if_required`: reboot if the system requires it, even if it already did before the updates; `always`; `services_only`: restart the services that run old code, but never reboot.";
    HealthMode "What a batch does about the health of its servers: not measured (`off`); measured and shown (`report`); a wave passes only if its servers are healthy (`gate`).";
    HealthState "Health of a server after a change: nothing is worse than before (`healthy`); something is (`degraded`); the agent could not measure it (`not_measured`).";
    HealthProblemKind "What is worse than before: a systemd unit failed or is not active, nothing listens on a port, a health hook fails, the boot is not complete, or something that only a newer version knows.";
    Role "Permissions of a caller: `viewer` reads; `operator` also patches and refreshes servers, and runs and edits schedules; `admin` also removes servers and manages keys and tokens.";
    Status "Whether the server's agent is connected (`online`) or not (`offline`).";
    Assessment "Whether the CVEs of a server are known: all packages were matched (`assessed`); some packages or the kernel could not be matched (`partial`); no imported feed covers its system (`no_feed`); it has not reported its packages, or they are not matched yet (`not_scanned`).";
    UnassessedReason "Why the CVEs of a package are not known: it does not come from the distribution (`third_party`); its version cannot be compared (`unknown_version`); the advisories do not name its module stream (`unknown_module`); the running kernel belongs to no installed package (`foreign_kernel`).";
    ComplianceState "Where a server stands with a policy: nothing is overdue, and nothing is due within 48 hours (`compliant`); the next update is due within 48 hours (`due_soon`); an update is overdue (`breaching`); it cannot be determined (`unknown`). An `unknown` server is never counted as compliant.";
    UnknownCompliance "Why it cannot be determined whether a server complies: it has not reported its packages, or they are not matched yet (`not_scanned`); no imported feed covers its system (`no_feed`); its last scan is too old (`stale`).";
    BlockedBy "Why a pending update would not be installed.";
    SkipReason "Why a run was skipped: the previous run had not finished (`overlap`), the service was down and came back too late (`missed`), no server matched the schedule's targets (`no_servers`), or all servers that matched were frozen (`freeze`).";
    PatchState "Where an update or a CVE on a server stands: nothing is pending (`up_to_date`); the update is installed, but the old code still runs (`waiting_for_restart`); a batch installs it (`in_progress`); a schedule will install it (`scheduled`); nothing will install it (`unscheduled`); there is no update (`no_fix`); something prevents the installation (`blocked`); it cannot be determined (`unknown`).";
    ReasonCode "Why an update or a CVE on a server is not patched. More reasons may be added.";
    PackageManager "Package manager.";
    FailureCode "Why a task did not succeed, as a code from a closed list.";
    Stage "Stage of a task.";
}

named! {
    Environment => text("Environment of a server. Letters, digits and `- _ .`", json!("production"))
        .min_length(Some(1)).max_length(Some(crate::Environment::CHARS_MAX))
        .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]*$"));
    Tag => text("Tag on a server. Letters, digits and `- _ . : / = @ +`", json!("team:shop"))
        .min_length(Some(1)).max_length(Some(crate::Tag::CHARS_MAX))
        .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._:/=@+-]*$"));
    Hostname => text("Host name, as reported by the server.", json!("web-1.example.org"))
        .min_length(Some(1)).max_length(Some(crate::Hostname::CHARS_MAX));
    Line => text("One line of text, as reported by the server's agent.", json!("6.1.0-18-amd64"));
    PackageName => text("Exact package name, without version and architecture.", json!("openssl"))
        .min_length(Some(1)).max_length(Some(128))
        .pattern(Some("^[A-Za-z0-9_]([A-Za-z0-9@+._-]*[A-Za-z0-9@+._])?$"));
    PackagePattern => text("Package name, or a pattern in which `*` matches any characters and `?` matches one; at most eight `*`.", json!("linux-image-*"))
        .min_length(Some(1)).max_length(Some(128))
        .pattern(Some(r"^[A-Za-z0-9@+._?-]*(\*[A-Za-z0-9@+._?-]*){0,8}$"));
    Cron => text("Five fields (minute, hour, day of month, month, day of week) with names, ranges, lists, steps, `L`, `W` and `#`; or `@hourly`, `@daily`, `@weekly`, `@monthly`.", json!("0 3 * * SUN"))
        .format(Some(format("cron")));
    Zone => text("IANA name of a time zone.", json!("Europe/Berlin")).format(Some(format("iana-time-zone")));
    OsFilter => text("Operating system: its id, or its id and version.", json!("debian 12"))
        .min_length(Some(1)).max_length(Some(129))
        .pattern(Some(r"^[ \t\n\f\r]*[A-Za-z0-9._+~-]+([ \t\n\f\r]+[A-Za-z0-9._+~-]+)?[ \t\n\f\r]*$"));
    Portion => OneOfBuilder::new()
        .description(Some("Number of servers, or a percentage of them, rounded up."))
        .item(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(u32::MAX)))
        .item(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(100|[1-9][0-9]?)%$")))
        .examples([json!(1), json!("10%")]);
    Wave => ObjectBuilder::new()
        .description(Some("A wave: servers that are patched before the next ones."))
        .property("size", OneOfBuilder::new()
            .description(Some("Number or percentage of servers; null: the rest."))
            .item(ObjectBuilder::new().schema_type(Type::Null))
            .item(Ref::from_schema_name("Portion")))
        .property("soak_minutes", ObjectBuilder::new().schema_type(Type::Integer)
            .description(Some("Minutes between the end of its last server and the start of the next wave."))
            .minimum(Some(0)).maximum(Some(crate::Wave::SOAK_MINUTES_MAX)))
        .property("approval", ObjectBuilder::new().schema_type(Type::Boolean)
            .description(Some("Whether someone other than the creator must approve it before it starts.")))
        .required("size").required("soak_minutes").required("approval");
    Os => ObjectBuilder::new()
        .description(Some("Operating system, as named by `/etc/os-release`."))
        .property("id", text("", json!("debian")).description(None::<String>))
        .property("version", text("", json!("12")).description(None::<String>))
        .property("name", text("", json!("Debian GNU/Linux 12 (bookworm)")).description(None::<String>))
        .required("id").required("version").required("name");
    Selector => ObjectBuilder::new()
        .description(Some("Selects the servers that match all of the given selectors. At least one is required. To select every server, use `{\"all\": true}` and no other selector."))
        .property("environment", Ref::from_schema_name("Environment"))
        .property("os", Ref::from_schema_name("OsFilter"))
        .property("tags", ArrayBuilder::new().items(Ref::from_schema_name("Tag"))
            .min_items(Some(1)).max_items(Some(crate::Selector::TAGS_MAX)))
        .property("server_ids", ArrayBuilder::new().items(Ref::from_schema_name("ServerId"))
            .min_items(Some(1)).max_items(Some(crate::Selector::SERVER_IDS_MAX)))
        .property("all", ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true])))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .examples([json!({"environment": "production"}), json!({"all": true})]);
}

//! The words as OpenAPI describes them. Only for whoever makes the document: the feature `openapi`.

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

/// What kind of text, where a pattern cannot say it.
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
                concat!("The id of ", $noun, "."),
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
    RunId "a run of a schedule";
    BatchId "a batch";
    TaskId "a task: the part of a batch that concerns one server";
    OrgId "an organization";
    KeyId "an API key";
    TokenId "an enrolment token";
    WebhookId "a webhook";
    SuppressionId "a suppression";
    EventId "an event";
    UserId "a person who signs in";
}

word_schemas! {
    Severity "How bad a flaw is, by the distribution's word.";
    UpdateType "What an update is for.";
    RebootPolicy "Whether a server may be rebooted after its updates: `never`; `if_required`: if the system says that it needs one, also if it did so before; `always`; `services_only`: restart the services that run old code, never the machine.";
    Role "What a caller may do: `viewer` reads; `operator` also patches, refreshes, runs and writes schedules; `admin` also removes servers and manages keys and tokens.";
    Status "Whether a server is heard from.";
    Assessment "Whether the CVEs of a server are known: all packages were matched (`assessed`); some packages or the kernel could not be matched (`partial`); no imported feed covers its system (`no_feed`); it has not reported its packages, or they are not matched yet (`not_scanned`).";
    UnassessedReason "Why the CVEs of a package are not known: it does not come from the distribution (`third_party`); its version cannot be compared (`unknown_version`); the advisories do not name its module stream (`unknown_module`); the running kernel belongs to no installed package (`foreign_kernel`).";
    BlockedBy "Why a pending update would not be installed.";
    SkipReason "Why a run was skipped: the previous run had not finished (`overlap`), the service was down and came back too late (`missed`), or no server matched the schedule's targets (`no_servers`).";
    PackageManager "The program that installs packages.";
    FailureCode "Why a task did not succeed. The list is closed.";
    Stage "How far a task is.";
}

named! {
    Environment => text("Where a server belongs. Letters, digits and `- _ .`", json!("production"))
        .min_length(Some(1)).max_length(Some(crate::Environment::CHARS_MAX))
        .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]*$"));
    Tag => text("A word hung on a server. Letters, digits and `- _ . : / = @ +`", json!("team:shop"))
        .min_length(Some(1)).max_length(Some(crate::Tag::CHARS_MAX))
        .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._:/=@+-]*$"));
    Hostname => text("What a server calls itself.", json!("web-1.example.org"))
        .min_length(Some(1)).max_length(Some(crate::Hostname::CHARS_MAX));
    Line => text("One line of text, as a server's agent tells it.", json!("6.1.0-18-amd64"));
    PackageName => text("The exact name of a package, without version and architecture.", json!("openssl"))
        .min_length(Some(1)).max_length(Some(128))
        .pattern(Some("^[A-Za-z0-9_]([A-Za-z0-9@+._-]*[A-Za-z0-9@+._])?$"));
    PackagePattern => text("A package's name, or a pattern in which `*` stands for anything, up to eight times, and `?` for one character.", json!("linux-image-*"))
        .min_length(Some(1)).max_length(Some(128))
        .pattern(Some(r"^[A-Za-z0-9@+._?-]*(\*[A-Za-z0-9@+._?-]*){0,8}$"));
    Cron => text("Five fields (minute, hour, day of month, month, day of week) with names, ranges, lists, steps, `L`, `W` and `#`; or `@hourly`, `@daily`, `@weekly`, `@monthly`.", json!("0 3 * * SUN"))
        .format(Some(format("cron")));
    Zone => text("The IANA name of a time zone.", json!("Europe/Berlin")).format(Some(format("iana-time-zone")));
    OsFilter => text("An operating system: its id, or its id and version.", json!("debian 12"))
        .min_length(Some(1)).max_length(Some(129))
        .pattern(Some(r"^[ \t\n\f\r]*[A-Za-z0-9._+~-]+([ \t\n\f\r]+[A-Za-z0-9._+~-]+)?[ \t\n\f\r]*$"));
    Portion => OneOfBuilder::new()
        .description(Some("So many servers, or a percentage of them, rounded up."))
        .item(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(u32::MAX)))
        .item(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(100|[1-9][0-9]?)%$")))
        .examples([json!(1), json!("10%")]);
    Os => ObjectBuilder::new()
        .description(Some("An operating system, as `/etc/os-release` names it."))
        .property("id", text("", json!("debian")).description(None::<String>))
        .property("version", text("", json!("12")).description(None::<String>))
        .property("name", text("", json!("Debian GNU/Linux 12 (bookworm)")).description(None::<String>))
        .required("id").required("version").required("name");
    Selector => ObjectBuilder::new()
        .description(Some("Which servers: those that match all of what is given, at least one selector; or every server with `{\"all\": true}`, which stands alone."))
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

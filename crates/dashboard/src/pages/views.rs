//! One type per page, with the values that its template needs.

use askama::Template;
use jiff::Timestamp;
use service::attention::{Item, Urgency};
use service::queries::freezes::FrozenUntil;
use service::queries::notifications::{EmailAddress, Rule};
use vocab::{BatchId, PatchState, Role, ScheduleId, SessionId, UserId, Zone};
use wire::v1::{
    Agents, ApiKey, Batch, BatchState, BatchWave, BatchWaveState, CatalogFeed, Compliance,
    ComplianceReport, Cve, CveDetail, CveSummary, Delivery, EnrollmentToken, ExplainedPackage,
    Explanation, Feed, FleetSummary, Freeze, List, Package, Patch, PatchDetail, Policy, Preview,
    Run, Schedule, Server, ServerCompliance, ServerDetail, SeverityCounts, SignedReport,
    Suppression, Task, Webhook, WebhookTest,
};

use crate::pages::activity::ActivityDay;
use crate::pages::ages::PendingAges;
use crate::pages::calendar::Calendar;
use crate::pages::display::Display;
use crate::pages::facets::{FacetMenu, Filters};
use crate::pages::form::{
    FeedForm, FreezeFields, InviteForm, KeyForm, NotificationForm, PatchForm, PolicyDays,
    ScheduleForm, ServersForm, SuppressionForm, TokenForm, WebhookForm,
};
use crate::pages::form_errors::FormErrors;
use crate::pages::layout::Frame;
use crate::pages::names::Names;
use crate::pages::theme::Theme;
use crate::pages::trend::Trend;
use crate::pages::webhooks::EventGroup;

macro_rules! pages {
    ($($(#[$doc:meta])* $name:ident = $path:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Template)]
        #[template(path = $path)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
    )*};
}

pages! {
    /// The sign-in page.
    SignIn = "sign_in.html" { organization: Option<String>, name: String, next: String, message: Option<String>, provider: Option<String>, }
    /// The page after an OIDC sign-in, which continues to the requested page.
    Arrived = "signed_in.html" { next: String, }
    /// The second step of a sign-in: the two-factor code.
    Code = "code.html" { next: String, ticket: String, message: Option<String>, }
    /// The user's own account.
    Account = "account.html" {
        frame: Frame,
        /// What the previous form changed.
        notice: Option<&'static str>,
        has_password: bool, password_errors: PasswordErrors, has_totp: bool, codes_left: u64,
        /// The secret of the authenticator that is being set up.
        secret: Option<String>, uri: String, message: Option<String>, sessions: Vec<SessionRow>, has_more_sessions: bool,
        theme: Theme,
    }
    /// The email address and the notification rules of the user.
    Notifications = "notifications.html" {
        frame: Frame,
        /// Whether the service can send email.
        is_configured: bool,
        address: Option<EmailAddress>, rules: Vec<Rule>,
        /// The fields of the address.
        email: String, timezone: String, errors: FormErrors,
        notice: Option<&'static str>,
        /// The result of a test message: the response of the SMTP server, or an error.
        test: Option<Result<String, String>>,
        problem_types: Vec<&'static str>,
    }
    /// A new notification rule.
    NotificationNew = "notification_new.html" {
        frame: Frame, form: NotificationForm, groups: Vec<EventGroup>, errors: FormErrors, names: Names,
        environments: Vec<String>, systems: Vec<String>,
    }
    /// The page that a link in a message opens: to confirm an address, or to unsubscribe.
    EmailLink = "email_link.html" {
        title: &'static str, text: String,
        /// The label of the button; `None` once it is done.
        button: Option<&'static str>,
    }
    /// New recovery codes, shown once.
    RecoveryCodes = "recovery_codes.html" { frame: Frame, codes: Vec<String>, was_off: bool, }
    /// The page that an invitation or reset link opens.
    Welcome = "welcome.html" { name: String, message: Option<String>, }
    /// An error while the user is not signed in.
    ProblemBare = "problem_bare.html" { title: String, detail: String, request_id: String, }
    /// An error.
    Problem = "problem.html" { frame: Frame, detail: String, errors: Vec<(String, String)>, back: String, request_id: String, }
    Overview = "overview.html" {
        frame: Frame, summary: FleetSummary, cves_by_severity: SeverityCounts, worst: Vec<CveSummary>,
        open: Vec<Batch>, next: Vec<NextRun>,
        /// The active freezes and their ends.
        frozen: Vec<(String, Timestamp)>,
        /// The figures of each policy and environment; empty without policies.
        compliance: Vec<Compliance>,
        trend: Trend, verdict: (Option<Urgency>, String), attention: Vec<Item>,
    }
    /// Results of a search over everything.
    Find = "find.html" { frame: Frame, q: String, found: Vec<Found>, }
    Servers = "servers.html" { frame: Frame, list: List<Server>, filters: Filters, menus: Vec<FacetMenu>, query: String, display: Display, }
    /// The form that changes several servers.
    ServersEdit = "servers_edit.html" { frame: Frame, form: ServersForm, names: Names, environments: Vec<String>, errors: FormErrors, }
    /// The form with the environment and the tags of a server.
    ServerEdit = "server_edit.html" {
        frame: Frame, id: String, name: String, hostname: String, form: crate::servers::ServerForm, shown: String,
        environments: Vec<String>, errors: FormErrors,
    }
    ServerPage = "server.html" { frame: Frame, tab: ServerTab, it: ServerDetail, history: List<HistoryRow>, can_upgrade_agent: bool, frozen: Option<FrozenUntil>, policies: Vec<ServerCompliance>, }
    /// Why an update or a CVE on a server is not patched.
    ExplanationPage = "explanation.html" { frame: Frame, it: Explanation, tab: ServerTab, }
    Patches = "patches.html" { frame: Frame, list: List<Patch>, filters: Filters, menus: Vec<FacetMenu>, query: String, ages: PendingAges, display: Display, }
    PatchPage = "patch.html" { frame: Frame, it: PatchDetail, }
    Cves = "cves.html" {
        frame: Frame, list: List<CveSummary>, filters: Filters, menus: Vec<FacetMenu>, query: String, importing: Vec<Feed>,
        explanation: &'static str, display: Display,
    }
    CvePage = "cve.html" { frame: Frame, it: CveDetail, suppressions: Vec<Suppression>, importing: Vec<Feed>, }
    /// The form that suppresses a CVE.
    Suppress = "suppress.html" {
        frame: Frame, cve: String, environments: Vec<(String, String)>, packages: Vec<(String, String)>,
        form: SuppressionForm, errors: FormErrors,
    }
    Batches = "batches.html" { frame: Frame, list: List<Batch>, menus: Vec<FacetMenu>, query: String, names: Names, display: Display, }
    BatchPage = "batch.html" {
        frame: Frame, it: Batch, tasks: List<Task>,
        /// The timeline as HTML; empty if the tasks are filtered.
        timeline: String,
        /// Whether the page shows only some servers.
        is_part: bool,
        state: String, failed: Vec<Task>, names: Names,
        /// ID of the user.
        viewer: String,
    }
    /// One task of a batch with its log.
    TaskPage = "task.html" { frame: Frame, batch: String, it: Task, log: String, }
    Schedules = "schedules.html" { frame: Frame, list: List<Schedule>, calendar: Calendar, }
    SchedulePage = "schedule.html" { frame: Frame, it: Schedule, runs: List<Run>, }
    /// The form of a schedule.
    ScheduleEdit = "schedule_edit.html" {
        frame: Frame, form: ScheduleForm, action: String, errors: FormErrors, next: Vec<Timestamp>, cron: String,
        zone: Zone, message: Option<String>, sentence: Option<String>, names: Names, matches: Matches,
        environments: Vec<String>, systems: Vec<String>,
        /// Whether the form was rejected because no server matches.
        is_unmatched: bool,
    }
    /// The figures per policy and environment, and the policies.
    CompliancePage = "compliance.html" { frame: Frame, list: List<Compliance>, policies: Vec<Policy>, }
    /// The servers behind a number. `query` is the query string with its question mark.
    ComplianceServersPage = "compliance_servers.html" { frame: Frame, list: List<ServerCompliance>, query: String, filters: String, }
    ComplianceReportPage = "compliance_report.html" { frame: Frame, it: ComplianceReport, signed: SignedReport, }
    /// The form of a policy. `form` has the fields that a schedule has, too.
    PolicyEdit = "policy_edit.html" {
        frame: Frame, form: ScheduleForm, days: PolicyDays, action: String, errors: FormErrors,
        names: Names, matches: Matches, environments: Vec<String>, systems: Vec<String>,
    }
    Freezes = "freezes.html" { frame: Frame, list: List<Freeze>, }
    /// The form of a freeze. `form` has the fields that a schedule has, too.
    FreezeEdit = "freeze_edit.html" {
        frame: Frame, form: ScheduleForm, fields: FreezeFields, action: String, errors: FormErrors,
        next: Vec<Timestamp>, cron: String, zone: Zone, message: Option<String>, sentence: Option<String>,
        names: Names, matches: Matches, environments: Vec<String>, systems: Vec<String>,
    }
    /// The next runs of the schedule in the form.
    NextRunsFragment = "next_runs_fragment.html" {
        next: Vec<Timestamp>, cron: String, zone: Zone, message: Option<String>, sentence: Option<String>,
    }
    /// How many servers match the selector in the form.
    MatchesFragment = "matches_fragment.html" { matches: Matches, }
    /// The patch page: options and preview.
    OrderPage = "patch_form.html" {
        frame: Frame, form: PatchForm, names: Names, previewed: Option<PreviewWithToken>, errors: FormErrors,
    }
    /// A confirmation page.
    Confirm = "confirm.html" {
        frame: Frame, errors: Vec<String>, lines: Vec<String>, previewed: Option<PreviewWithToken>, action: String,
        verb: String, back: String, risky: bool,
    }
    /// The audit log.
    Activity = "activity.html" {
        frame: Frame, days: Vec<ActivityDay>, filters: Filters, menus: Vec<FacetMenu>, chips: Vec<(String, String)>,
        query: String, newest: Option<String>, older: Option<String>, display: Display,
    }
    /// The organization and the service.
    Settings = "settings.html" {
        frame: Frame, typed_name: String, help: &'static str, id: String, created_at: Timestamp,
        /// The version of the organization that the form was loaded from.
        generation: String,
        database: &'static str, errors: FormErrors,
    }
    /// How people sign in.
    SettingsSignIn = "settings_sign_in.html" {
        frame: Frame, session_hours: i64, with_password: usize, without_totp: usize,
        /// The first people without a second factor.
        names: Vec<String>,
        provider: Option<ProviderFacts>, redirect_url: String,
    }
    /// The users.
    SettingsPeople = "settings_people.html" { frame: Frame, users: Vec<UserRow>, form: InviteForm, errors: FormErrors, }
    SettingsKeys = "settings_keys.html" { frame: Frame, keys: List<ApiKey>, form: KeyForm, errors: FormErrors, }
    SettingsTokens = "settings_tokens.html" { frame: Frame,
        tokens: List<EnrollmentToken>, form: TokenForm, environments: Vec<String>, errors: FormErrors,
    }
    SettingsAgents = "settings_agents.html" { frame: Frame, agents: Agents, }
    /// The vulnerability feeds.
    SettingsFeeds = "settings_feeds.html" {
        frame: Frame, feeds: List<Feed>, catalog: Vec<CatalogFeed>, explanation: &'static str, is_offline: bool,
        /// Whether administrators can change the feeds: no other organization uses them.
        may_manage: bool,
        form: FeedForm, errors: FormErrors,
    }
    /// Where events are sent.
    SettingsWebhooks = "settings_webhooks.html" { frame: Frame, webhooks: Vec<Webhook>, }
    /// A webhook with the log of its deliveries.
    WebhookPage = "webhook.html" {
        frame: Frame, it: Webhook, deliveries: List<Delivery>,
        /// The filter of the log.
        state: String,
        query: String, names: Names,
        /// The result of a test that was just sent.
        test: Option<WebhookTest>,
    }
    /// The form of a webhook.
    WebhookEdit = "webhook_edit.html" {
        frame: Frame, form: WebhookForm, action: String, back: String, errors: FormErrors, names: Names,
        environments: Vec<String>, systems: Vec<String>,
    }
    /// Every part that pages are made of. Only in development builds.
    Styleguide = "styleguide.html" { frame: Frame, errors: FormErrors, counts: SeverityCounts, menus: Vec<FacetMenu>, }
    /// A secret, shown once.
    Secret = "secret.html" { frame: Frame, lines: Vec<String>, secret: String, back: String, }
}

/// A result of a search over everything.
#[derive(Debug)]
pub struct Found {
    pub href: String,
    pub icon: &'static str,
    pub text: String,
    pub detail: String,
}

/// How many servers match the selector in a form.
#[derive(Debug)]
pub enum Matches {
    /// The selector is empty.
    Nothing,
    Servers {
        count: u64,
        /// The list of these servers, if its filters can express the selector.
        href: Option<String>,
    },
    Unmatched {
        reason: String,
    },
    /// The selector is not valid.
    Invalid {
        message: String,
    },
}

/// A preview and the token that starts it.
#[derive(Debug)]
pub struct PreviewWithToken {
    pub preview: Preview,
    pub token: String,
}

/// A batch in the history of a server.
#[derive(Debug)]
pub struct HistoryRow {
    pub batch: BatchId,
    pub ordered_at: Timestamp,
    pub what: String,
    pub task: Task,
}

#[derive(Debug)]
pub struct NextRun {
    pub id: ScheduleId,
    pub name: String,
    pub at: Timestamp,
    /// The freeze that covers all its servers then.
    pub freeze: Option<String>,
}

/// Why a password was not changed, by field.
#[derive(Debug, Default)]
pub struct PasswordErrors {
    pub current: Option<String>,
    pub new: Option<String>,
    pub again: Option<String>,
}

/// A session of the user.
#[derive(Debug)]
pub struct SessionRow {
    pub id: SessionId,
    /// The browser and its system.
    pub client: String,
    /// Empty if unknown.
    pub address: String,
    pub created_at: Timestamp,
    pub used_at: Timestamp,
    /// Whether it shows this page.
    pub is_this: bool,
}

/// The identity provider, without its secret.
#[derive(Debug)]
pub struct ProviderFacts {
    pub name: String,
    pub issuer: String,
    pub client_id: String,
    pub has_secret: bool,
    pub scope: String,
    pub redirect_url: String,
    /// Which claims give which role, one sentence each. Empty if the provider does not decide.
    pub roles: Vec<String>,
    pub default_role: Option<Role>,
}

/// A user on the Settings page.
#[derive(Debug)]
pub struct UserRow {
    pub id: UserId,
    pub name: String,
    pub role: Role,
    pub created_at: Timestamp,
    pub has_password: bool,
    pub is_linked: bool,
    pub has_pending_link: bool,
    pub is_self: bool,
}

/// The tabs of a server's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerTab {
    Overview,
    Updates,
    Cves,
    Packages,
    History,
}

impl ServerTab {
    /// The tab at `/servers/{id}/{path}`.
    pub fn from_path(path: &str) -> Option<ServerTab> {
        Some(match path {
            "updates" => ServerTab::Updates,
            "cves" => ServerTab::Cves,
            "packages" => ServerTab::Packages,
            "history" => ServerTab::History,
            _ => return None,
        })
    }
}

impl ExplanationPage {
    /// The tab that leads here, after the path of the server.
    fn tab_path(&self) -> &'static str {
        match self.tab {
            ServerTab::Updates => "/updates",
            ServerTab::Cves => "/cves",
            ServerTab::Overview | ServerTab::Packages | ServerTab::History => "",
        }
    }

    /// The packages with a pending update, separated by commas.
    fn updates(&self) -> String {
        let with_update = |one: &&ExplainedPackage| one.available_version.is_some();
        let names = self.it.packages.iter().filter(with_update).map(|one| one.name.as_str());
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        names.join(", ")
    }

    /// The state as a sentence.
    fn headline(&self) -> &'static str {
        match self.it.state {
            PatchState::UpToDate => "Nothing is pending.",
            PatchState::WaitingForRestart => {
                "The update is installed, but the old code still runs."
            }
            PatchState::InProgress => "A batch installs it.",
            PatchState::Scheduled => "A schedule will install it.",
            PatchState::Unscheduled => "Nothing prevents it, but nothing will install it.",
            PatchState::NoFix => "There is no update to install.",
            PatchState::Blocked => "Something prevents the installation.",
            PatchState::Unknown => "It cannot be determined.",
        }
    }
}

impl ServerPage {
    /// The path, the label and the number of rows of each tab, and whether it is shown.
    fn tabs(&self) -> Vec<(String, &'static str, Option<u64>, bool)> {
        let here = format!("/servers/{}", self.it.server.id);
        let rows = |count: usize| Some(count as u64);
        [
            (ServerTab::Overview, "", "Overview", None),
            (ServerTab::Updates, "/updates", "Updates", rows(self.pending().len())),
            (
                ServerTab::Cves,
                "/cves",
                "CVEs",
                self.it.cves_checked.then_some(self.it.cves.len() as u64),
            ),
            (ServerTab::Packages, "/packages", "Packages", rows(self.it.packages.len())),
            (ServerTab::History, "/history", "History", Some(self.history.meta.total)),
        ]
        .map(|(tab, path, label, rows)| (format!("{here}{path}"), label, rows, tab == self.tab))
        .into()
    }

    /// The number of CVEs that are known to be exploited and not suppressed.
    fn exploited(&self) -> usize {
        self.it.cves.iter().filter(|cve| cve.kev && cve.suppressed.is_none()).count()
    }

    fn needs_nothing(&self) -> bool {
        let server = &self.it.server;
        let assessed = server.assessment == vocab::Assessment::Assessed;
        let quiet = server.summary.updates == 0 && self.exploited() == 0 && assessed;
        quiet && !server.reboot_required && !server.stale && self.it.old_code.is_empty()
    }

    fn pending(&self) -> Vec<&Package> {
        self.it.packages.iter().filter(|package| package.available_version.is_some()).collect()
    }

    fn shown_cves(&self) -> &[Cve] {
        &self.it.cves[..self.it.cves.len().min(crate::pages::ROWS_MAX)]
    }
}

impl BatchPage {
    /// The number of servers that failed or timed out.
    fn failures(&self) -> u32 {
        self.it.progress.failed + self.it.progress.timed_out
    }

    /// The wave that waits for an approval.
    fn awaiting(&self) -> Option<&BatchWave> {
        self.it.waves.iter().find(|wave| wave.state == BatchWaveState::AwaitingApproval)
    }

    /// Whether the viewer started the batch.
    fn is_own(&self) -> bool {
        self.it.started_by.as_deref() == Some(self.viewer.as_str())
    }

    /// The actions that the state of the batch permits.
    fn actions(&self) -> Vec<(&'static str, String)> {
        use BatchState as S;
        let failures = self.failures();
        let cancel = ("cancel", "Cancel…".to_owned());
        match self.it.state {
            S::Scheduled | S::Running => vec![("pause", "Pause".to_owned()), cancel],
            S::Halted if failures > 0 => {
                let noun = crate::pages::plural(failures, "failure", "failures");
                vec![("resume", format!("Resume despite {failures} {noun}")), cancel]
            }
            S::Paused | S::Halted => vec![("resume", "Resume".to_owned()), cancel],
            S::AwaitingApproval => vec![("pause", "Pause".to_owned()), cancel],
            S::Canceling => vec![],
            S::Succeeded | S::CompletedWithErrors | S::Failed | S::Canceled | S::Expired => {
                if failures > 0 {
                    vec![("retry", "Retry failed…".to_owned())]
                } else {
                    vec![]
                }
            }
        }
    }
}

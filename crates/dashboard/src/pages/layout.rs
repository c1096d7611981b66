//! The frame around every page: the user, the navigation and the current time.

use jiff::Timestamp;
use vocab::Role;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Overview,
    Servers,
    Patches,
    Cves,
    Batches,
    Schedules,
    Compliance,
    Activity,
    Settings,
    Account,
    Search,
}

impl Section {
    /// The section that a path belongs to.
    pub fn from_path(path: &str) -> Section {
        let found = NAV.iter().find(|(_, start, ..)| *start != "/" && path.starts_with(start));
        found.map_or(Section::Overview, |(section, ..)| *section)
    }

    /// The path of its first page.
    pub fn path(self) -> &'static str {
        NAV.iter().find(|(section, ..)| *section == self).map_or("/", |(_, path, ..)| path)
    }

    const fn icon(self) -> &'static str {
        match self {
            Section::Overview => "overview",
            Section::Servers => "servers",
            Section::Patches => "patches",
            Section::Cves => "cves",
            Section::Batches => "batches",
            Section::Schedules => "schedules",
            Section::Compliance => "check",
            Section::Activity => "activity",
            Section::Settings => "settings",
            Section::Account | Section::Search => "search",
        }
    }
}

#[derive(Debug)]
pub struct NavItem {
    pub path: &'static str,
    pub name: &'static str,
    /// The name of its icon.
    pub icon: &'static str,
    /// Whether the current page belongs to this entry.
    pub here: bool,
}

/// Data for the frame around a page.
#[derive(Debug, Clone)]
pub struct Frame {
    pub title: String,
    pub section: Section,
    /// The name of the signed-in user.
    pub user: String,
    pub role: Role,
    /// The name of the organization.
    pub org: String,
    /// The CSRF token of every form.
    pub csrf: String,
    /// The idempotency key of forms that must take effect only once.
    pub idempotency_key: String,
    pub now: Timestamp,
    /// The path of the live updates, if the page has any.
    pub live: Option<String>,
}

const NAV: [(Section, &str, &str, Role); 9] = [
    (Section::Overview, "/", "Overview", Role::Viewer),
    (Section::Servers, "/servers", "Servers", Role::Viewer),
    (Section::Patches, "/patches", "Patches", Role::Viewer),
    (Section::Cves, "/cves", "CVEs", Role::Viewer),
    (Section::Batches, "/batches", "Batches", Role::Viewer),
    (Section::Schedules, "/schedules", "Schedules", Role::Viewer),
    (Section::Compliance, "/compliance", "Compliance", Role::Viewer),
    (Section::Activity, "/activity", "Activity", Role::Admin),
    (Section::Settings, "/settings", "Settings", Role::Admin),
];

/// How many navigation entries fit next to each other on a narrow screen.
const NARROW_MAX: usize = 6;

impl Frame {
    /// The navigation entries that the user may open.
    pub fn nav(&self) -> Vec<NavItem> {
        let open = NAV.iter().filter(|(.., role)| self.role.includes(*role));
        let item = |(section, path, name, _): &(Section, &'static str, &'static str, Role)| {
            NavItem { path, name, icon: section.icon(), here: *section == self.section }
        };
        open.map(item).collect()
    }

    /// The last navigation entries, which narrow screens show in a menu; empty if all of them fit.
    pub fn nav_overflow(&self) -> Vec<NavItem> {
        let mut all = self.nav();
        if all.len() <= NARROW_MAX { Vec::new() } else { all.split_off(NARROW_MAX - 1) }
    }

    /// Whether the current page belongs to an entry of that menu.
    pub fn is_in_overflow(&self) -> bool {
        self.nav_overflow().iter().any(|item| item.here)
    }

    /// Whether the user may patch servers.
    pub fn may_operate(&self) -> bool {
        self.role.includes(Role::Operator)
    }

    /// Whether the user may manage settings.
    pub fn is_admin(&self) -> bool {
        self.role.includes(Role::Admin)
    }

    /// A relative time such as `3 min ago`, with the exact time as tooltip.
    pub fn ago(&self, at: &Timestamp) -> String {
        let exact = at.strftime("%Y-%m-%d %H:%M:%S UTC");
        let seconds = self.now.duration_since(*at).as_secs();
        let size = seconds.unsigned_abs();
        let (count, unit) = match size {
            0..60 => (0, ""),
            60..3_600 => (size / 60, "min"),
            3_600..86_400 => (size / 3_600, "h"),
            _ => (size / 86_400, "d"),
        };
        let label = match (unit, seconds >= 0) {
            ("", true) => "just now".to_owned(),
            ("", false) => "in a moment".to_owned(),
            (unit, true) => format!("{count} {unit} ago"),
            (unit, false) => format!("in {count} {unit}"),
        };
        format!("<time data-ago datetime=\"{at}\" title=\"{exact}\">{label}</time>")
    }

    /// When something would start. A start that is due stays "immediately", however long the page
    /// is open.
    pub fn start(&self, at: &Timestamp) -> String {
        if self.now.duration_since(*at).as_secs() >= 0 {
            let exact = at.strftime("%Y-%m-%d %H:%M:%S UTC");
            format!("<time datetime=\"{at}\" title=\"{exact}\">immediately</time>")
        } else {
            self.ago(at)
        }
    }

    /// Like [`Frame::ago`], or the text `none` without a time.
    pub fn ago_or(&self, at: &Option<Timestamp>, none: &'static str) -> String {
        at.as_ref().map_or_else(|| format!("<span class=\"dim\">{none}</span>"), |at| self.ago(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(role: Role) -> Frame {
        Frame {
            title: "T".into(),
            section: Section::Servers,
            user: "ann".into(),
            role,
            org: "Acme".into(),
            csrf: "c".into(),
            idempotency_key: "o".into(),
            now: "2026-11-15T04:00:00Z".parse().unwrap(),
            live: None,
        }
    }

    #[test]
    fn time_is_relative_with_exact_tooltip() {
        let ago = |text: &str| frame(Role::Viewer).ago(&text.parse().unwrap());
        assert_eq!(
            ago("2026-11-15T03:57:00Z"),
            "<time data-ago datetime=\"2026-11-15T03:57:00Z\" title=\"2026-11-15 03:57:00 UTC\">3 min ago</time>"
        );
        for (at, expected) in [
            ("2026-11-15T03:59:59Z", ">just now<"),
            ("2026-11-14T00:00:00Z", ">1 d ago<"),
            ("2026-11-15T09:00:00Z", ">in 5 h<"),
            ("2026-11-15T04:00:09Z", ">in a moment<"),
        ] {
            assert!(ago(at).contains(expected), "{at}: {}", ago(at));
        }
    }

    #[test]
    fn due_start_reads_immediately() {
        let start = |text: &str| frame(Role::Viewer).start(&text.parse().unwrap());
        for due in ["2026-11-15T04:00:00Z", "2026-11-15T04:00:00.5Z"] {
            assert!(start(due).contains(">immediately<") && !start(due).contains("data-ago"));
        }
        assert!(start("2026-11-15T04:30:00Z").contains(">in 30 min<"));
    }

    #[test]
    fn navigation_lists_only_permitted_pages() {
        let names = |role| frame(role).nav().iter().map(|item| item.name).collect::<Vec<_>>();
        assert_eq!(names(Role::Admin).len(), 9);
        assert!(!names(Role::Operator).contains(&"Settings"));
    }

    #[test]
    fn entries_that_do_not_fit_a_narrow_screen_are_in_its_menu() {
        let shown = |role| {
            let frame = frame(role);
            let rest: Vec<_> = frame.nav_overflow().iter().map(|item| item.name).collect();
            let entries = frame.nav().len() - rest.len() + usize::from(!rest.is_empty());
            (entries <= NARROW_MAX, rest.contains(&"Settings"))
        };
        assert_eq!(shown(Role::Viewer), (true, false));
        assert_eq!(shown(Role::Admin), (true, true));
    }
}

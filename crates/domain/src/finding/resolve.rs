//! Resolves all statements about one CVE in one package to at most one decision.
//!
//! Every range is evaluated; the CVE is closed only if no range contains the installed version.
//!
//! 1. `not affected` is final: the distribution says it about this very release.
//! 2. A fix for everyone decides. If several ranges contain the version, the highest fix counts,
//!    because the earlier one was not enough.
//! 3. A fix for subscribers counts if no fix for everyone is left to install.
//! 4. Otherwise the distribution's statement about an unfixed CVE: deferred, will not fix, and so
//!    on.
//!    Such a statement has no end, so it is stale once a fix within its range is installed. A fix
//!    before the range begins does not end it: the CVE was reintroduced.
//! 5. An unreadable range gives `unknown` rather than nothing, unless a readable one decided.

use std::cmp::Ordering;

use vocab::FixState;

use crate::advisory::{Channel, Family, Span, SpanEnd};

use super::index::{IndexedCve, IndexedSpan, Statement};
use super::lookup_key::LookupUnit;
use super::version::{
    VersionRule, build_flavor, is_readable_version, kernel_series, minor_release, module_stream,
    module_token,
};

/// The position of a version relative to a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanPosition {
    Before,
    Inside,
    After,
    /// The span cannot be read.
    Unreadable,
}

pub(super) fn locate(rule: VersionRule, version: &str, span: &Span) -> SpanPosition {
    let compare = |bound: &str| match is_readable_version(rule.scheme, bound) {
        true => Some(rule.compare(version, bound)),
        false => None,
    };
    if let Some(from) = &span.from {
        match compare(from) {
            None => return SpanPosition::Unreadable,
            Some(order) if order.is_lt() => return SpanPosition::Before,
            Some(_) => {}
        }
    }
    let inside = match &span.end {
        SpanEnd::Open => Some(true),
        SpanEnd::Fixed(fixed) | SpanEnd::FixedElsewhere(fixed) => {
            compare(fixed).map(Ordering::is_lt)
        }
        SpanEnd::Last(last) => compare(last).map(Ordering::is_le),
    };
    match inside {
        None => SpanPosition::Unreadable,
        Some(true) => SpanPosition::Inside,
        Some(false) => SpanPosition::After,
    }
}

/// Whether a fix is relevant for a version: subscribers get separate fixes for each minor release.
pub(super) fn covers_stream(
    family: Family,
    statement: &Statement,
    span: &Span,
    version: &str,
) -> bool {
    match (&span.end, statement.channel) {
        (SpanEnd::Fixed(fixed), Channel::Subscription) if family.has_minor_streams() => {
            minor_release(fixed) == minor_release(version)
        }
        _ => true,
    }
}

/// The decision, and the statement that determined it.
pub(super) struct Decision<'a> {
    pub(super) state: FixState,
    /// Whether the end of the statement's span is a fix that this release has.
    pub(super) has_fix: bool,
    pub(super) statement: &'a Statement,
}

/// Everything that is needed to resolve the statements about one lookup unit under one name.
pub(super) struct MatchContext<'a> {
    family: Family,
    rule: VersionRule,
    lookup_unit: &'a LookupUnit<'a>,
    modular: bool,
    spans: &'a [IndexedSpan],
    positions: &'a [SpanPosition],
    /// Whether a statement had to be skipped, because its module stream is not known.
    pub(super) module_unknown: bool,
}

impl<'a> MatchContext<'a> {
    pub(super) fn new(
        family: Family,
        rule: VersionRule,
        lookup_unit: &'a LookupUnit<'a>,
        spans: &'a [IndexedSpan],
        hits: &'a [SpanPosition],
    ) -> Self {
        let modular = lookup_unit.is_modular();
        MatchContext {
            family,
            rule,
            lookup_unit,
            modular,
            spans,
            positions: hits,
            module_unknown: false,
        }
    }

    pub(super) fn resolve(&mut self, indexed_cve: &'a IndexedCve) -> Option<Decision<'a>> {
        let outside = |claim: &Statement| {
            matches!(self.positions[claim.span], SpanPosition::Before | SpanPosition::After)
        };
        if !self.modular && indexed_cve.statements.iter().all(outside) {
            return None;
        }
        let mut open: Option<(&str, &Statement)> = None;
        let mut subscription: Option<(&str, &Statement)> = None;
        let mut unfixed: Option<&Statement> = None;
        let mut unreadable: Option<&Statement> = None;
        for claim in &indexed_cve.statements {
            if !self.applies(claim) {
                continue;
            }
            if claim.stance == Some(FixState::NotAffected) {
                return None;
            }
            match (self.positions[claim.span], &self.spans[claim.span].span.end) {
                (SpanPosition::Before | SpanPosition::After, _) => {}
                (SpanPosition::Inside, _) if self.is_overridden(indexed_cve, claim) => {}
                (SpanPosition::Unreadable, _) => unreadable = unreadable.or(Some(claim)),
                (SpanPosition::Inside, SpanEnd::Fixed(fixed)) => {
                    let best = match claim.channel {
                        Channel::Open => &mut open,
                        Channel::Subscription => &mut subscription,
                    };
                    if best.is_none_or(|(known, _)| self.rule.compare(known, fixed).is_lt()) {
                        *best = Some((fixed, claim));
                    }
                }
                (SpanPosition::Inside, _) => {
                    // A statement that says more than "affected" is preferred.
                    if unfixed.is_none_or(|known| known.stance.is_none()) {
                        unfixed = Some(claim);
                    }
                }
            }
        }
        if let Some((_, claim)) = open {
            let state = claim.stance.unwrap_or(FixState::Fixed);
            return Some(Decision { state, has_fix: true, statement: claim });
        }
        if let Some(claim) = unreadable {
            return Some(Decision { state: FixState::Unknown, has_fix: false, statement: claim });
        }
        if let Some((_, claim)) = subscription {
            return Some(Decision {
                state: FixState::Subscription,
                has_fix: true,
                statement: claim,
            });
        }
        let claim = unfixed?;
        let state = claim.stance.unwrap_or(FixState::Affected);
        Some(Decision { state, has_fix: false, statement: claim })
    }

    /// Whether an installed fix overrides a statement whose range contains the installed version.
    ///
    /// | end of the range | overridden by |
    /// |---|---|
    /// | with a fix for everyone, or with the last affected version | nothing |
    /// | with a fix for subscribers | the fix for everyone that the same advisory names |
    /// | never, or in another release only | a fix in the range from any other statement |
    ///
    /// Red Hat maintains minor releases in parallel, so there a fix of the installed package's own
    /// minor release overrides the fixes of all others, and a subscribers' fix of another minor
    /// release overrides nothing.
    fn is_overridden(&self, indexed_cve: &IndexedCve, statement: &Statement) -> bool {
        let span = &self.spans[statement.span].span;
        if self.family.has_minor_streams()
            && let SpanEnd::Fixed(fixed) = &span.end
        {
            let ours = minor_release(self.lookup_unit.version);
            let is_passed = |other: &Statement| {
                let SpanEnd::Fixed(passed) = &self.spans[other.span].span.end else { return false };
                self.positions[other.span] == SpanPosition::After
                    && match (statement.channel, other.channel) {
                        (Channel::Subscription, Channel::Open) => true,
                        _ => ours.is_some() && minor_release(passed) == ours,
                    }
            };
            return minor_release(fixed) != ours && indexed_cve.statements.iter().any(is_passed);
        }
        let can_override = |other: &Statement| match (&span.end, statement.channel) {
            (SpanEnd::Last(_), _) | (SpanEnd::Fixed(_), Channel::Open) => false,
            (SpanEnd::Fixed(_), Channel::Subscription) => {
                other.advisory == statement.advisory && other.channel == Channel::Open
            }
            (SpanEnd::Open | SpanEnd::FixedElsewhere(_), _) => {
                other.advisory != statement.advisory || other.channel != statement.channel
            }
        };
        indexed_cve.statements.iter().any(|other| {
            can_override(other)
                && self.positions[other.span] == SpanPosition::After
                && covers_stream(
                    self.family,
                    other,
                    &self.spans[other.span].span,
                    self.lookup_unit.version,
                )
                && match (&self.spans[other.span].span.end, &span.from) {
                    (SpanEnd::Fixed(_), None) => true,
                    (SpanEnd::Fixed(fixed), Some(from)) => self.rule.compare(fixed, from).is_gt(),
                    _ => false,
                }
        })
    }

    /// Whether a statement is about the same stream of the same module, or neither side has one,
    /// and about the same build. Streams exist in parallel, and their versions cannot be compared
    /// with each other.
    fn applies(&mut self, statement: &Statement) -> bool {
        if self.family.has_parallel_builds() && !self.is_same_build(statement) {
            return false;
        }
        match (self.modular, statement.modular) {
            (false, false) => true,
            (true, true) => match (self.lookup_unit.module(), &statement.modules[..]) {
                (Some(ours), theirs @ [_, ..]) => {
                    theirs.iter().any(|theirs| module_stream(ours) == module_stream(theirs))
                }
                _ => {
                    let fixed = match &self.spans[statement.span].span.end {
                        SpanEnd::Fixed(version)
                        | SpanEnd::FixedElsewhere(version)
                        | SpanEnd::Last(version) => version,
                        SpanEnd::Open => "",
                    };
                    let tokens = module_token(self.lookup_unit.version).zip(module_token(fixed));
                    let same = tokens.is_some_and(|(ours, theirs)| ours == theirs);
                    self.module_unknown |= !same;
                    same
                }
            },
            _ => false,
        }
    }

    /// Whether a fix is for the same kernel series, and the same kind of build.
    fn is_same_build(&self, statement: &Statement) -> bool {
        let SpanEnd::Fixed(fixed) = &self.spans[statement.span].span.end else { return true };
        let ours = self.lookup_unit.version;
        build_flavor(fixed) == build_flavor(ours)
            && (!self.lookup_unit.is_kernel() || kernel_series(fixed) == kernel_series(ours))
    }
}

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

use crate::advisory::{Channel, End, Family, Span};

use super::index::{Claim, Flaw, Known};
use super::subject::Subject;
use super::version::{Rule, minor_release, module_token, readable, stream};

/// The position of a version relative to a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hit {
    Before,
    Inside,
    After,
    /// The span cannot be read.
    Unreadable,
}

pub(super) fn place(rule: Rule, version: &str, span: &Span) -> Hit {
    let compare = |bound: &str| match readable(rule.scheme, bound) {
        true => Some(rule.compare(version, bound)),
        false => None,
    };
    if let Some(from) = &span.from {
        match compare(from) {
            None => return Hit::Unreadable,
            Some(order) if order.is_lt() => return Hit::Before,
            Some(_) => {}
        }
    }
    let inside = match &span.end {
        End::Open => Some(true),
        End::Fixed(fixed) | End::FixedElsewhere(fixed) => compare(fixed).map(Ordering::is_lt),
        End::Last(last) => compare(last).map(Ordering::is_le),
    };
    match inside {
        None => Hit::Unreadable,
        Some(true) => Hit::Inside,
        Some(false) => Hit::After,
    }
}

/// Whether a fix is relevant for a version: subscribers get separate fixes for each minor release.
pub(super) fn covers_stream(family: Family, claim: &Claim, span: &Span, version: &str) -> bool {
    match (&span.end, claim.channel) {
        (End::Fixed(fixed), Channel::Subscription) if family.has_minor_streams() => {
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
    pub(super) claim: &'a Claim,
}

/// Everything that is needed to resolve the statements about one lookup unit under one name.
pub(super) struct Scene<'a> {
    family: Family,
    rule: Rule,
    subject: &'a Subject<'a>,
    modular: bool,
    spans: &'a [Known],
    hits: &'a [Hit],
    /// Whether a statement had to be skipped, because its module stream is not known.
    pub(super) module_unknown: bool,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        family: Family,
        rule: Rule,
        subject: &'a Subject<'a>,
        spans: &'a [Known],
        hits: &'a [Hit],
    ) -> Self {
        let modular = subject.is_modular();
        Scene { family, rule, subject, modular, spans, hits, module_unknown: false }
    }

    pub(super) fn decide(&mut self, flaw: &'a Flaw) -> Option<Decision<'a>> {
        let outside = |claim: &Claim| matches!(self.hits[claim.span], Hit::Before | Hit::After);
        if !self.modular && flaw.claims.iter().all(outside) {
            return None;
        }
        let mut open: Option<(&str, &Claim)> = None;
        let mut subscription: Option<(&str, &Claim)> = None;
        let mut unfixed: Option<&Claim> = None;
        let mut unreadable: Option<&Claim> = None;
        for claim in &flaw.claims {
            if !self.applies(claim) {
                continue;
            }
            if claim.stance == Some(FixState::NotAffected) {
                return None;
            }
            match (self.hits[claim.span], &self.spans[claim.span].span.end) {
                (Hit::Before | Hit::After, _) => {}
                (Hit::Inside, _) if self.is_overruled(flaw, claim) => {}
                (Hit::Unreadable, _) => unreadable = unreadable.or(Some(claim)),
                (Hit::Inside, End::Fixed(fixed)) => {
                    let best = match claim.channel {
                        Channel::Open => &mut open,
                        Channel::Subscription => &mut subscription,
                    };
                    if best.is_none_or(|(known, _)| self.rule.compare(known, fixed).is_lt()) {
                        *best = Some((fixed, claim));
                    }
                }
                (Hit::Inside, _) => {
                    // A statement that says more than "affected" is preferred.
                    if unfixed.is_none_or(|known| known.stance.is_none()) {
                        unfixed = Some(claim);
                    }
                }
            }
        }
        if let Some((_, claim)) = open {
            let state = claim.stance.unwrap_or(FixState::Fixed);
            return Some(Decision { state, has_fix: true, claim });
        }
        if let Some(claim) = unreadable {
            return Some(Decision { state: FixState::Unknown, has_fix: false, claim });
        }
        if let Some((_, claim)) = subscription {
            return Some(Decision { state: FixState::Subscription, has_fix: true, claim });
        }
        let claim = unfixed?;
        let state = claim.stance.unwrap_or(FixState::Affected);
        Some(Decision { state, has_fix: false, claim })
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
    fn is_overruled(&self, flaw: &Flaw, claim: &Claim) -> bool {
        let span = &self.spans[claim.span].span;
        if self.family.has_minor_streams()
            && let End::Fixed(fixed) = &span.end
        {
            let ours = minor_release(self.subject.version);
            let is_passed = |other: &Claim| {
                let End::Fixed(passed) = &self.spans[other.span].span.end else { return false };
                self.hits[other.span] == Hit::After
                    && match (claim.channel, other.channel) {
                        (Channel::Subscription, Channel::Open) => true,
                        _ => ours.is_some() && minor_release(passed) == ours,
                    }
            };
            return minor_release(fixed) != ours && flaw.claims.iter().any(is_passed);
        }
        let same_range_elsewhere = |other: &Claim| match (&span.end, claim.channel) {
            (End::Last(_), _) | (End::Fixed(_), Channel::Open) => false,
            (End::Fixed(_), Channel::Subscription) => {
                other.advisory == claim.advisory && other.channel == Channel::Open
            }
            (End::Open | End::FixedElsewhere(_), _) => {
                other.advisory != claim.advisory || other.channel != claim.channel
            }
        };
        flaw.claims.iter().any(|other| {
            same_range_elsewhere(other)
                && self.hits[other.span] == Hit::After
                && covers_stream(
                    self.family,
                    other,
                    &self.spans[other.span].span,
                    self.subject.version,
                )
                && match (&self.spans[other.span].span.end, &span.from) {
                    (End::Fixed(_), None) => true,
                    (End::Fixed(fixed), Some(from)) => self.rule.compare(fixed, from).is_gt(),
                    _ => false,
                }
        })
    }

    /// Whether a statement is about the same stream of the same module, or neither side has one.
    /// Streams exist in parallel, and their versions cannot be compared with each other.
    fn applies(&mut self, claim: &Claim) -> bool {
        match (self.modular, claim.modular) {
            (false, false) => true,
            (true, true) => match (self.subject.module(), &claim.modules[..]) {
                (Some(ours), theirs @ [_, ..]) => {
                    theirs.iter().any(|theirs| stream(ours) == stream(theirs))
                }
                _ => {
                    let fixed = match &self.spans[claim.span].span.end {
                        End::Fixed(version) | End::FixedElsewhere(version) | End::Last(version) => {
                            version
                        }
                        End::Open => "",
                    };
                    let tokens = module_token(self.subject.version).zip(module_token(fixed));
                    let same = tokens.is_some_and(|(ours, theirs)| ours == theirs);
                    self.module_unknown |= !same;
                    same
                }
            },
            _ => false,
        }
    }
}

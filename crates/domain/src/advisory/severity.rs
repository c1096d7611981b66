//! Severity of a vulnerability: the distribution's rating, else CVSS, else unknown.
//!
//! A distribution knows how it built a package; a CVSS score describes the software in general. So
//! the distribution's rating wins, and the source is stored with it.

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::Severity;

/// A severity rating from one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rating {
    /// The distribution's rating.
    Word(Severity),
    Cvss(CvssScore),
}

/// A CVSS vector and its score.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CvssScore {
    /// Two digits: 20, 30, 31, 40. Newer versions are greater.
    version: u8,
    tenths: u8,
    severity: Severity,
    vector: String,
}

/// Error returned when parsing a CVSS vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CVSS vector of version 2, 3 or 4")]
pub struct ScoreError(pub String);

impl CvssScore {
    /// Parses a vector of any version and computes its score.
    pub fn parse(vector: &str) -> Result<Self, ScoreError> {
        let refusal = || ScoreError(vector.chars().take(80).flat_map(char::escape_debug).collect());
        let parsed: cvss::Cvss = vector.parse().map_err(|_| refusal())?;
        let version = match parsed {
            cvss::Cvss::CvssV20(_) => 20,
            cvss::Cvss::CvssV30(_) => 30,
            cvss::Cvss::CvssV31(_) => 31,
            cvss::Cvss::CvssV40(_) => 40,
            _ => return Err(refusal()),
        };
        // The parser reads missing metrics as "none", so an incomplete vector would be rated as
        // harmless.
        let metrics: &[&str] = match version {
            20 => &["AV", "AC", "Au", "C", "I", "A"],
            30 | 31 => &["AV", "AC", "PR", "UI", "S", "C", "I", "A"],
            _ => &["AV", "AC", "AT", "PR", "UI", "VC", "VI", "VA", "SC", "SI", "SA"],
        };
        let has = |metric: &&str| {
            vector.split('/').any(|part| part.split_once(':').is_some_and(|(m, _)| m == *metric))
        };
        if !metrics.iter().all(has) {
            return Err(refusal());
        }
        let tenths = (parsed.score() * 10.0).round() as u8;
        // FIRST's scale for versions 3 and 4. Version 2 had no rating above "high"; NVD's scale for
        // it ends there, and so does this one.
        let severity = match tenths {
            90.. if version != 20 => Severity::Critical,
            70.. => Severity::High,
            40.. => Severity::Medium,
            // A score of 0 means that there is no impact. That is less than low, but it is not
            // unknown.
            _ => Severity::Low,
        };
        Ok(Self { version, tenths, severity, vector: vector.to_owned() })
    }

    pub fn score(&self) -> f64 {
        f64::from(self.tenths) / 10.0
    }

    pub fn severity(&self) -> Severity {
        self.severity
    }

    pub fn vector(&self) -> &str {
        &self.vector
    }

    /// The base metrics of the vector in words, such as `Attack vector` and `Network`.
    pub fn metrics(&self) -> Vec<(&'static str, &'static str)> {
        let parts = self.vector.split('/').filter_map(|part| part.split_once(':'));
        parts.filter_map(|(metric, value)| metric_in_words(self.version, metric, value)).collect()
    }

    /// Source of the severity: `cvss:3.1`.
    pub fn source(&self) -> &'static str {
        match self.version {
            20 => "cvss:2.0",
            30 => "cvss:3.0",
            31 => "cvss:3.1",
            _ => "cvss:4.0",
        }
    }
}

fn metric_in_words(version: u8, metric: &str, value: &str) -> Option<(&'static str, &'static str)> {
    let (name, words): (&str, &[(&str, &str)]) = match (version, metric) {
        (_, "AV") => (
            "Attack vector",
            &[("N", "Network"), ("A", "Adjacent network"), ("L", "Local"), ("P", "Physical")],
        ),
        (_, "AC") => ("Attack complexity", &[("L", "Low"), ("M", "Medium"), ("H", "High")]),
        (40, "AT") => ("Attack requirements", &[("N", "None"), ("P", "Present")]),
        (20, "Au") => ("Authentication", &[("N", "None"), ("S", "Single"), ("M", "Multiple")]),
        (30.., "PR") => ("Privileges required", &[("N", "None"), ("L", "Low"), ("H", "High")]),
        (40, "UI") => ("User interaction", &[("N", "None"), ("P", "Passive"), ("A", "Active")]),
        (30.., "UI") => ("User interaction", &[("N", "None"), ("R", "Required")]),
        (30 | 31, "S") => ("Scope", &[("U", "Unchanged"), ("C", "Changed")]),
        (20, "C" | "I" | "A") => {
            (impact(metric), &[("N", "None"), ("P", "Partial"), ("C", "Complete")])
        }
        (30 | 31, "C" | "I" | "A") | (40, "VC" | "VI" | "VA" | "SC" | "SI" | "SA") => {
            (impact(metric), &[("N", "None"), ("L", "Low"), ("H", "High")])
        }
        _ => return None,
    };
    let (_, word) = words.iter().find(|(letter, _)| *letter == value)?;
    Some((name, word))
}

fn impact(metric: &str) -> &'static str {
    match metric {
        "C" => "Confidentiality impact",
        "I" => "Integrity impact",
        "A" => "Availability impact",
        "VC" => "Confidentiality impact on the vulnerable system",
        "VI" => "Integrity impact on the vulnerable system",
        "VA" => "Availability impact on the vulnerable system",
        "SC" => "Confidentiality impact on other systems",
        "SI" => "Integrity impact on other systems",
        _ => "Availability impact on other systems",
    }
}

impl TryFrom<String> for CvssScore {
    type Error = ScoreError;
    fn try_from(vector: String) -> Result<Self, ScoreError> {
        Self::parse(&vector)
    }
}

impl From<CvssScore> for String {
    fn from(score: CvssScore) -> String {
        score.vector
    }
}

impl fmt::Display for CvssScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ({})", self.score(), self.source())
    }
}

/// Collects the ratings of one CVE in one package, and determines its severity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RatingSummary {
    /// The distribution's rating of this CVE.
    for_this_cve: Option<Severity>,
    /// The distribution's rating of an advisory that covers several CVEs.
    for_advisory: Option<Severity>,
    /// The highest score of the newest CVSS version, and whether it applies to this CVE alone.
    cvss: Option<(bool, CvssScore)>,
}

impl RatingSummary {
    /// Adds a rating. `alone`: it applies to this CVE, not to several together.
    pub fn add(&mut self, rating: &Rating, alone: bool) {
        match rating {
            Rating::Word(word) if alone => self.for_this_cve = self.for_this_cve.max(Some(*word)),
            Rating::Word(word) => self.for_advisory = self.for_advisory.max(Some(*word)),
            Rating::Cvss(score) => {
                let candidate = (alone, score.clone());
                if self.cvss.as_ref().is_none_or(|known| *known < candidate) {
                    self.cvss = Some(candidate);
                }
            }
        }
    }

    /// Returns the severity and its source; `distribution` is the name of the distribution.
    pub fn severity<'a>(&'a self, distribution: &'a str) -> (Severity, Option<&'a str>) {
        match (self.for_this_cve.or(self.for_advisory), &self.cvss) {
            (Some(word), _) => (word, Some(distribution)),
            (None, Some((_, score))) => (score.severity(), Some(score.source())),
            (None, None) => (Severity::Unknown, None),
        }
    }

    /// The CVSS score, even if it did not determine the severity.
    pub fn cvss(&self) -> Option<&CvssScore> {
        self.cvss.as_ref().map(|(_, score)| score)
    }
}

/// Parses a distribution's severity; `None` if it is not a rating.
pub fn parse_vendor_severity(text: &str) -> Option<Severity> {
    match text.to_ascii_lowercase().as_str() {
        "critical" => Some(Severity::Critical),
        "high" | "important" => Some(Severity::High),
        "medium" | "moderate" => Some(Severity::Medium),
        // Debian's "unimportant" is a state as well; as a severity it can only be the lowest.
        "low" | "negligible" | "unimportant" => Some(Severity::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cvss(vector: &str) -> Rating {
        Rating::Cvss(CvssScore::parse(vector).unwrap())
    }

    const V2: &str = "AV:N/AC:L/Au:N/C:C/I:C/A:C";
    const V3: &str = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H";
    const V4: &str = "CVSS:4.0/AV:N/AC:L/AT:P/PR:H/UI:N/VC:L/VI:N/VA:N/SC:N/SI:N/SA:N";

    #[test]
    fn base_metrics_are_explained() {
        let words = |vector: &str| CvssScore::parse(vector).unwrap().metrics();
        assert_eq!(
            words("CVSS:3.1/AV:N/AC:L/PR:N/UI:R/S:C/C:H/I:L/A:N/E:P"),
            [
                ("Attack vector", "Network"),
                ("Attack complexity", "Low"),
                ("Privileges required", "None"),
                ("User interaction", "Required"),
                ("Scope", "Changed"),
                ("Confidentiality impact", "High"),
                ("Integrity impact", "Low"),
                ("Availability impact", "None"),
            ]
        );
        let old = words("AV:L/AC:M/Au:S/C:P/I:C/A:N");
        assert_eq!(
            old[2..4],
            [("Authentication", "Single"), ("Confidentiality impact", "Partial")]
        );
        let new = words("CVSS:4.0/AV:A/AC:H/AT:P/PR:L/UI:A/VC:H/VI:N/VA:L/SC:N/SI:L/SA:H");
        assert_eq!(new.len(), 11);
        assert_eq!(new[2], ("Attack requirements", "Present"));
        assert_eq!(new[4], ("User interaction", "Active"));
        assert_eq!(new[10], ("Availability impact on other systems", "High"));
    }

    #[test]
    fn every_cvss_version_has_score_and_severity() {
        let shown = |vector: &str| {
            let score = CvssScore::parse(vector).unwrap();
            format!("{score} {}", score.severity())
        };
        assert_eq!(shown(V2), "10.0 (cvss:2.0) high");
        assert_eq!(shown(V3), "7.5 (cvss:3.1) high");
        assert_eq!(shown(&V3.replace("3.1", "3.0")), "7.5 (cvss:3.0) high");
        assert_eq!(shown(V4), "2.1 (cvss:4.0) low");
        assert_eq!(
            shown("CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:C/C:H/I:H/A:H"),
            "10.0 (cvss:3.1) critical"
        );
        for text in ["", "7.5", "CVSS:9.0/AV:N", "CVSS:3.1/AV:N", "nonsense/x"] {
            assert!(CvssScore::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn distribution_rating_overrides_cvss_and_names_its_source() {
        let mut verdict = RatingSummary::default();
        assert_eq!(verdict.severity("ubuntu"), (Severity::Unknown, None));
        verdict.add(&cvss(V3), true);
        assert_eq!(verdict.severity("ubuntu"), (Severity::High, Some("cvss:3.1")));
        verdict.add(&Rating::Word(Severity::Low), true);
        assert_eq!(verdict.severity("ubuntu"), (Severity::Low, Some("ubuntu")));
        assert_eq!(verdict.cvss().unwrap().score(), 7.5, "the score is kept");
    }

    #[test]
    fn rating_of_one_cve_overrides_rating_of_several() {
        let mut verdict = RatingSummary::default();
        verdict.add(&Rating::Word(Severity::Critical), false);
        verdict.add(&Rating::Word(Severity::Low), true);
        verdict.add(&Rating::Word(Severity::Medium), true);
        assert_eq!(verdict.severity("almalinux"), (Severity::Medium, Some("almalinux")));
    }

    #[test]
    fn highest_score_of_newest_cvss_version_counts() {
        let mut verdict = RatingSummary::default();
        for vector in [V4, V2, V3] {
            verdict.add(&cvss(vector), true);
        }
        assert_eq!(verdict.severity("debian"), (Severity::Low, Some("cvss:4.0")));
    }

    #[test]
    fn vendor_severities_are_recognized() {
        for (text, severity) in [
            ("Important", Severity::High),
            ("Moderate", Severity::Medium),
            ("negligible", Severity::Low),
            ("CRITICAL", Severity::Critical),
        ] {
            assert_eq!(parse_vendor_severity(text), Some(severity), "{text}");
        }
        assert_eq!(parse_vendor_severity("not yet assigned"), None);
    }
}

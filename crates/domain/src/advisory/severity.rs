//! How bad a flaw is: the distribution's word, else CVSS, else unknown.
//!
//! A distribution knows how it built a package; a CVSS score is about the software in general. So
//! the word wins, and who said it is kept beside it.

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::Severity;

/// What someone says of how bad a flaw is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rating {
    /// The distribution's word.
    Word(Severity),
    /// A CVSS vector.
    Cvss(CvssScore),
}

/// A CVSS vector and what it comes to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CvssScore {
    /// Two digits: 20, 30, 31, 40. Newer versions are greater.
    version: u8,
    tenths: u8,
    severity: Severity,
    vector: String,
}

/// Why a text is not a CVSS vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CVSS vector of version 2, 3 or 4")]
pub struct ScoreError(pub String);

impl CvssScore {
    /// The score of a vector, of whichever version it is.
    pub fn of(vector: &str) -> Result<Self, ScoreError> {
        let refusal = || ScoreError(vector.chars().take(80).flat_map(char::escape_debug).collect());
        let parsed: cvss::Cvss = vector.parse().map_err(|_| refusal())?;
        let version = match parsed {
            cvss::Cvss::CvssV20(_) => 20,
            cvss::Cvss::CvssV30(_) => 30,
            cvss::Cvss::CvssV31(_) => 31,
            cvss::Cvss::CvssV40(_) => 40,
            _ => return Err(refusal()),
        };
        // The parser takes what is left out for "none", and half a vector would read as harmless.
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
        // By FIRST's scale for versions 3 and 4. Version 2 had no word above "high"; NVD's scale for
        // it ends there, and so does ours.
        let severity = match tenths {
            90.. if version != 20 => Severity::Critical,
            70.. => Severity::High,
            40.. => Severity::Medium,
            // A score of 0 says that there is no impact, which is less than a low one but known.
            _ => Severity::Low,
        };
        Ok(Self { version, tenths, severity, vector: vector.to_owned() })
    }

    /// From 0 to 10.
    pub fn score(&self) -> f64 {
        f64::from(self.tenths) / 10.0
    }

    /// The word for the score.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The vector.
    pub fn vector(&self) -> &str {
        &self.vector
    }

    /// Who says so: `cvss:3.1`.
    pub fn source(&self) -> &'static str {
        match self.version {
            20 => "cvss:2.0",
            30 => "cvss:3.0",
            31 => "cvss:3.1",
            _ => "cvss:4.0",
        }
    }
}

impl TryFrom<String> for CvssScore {
    type Error = ScoreError;
    fn try_from(vector: String) -> Result<Self, ScoreError> {
        Self::of(&vector)
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

/// Gathers what is said of one flaw in one package, and says how bad it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The distribution's word on this very flaw.
    own: Option<Severity>,
    /// Its word on an advisory that is about several.
    shared: Option<Severity>,
    /// Of the newest version of CVSS, the highest; on this very flaw, or on several.
    cvss: Option<(bool, CvssScore)>,
}

impl Verdict {
    /// Takes in what is said. `alone`: it is said of this flaw, not of several together.
    pub fn hear(&mut self, rating: &Rating, alone: bool) {
        match rating {
            Rating::Word(word) if alone => self.own = self.own.max(Some(*word)),
            Rating::Word(word) => self.shared = self.shared.max(Some(*word)),
            Rating::Cvss(score) => {
                let heard = (alone, score.clone());
                if self.cvss.as_ref().is_none_or(|known| *known < heard) {
                    self.cvss = Some(heard);
                }
            }
        }
    }

    /// How bad it is, and who says so; `distribution` is what the distribution is called.
    pub fn severity<'a>(&'a self, distribution: &'a str) -> (Severity, Option<&'a str>) {
        match (self.own.or(self.shared), &self.cvss) {
            (Some(word), _) => (word, Some(distribution)),
            (None, Some((_, score))) => (score.severity(), Some(score.source())),
            (None, None) => (Severity::Unknown, None),
        }
    }

    /// The CVSS score, whether or not it decided.
    pub fn cvss(&self) -> Option<&CvssScore> {
        self.cvss.as_ref().map(|(_, score)| score)
    }
}

/// A distribution's word in ours; none where it says nothing.
pub fn severity_word(text: &str) -> Option<Severity> {
    match text.to_ascii_lowercase().as_str() {
        "critical" => Some(Severity::Critical),
        "high" | "important" => Some(Severity::High),
        "medium" | "moderate" => Some(Severity::Medium),
        // Debian's "unimportant" is a state as well; as a word it can only be the least one.
        "low" | "negligible" | "unimportant" => Some(Severity::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cvss(vector: &str) -> Rating {
        Rating::Cvss(CvssScore::of(vector).unwrap())
    }

    const V2: &str = "AV:N/AC:L/Au:N/C:C/I:C/A:C";
    const V3: &str = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H";
    const V4: &str = "CVSS:4.0/AV:N/AC:L/AT:P/PR:H/UI:N/VC:L/VI:N/VA:N/SC:N/SI:N/SA:N";

    #[test]
    fn every_version_of_cvss_has_its_score_and_its_word() {
        let shown = |vector: &str| {
            let score = CvssScore::of(vector).unwrap();
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
            assert!(CvssScore::of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_distributions_word_beats_any_score_and_the_source_is_kept() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.severity("ubuntu"), (Severity::Unknown, None));
        verdict.hear(&cvss(V3), true);
        assert_eq!(verdict.severity("ubuntu"), (Severity::High, Some("cvss:3.1")));
        verdict.hear(&Rating::Word(Severity::Low), true);
        assert_eq!(verdict.severity("ubuntu"), (Severity::Low, Some("ubuntu")));
        assert_eq!(verdict.cvss().unwrap().score(), 7.5, "the score stays beside the word");
    }

    #[test]
    fn what_is_said_of_the_flaw_itself_beats_what_is_said_of_several() {
        let mut verdict = Verdict::default();
        verdict.hear(&Rating::Word(Severity::Critical), false);
        verdict.hear(&Rating::Word(Severity::Low), true);
        verdict.hear(&Rating::Word(Severity::Medium), true);
        assert_eq!(verdict.severity("almalinux"), (Severity::Medium, Some("almalinux")));
    }

    #[test]
    fn of_several_scores_the_newest_version_counts_and_of_that_the_highest() {
        let mut verdict = Verdict::default();
        for vector in [V4, V2, V3] {
            verdict.hear(&cvss(vector), true);
        }
        assert_eq!(verdict.severity("debian"), (Severity::Low, Some("cvss:4.0")));
    }

    #[test]
    fn each_distributions_words_are_understood() {
        for (said, meant) in [
            ("Important", Severity::High),
            ("Moderate", Severity::Medium),
            ("negligible", Severity::Low),
            ("CRITICAL", Severity::Critical),
        ] {
            assert_eq!(severity_word(said), Some(meant), "{said}");
        }
        assert_eq!(severity_word("not yet assigned"), None);
    }
}

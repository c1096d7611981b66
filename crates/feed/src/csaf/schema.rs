//! The parts of the CSAF 2.0 schema that are used. All other fields are ignored.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::limits;
use crate::limits::Limit;

#[derive(Deserialize)]
pub(super) struct Csaf {
    #[serde(default)]
    pub(super) document: Option<Document>,
    /// Present in an index of documents, which has no `document`.
    #[serde(default)]
    pub(super) feed: Option<IgnoredAny>,
    /// Present in the publisher's metadata, which has no `document`.
    #[serde(default)]
    pub(super) canonical_url: Option<IgnoredAny>,
    #[serde(default)]
    pub(super) product_tree: Option<ProductTree>,
    #[serde(default)]
    pub(super) vulnerabilities: Option<Vec<Vulnerability>>,
}

#[derive(Deserialize)]
pub(super) struct Document {
    pub(super) category: String,
    pub(super) publisher: Publisher,
    pub(super) tracking: Tracking,
    #[serde(default)]
    pub(super) title: Option<String>,
    #[serde(default)]
    pub(super) aggregate_severity: Option<AggregateSeverity>,
}

#[derive(Deserialize)]
pub(super) struct Publisher {
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct Tracking {
    pub(super) id: String,
    #[serde(default)]
    pub(super) initial_release_date: Option<String>,
    #[serde(default)]
    pub(super) current_release_date: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct AggregateSeverity {
    #[serde(default)]
    pub(super) text: String,
}

#[derive(Deserialize)]
pub(super) struct ProductTree {
    #[serde(default)]
    pub(super) branches: Option<Vec<Branch>>,
    #[serde(default)]
    pub(super) full_product_names: Option<Vec<Product>>,
    #[serde(default)]
    pub(super) relationships: Option<Vec<Relationship>>,
}

/// The JSON parser limits the nesting depth of branches.
#[derive(Deserialize)]
pub(super) struct Branch {
    #[serde(default)]
    pub(super) product: Option<Product>,
    #[serde(default)]
    pub(super) branches: Option<Vec<Branch>>,
}

#[derive(Deserialize)]
pub(super) struct Product {
    pub(super) product_id: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default, rename = "product_identification_helper")]
    pub(super) helper: Option<Helper>,
}

#[derive(Deserialize)]
pub(super) struct Helper {
    #[serde(default)]
    pub(super) cpe: Option<String>,
    #[serde(default)]
    pub(super) purl: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Relationship {
    pub(super) full_product_name: ProductId,
    pub(super) product_reference: String,
    pub(super) relates_to_product_reference: String,
}

#[derive(Deserialize)]
pub(super) struct ProductId {
    pub(super) product_id: String,
}

#[derive(Deserialize)]
pub(super) struct Vulnerability {
    #[serde(default)]
    pub(super) cve: Option<String>,
    #[serde(default)]
    pub(super) title: Option<String>,
    #[serde(default)]
    pub(super) product_status: Option<ProductStatus>,
    #[serde(default)]
    pub(super) remediations: Option<Vec<Remediation>>,
    #[serde(default)]
    pub(super) scores: Option<Vec<Score>>,
    #[serde(default)]
    pub(super) threats: Option<Vec<Threat>>,
}

type ProductIds = Option<Vec<String>>;

#[derive(Deserialize)]
pub(super) struct ProductStatus {
    #[serde(default)]
    pub(super) fixed: ProductIds,
    #[serde(default)]
    pub(super) first_fixed: ProductIds,
    #[serde(default)]
    pub(super) recommended: ProductIds,
    #[serde(default)]
    pub(super) known_affected: ProductIds,
    #[serde(default)]
    pub(super) first_affected: ProductIds,
    #[serde(default)]
    pub(super) last_affected: ProductIds,
    #[serde(default)]
    pub(super) known_not_affected: ProductIds,
    #[serde(default)]
    pub(super) under_investigation: ProductIds,
}

#[derive(Deserialize)]
pub(super) struct Remediation {
    #[serde(default)]
    pub(super) category: String,
    #[serde(default)]
    pub(super) details: Option<String>,
    #[serde(default)]
    pub(super) product_ids: ProductIds,
}

#[derive(Deserialize)]
pub(super) struct Threat {
    #[serde(default)]
    pub(super) category: String,
    #[serde(default)]
    pub(super) details: String,
    #[serde(default)]
    pub(super) product_ids: ProductIds,
}

#[derive(Deserialize)]
pub(super) struct Score {
    #[serde(default)]
    cvss_v2: Option<Cvss>,
    #[serde(default)]
    cvss_v3: Option<Cvss>,
    #[serde(default)]
    cvss_v4: Option<Cvss>,
}

#[derive(Deserialize)]
struct Cvss {
    #[serde(default, rename = "vectorString")]
    vector: String,
}

impl Score {
    pub(super) fn vectors(&self) -> impl Iterator<Item = &str> {
        [&self.cvss_v4, &self.cvss_v3, &self.cvss_v2]
            .into_iter()
            .flatten()
            .map(|cvss| cvss.vector.as_str())
    }
}

impl Csaf {
    /// Checks the lengths of names and product ids, which are copied into every statement about
    /// them.
    pub(super) fn check(&self) -> Result<(), Limit> {
        let tracking = self.document.iter().map(|document| document.tracking.id.as_str());
        limits::check_names(tracking)?;
        let vulnerabilities = || self.vulnerabilities.iter().flatten();
        limits::check_names(vulnerabilities().filter_map(|one| one.cve.as_deref()))?;
        for one in vulnerabilities() {
            one.check()?;
        }
        let Some(tree) = &self.product_tree else { return Ok(()) };
        let mut branches: Vec<&Branch> = tree.branches.iter().flatten().collect();
        while let Some(branch) = branches.pop() {
            branches.extend(branch.branches.iter().flatten());
            branch.product.iter().try_for_each(Product::check)?;
        }
        tree.full_product_names.iter().flatten().try_for_each(Product::check)?;
        limits::check_names(tree.relationships.iter().flatten().flat_map(|one| {
            let id = &one.full_product_name.product_id;
            [id.as_str(), &one.product_reference, &one.relates_to_product_reference]
        }))
    }
}

impl Product {
    fn check(&self) -> Result<(), Limit> {
        let helper = self.helper.iter().flat_map(|one| [&one.cpe, &one.purl]).flatten();
        limits::check_names([self.product_id.as_str(), &self.name])?;
        limits::check_names(helper.map(String::as_str))
    }
}

impl Vulnerability {
    fn check(&self) -> Result<(), Limit> {
        let ids = |ids: &ProductIds| limits::check_names(ids.iter().flatten().map(String::as_str));
        if let Some(status) = &self.product_status {
            [
                &status.fixed,
                &status.first_fixed,
                &status.recommended,
                &status.known_affected,
                &status.first_affected,
                &status.last_affected,
                &status.known_not_affected,
                &status.under_investigation,
            ]
            .into_iter()
            .try_for_each(ids)?;
        }
        self.remediations.iter().flatten().try_for_each(|one| ids(&one.product_ids))
    }
}

//! Queries to dpkg and apt: installed packages, pending updates, and the effect of an order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, Line};

use super::policy;
use super::policy::Releases;
use super::query_cache::{CachedPackage, Fingerprint, QueryCache};
use super::{
    Apt, PackageKey, diagnose, install_args, install_args_by_name, is_valid_choice, native_arch,
    native_if_all, package_key, parse, preview, qualified_name, simulated_changes, status,
};
use crate::backend::{Backend as _, BackendError, Choice, OfferedVersion, Transaction};
use crate::command::{Command, CommandOutput};

/// Timeout of a query to dpkg or apt. Large package lists on a slow host take time.
const QUERY_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum number of package names per query, so that the arguments stay below the kernel's limit.
const NAMES_MAX: usize = 10_000;
/// Maximum number of kept-back updates that are tested separately.
const KEPT_BACK_TESTS_MAX: usize = 20;

impl Apt {
    pub(super) fn run_query(&self, command: &Command) -> Result<CommandOutput, BackendError> {
        Ok(command.query(QUERY_TIMEOUT)?)
    }

    /// The output of a query that must succeed.
    fn query_stdout(&self, command: &Command, what: &'static str) -> Result<String, BackendError> {
        let command_output = self.run_query(command)?;
        if command_output.exit == Some(0) {
            return Ok(command_output.stdout);
        }
        let output = format!("{}{}", command_output.stdout, command_output.stderr);
        Err(BackendError::Failed { what, diagnosis: self.diagnose(command_output.exit, &output) })
    }

    /// The installed packages, without their origins.
    pub(super) fn installed_packages(&self) -> Result<Vec<Installed>, BackendError> {
        if let Some(packages) = status::read_packages(&self.root)? {
            return Ok(packages.into_iter().map(|package| package.installed).collect());
        }
        let query = self.root.command("dpkg-query").args(["-W", parse::FORMAT]);
        let output = self.query_stdout(&query, "dpkg-query")?;
        let unreadable = |why| BackendError::Unreadable { what: "dpkg-query".to_owned(), why };
        parse::parse_installed(&output).map_err(unreadable)
    }

    /// The packages that dpkg marks for reinstallation.
    pub(super) fn to_reinstall(&self) -> Vec<Choice> {
        if let Ok(Some(packages)) = status::read_packages(&self.root) {
            return status::to_reinstall(&packages);
        }
        let format = "-f=${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Eflag}\\n";
        let ask = self.root.command("dpkg-query").args(["-W", format]);
        let output = self.query_stdout(&ask, "dpkg-query").unwrap_or_default();
        let messed = output.lines().filter_map(|line| {
            let [name, arch, version, "reinstreq"] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                return None;
            };
            let [name, arch, from, to] = [name, arch, version, version].map(str::to_owned);
            Some(Choice { name, arch, from, to })
        });
        messed.collect()
    }

    /// The cache, emptied if it is out of date.
    fn cache(&self) -> MutexGuard<'_, QueryCache> {
        let mut memory = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        memory.invalidate_if_changed(&self.root);
        memory
    }

    /// Queries apt about packages that are not in the cache, and removes cached packages that are
    /// gone.
    fn query_uncached(
        &self,
        cache: &mut QueryCache,
        installed: &[Installed],
    ) -> Result<(), BackendError> {
        let there: BTreeSet<PackageKey> = installed.iter().map(package_key).collect();
        cache.packages.retain(|key, _| there.contains(key));
        let new: Vec<&Installed> = installed
            .iter()
            .filter(|package| !cache.packages.contains_key(&package_key(package)))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let releases = match cache.releases.take() {
            Some(releases) => releases,
            None => self.releases()?,
        };
        for (package, known) in self.query_policy(&new)? {
            let update = known.pending(package, &releases);
            let update = update.map(|update| Box::new((update, known.is_phased())));
            let origin = known.origin(&package.version, &releases);
            cache.packages.insert(package_key(package), CachedPackage { origin, update });
        }
        for package in new {
            cache.packages.entry(package_key(package)).or_default();
        }
        (cache.releases, cache.is_dirty) = (Some(releases), true);
        Ok(())
    }

    /// What apt knows of these packages, paired with each package.
    fn query_policy<'a>(
        &self,
        installed: &[&'a Installed],
    ) -> Result<Vec<(&'a Installed, policy::PackagePolicy)>, BackendError> {
        let mut by_name: BTreeMap<String, &Installed> = BTreeMap::new();
        for package in installed {
            by_name.insert(qualified_name(package), package);
        }
        let names: Vec<&String> = by_name.keys().collect();
        let mut known = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_MAX) {
            let names = names.iter().map(|name| name.as_str());
            let ask = self.root.command("apt-cache").arg("policy").args(names);
            for package in policy::parse_policy(&self.query_stdout(&ask, "apt-cache policy")?) {
                // apt omits the native architecture.
                let mine = [package.name.clone(), format!("{}:{}", package.name, native_arch())];
                if let Some(installed) = mine.iter().find_map(|name| by_name.get(name)) {
                    known.push((*installed, package));
                }
            }
        }
        Ok(known)
    }

    /// The versions of these packages that the sources offer.
    pub(super) fn versions_in_sources(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        let named = installed.iter().filter(|package| names.contains(package.name.as_str()));
        let named: Vec<&Installed> =
            named.filter(|package| is_valid_choice(&unchanged_choice(package))).collect();
        let mut offered = Vec::new();
        for (package, policy) in self.query_policy(&named)? {
            offered.extend(policy.offered().map(|version| OfferedVersion {
                name: package.name.clone(),
                arch: package.arch.clone(),
                version: version.to_owned(),
            }));
        }
        Ok(offered)
    }

    fn releases(&self) -> Result<Releases, BackendError> {
        let ask = self.root.command("apt-cache").arg("policy");
        Ok(Releases::parse(&self.query_stdout(&ask, "apt-cache policy")?))
    }

    /// Adds the origins of packages, as far as apt knows them. If apt does not know or fails, the
    /// installed packages are still listed.
    pub(super) fn add_origins(&self, installed: &mut [Installed]) {
        let mut memory = self.cache();
        let _ = self.query_uncached(&mut memory, installed);
        for package in installed {
            let seen = memory.packages.get(&package_key(package));
            package.origin = seen.and_then(|seen| seen.origin.clone());
        }
    }

    /// All pending updates, and what blocks them.
    pub(super) fn all_pending(
        &self,
        installed: &[Installed],
    ) -> Result<Vec<Pending>, BackendError> {
        let mut memory = self.cache();
        let status = Fingerprint::from_status(&self.root);
        if let Some((then, pending)) = &memory.pending
            && *then == status
        {
            return Ok(pending.clone());
        }
        self.query_uncached(&mut memory, installed)?;
        let mut found: Vec<(Pending, bool)> = Vec::new();
        for package in installed {
            let seen = memory.packages.get(&package_key(package));
            let Some(update) = seen.and_then(|seen| seen.update.as_deref()) else { continue };
            let (mut update, is_phased) = update.clone();
            if package.held {
                update.blocked_by = Some(BlockedBy::Held);
            }
            found.push((update, is_phased));
        }
        if found.iter().any(|(update, _)| update.blocked_by.is_none()) {
            // While the package database is damaged, apt-get fails here. `damage` reports that, and
            // the list of pending updates is still useful.
            if let Ok(upgradable) = self.upgradable() {
                mark_kept_back(&mut found, &upgradable);
                self.unblock_independent(&mut found);
            }
        }
        let mut pending: Vec<Pending> = found.into_iter().map(|(update, _)| update).collect();
        vocab::listing::sort(&mut pending);
        // Cached only if nothing changed in the meantime; the caller's list was read before.
        let same = self
            .installed_packages()
            .is_ok_and(|now| now.iter().map(package_key).eq(installed.iter().map(package_key)));
        if same && Fingerprint::from_status(&self.root) == status {
            (memory.pending, memory.is_dirty) = (Some((status, pending.clone())), true);
        }
        Ok(pending)
    }

    /// The packages that `apt-get upgrade` would update if it may install new packages but remove
    /// nothing: exactly what an order may do.
    fn upgradable(&self) -> Result<BTreeSet<(String, String)>, BackendError> {
        let ask = self.root.command("apt-get");
        let ask = ask.args(["-s", "-o", "Debug::NoLocking=1", "--with-new-pkgs", "upgrade"]);
        let output = self.query_stdout(&ask, "apt-get -s upgrade")?;
        let changes = simulated_changes(&output)?;
        Ok(changes.into_iter().map(|change| (change.name, native_if_all(&change.arch))).collect())
    }

    /// `apt-get upgrade` also keeps back updates that conflict only with another kept-back update.
    /// An update that can be installed together with the unblocked ones is not kept back.
    fn unblock_independent(&self, found: &mut [(Pending, bool)]) {
        let comes = |update: &Pending| update.blocked_by.is_none();
        let mut all: Vec<Choice> =
            found.iter().map(|(update, _)| update).filter(|u| comes(u)).map(to_choice).collect();
        let kept = found.iter_mut().map(|(update, _)| update);
        let kept = kept.filter(|update| update.blocked_by == Some(BlockedBy::KeptBack));
        for update in kept.take(KEPT_BACK_TESTS_MAX) {
            all.push(to_choice(update));
            let output = self.run_query(&self.simulation_command(&["-s"]).args(install_args(&all)));
            if output.is_ok_and(|answer| answer.exit == Some(0)) {
                update.blocked_by = None;
            } else {
                all.pop();
            }
        }
    }

    /// The updates available to the packages named in an order: one simulation shows what apt would
    /// install and the whole transaction. `None` if the simulation is not sufficient: if only
    /// security updates are requested, if a package is held or has no update, if a list contains
    /// phased updates, or if the simulation fails.
    pub(super) fn preview_named(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
        security: bool,
    ) -> Result<Option<Vec<Pending>>, BackendError> {
        let named = installed.iter().filter(|package| names.contains(package.name.as_str()));
        let named: Vec<&Installed> = named.collect();
        let mut memory = self.cache();
        let plain = !security && !named.iter().any(|package| package.held);
        if named.is_empty() || !plain || memory.has_phases(&self.root) {
            return Ok(None);
        }
        let status = Fingerprint::from_status(&self.root);
        let mut chosen: Vec<Choice> =
            named.iter().map(|package| unchanged_choice(package)).collect();
        if !chosen.iter().all(is_valid_choice) {
            return Ok(None);
        }
        let output = self.run_query(&self.preview_command().args(install_args_by_name(&chosen)))?;
        let Some(transaction) = parse_transaction(&output, installed) else { return Ok(None) };
        for choice in &mut chosen {
            let is_it = |change: &&crate::backend::Change| {
                change.name == choice.name
                    && native_if_all(&change.arch) == native_if_all(&choice.arch)
            };
            let to = transaction.changes.iter().find(is_it).and_then(|change| change.to.clone());
            let Some(to) = to else { return Ok(None) };
            choice.to = to;
        }
        let offered = chosen.iter().map(|c| Pending::new(&c.name, &c.arch, &c.from, &c.to));
        let offered = offered.collect();
        chosen.sort();
        memory.previewed = Some((status, chosen, transaction));
        Ok(Some(offered))
    }

    /// The transaction for these choices.
    pub(super) fn transaction(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        let installed = self.installed_packages()?;
        let there: BTreeSet<PackageKey> = installed.iter().map(package_key).collect();
        for choice in chosen {
            let key = (choice.name.clone(), choice.arch.clone(), choice.from.clone());
            if !is_valid_choice(choice) || !there.contains(&key) {
                let (name, from) = (&choice.name, &choice.from);
                let words = format!("{name} is not installed at version {from}");
                return Err(BackendError::Conflict(Line::sanitize(&words)));
            }
        }
        if let Some((status, foreseen, transaction)) = self.cache().previewed.take()
            && foreseen == chosen
            && status == Fingerprint::from_status(&self.root)
        {
            return Ok(transaction);
        }
        let command_output = self.run_query(&self.preview_command().args(install_args(chosen)))?;
        if let Some(transaction) = parse_transaction(&command_output, &installed) {
            return Ok(transaction);
        }
        // As a plain simulation, which is sufficient if the sizes are not available.
        let command_output =
            self.run_query(&self.simulation_command(&["-s"]).args(install_args(chosen)))?;
        if command_output.exit != Some(0) {
            let output = format!("{}{}", command_output.stdout, command_output.stderr);
            return Err(BackendError::Conflict(diagnose::conflict_message(&output)));
        }
        Ok(Transaction {
            changes: simulated_changes(&command_output.stdout)?,
            ..Transaction::default()
        })
    }

    fn preview_command(&self) -> Command {
        self.simulation_command(&["--print-uris", "-V"])
    }
}

fn parse_transaction(output: &CommandOutput, installed: &[Installed]) -> Option<Transaction> {
    let is_all = |name: &str| installed.iter().any(|p| p.name == name && p.arch == "all");
    (output.exit == Some(0))
        .then(|| preview::parse_preview(&output.stdout, native_arch(), is_all).ok())?
}

/// Updates that apt-get would not install, although they are candidates, are kept back or phased.
fn mark_kept_back(found: &mut [(Pending, bool)], upgradable: &BTreeSet<(String, String)>) {
    for (update, is_phased) in found {
        let may = upgradable.contains(&(update.name.clone(), native_if_all(&update.arch)));
        if update.blocked_by.is_none() && !may {
            let phased = is_phased.then_some(BlockedBy::Phased);
            update.blocked_by = phased.or(Some(BlockedBy::KeptBack));
        }
    }
}

fn to_choice(update: &Pending) -> Choice {
    Choice {
        name: update.name.clone(),
        arch: update.arch.clone(),
        from: update.installed.clone(),
        to: update.candidate.clone(),
    }
}

/// An installed package as a choice without a change.
fn unchanged_choice(package: &Installed) -> Choice {
    Choice {
        name: package.name.clone(),
        arch: package.arch.clone(),
        from: package.version.clone(),
        to: package.version.clone(),
    }
}

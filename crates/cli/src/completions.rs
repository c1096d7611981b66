//! `fleetmend completions` and `fleetmend man`: shell completion scripts and man pages.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// Print a shell completion script.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend completions bash > /etc/bash_completion.d/fleetmend
  fleetmend completions zsh > ~/.zfunc/_fleetmend
  fleetmend completions fish > ~/.config/fish/completions/fleetmend.fish")]
pub(crate) struct Completions {
    /// Shell to complete for
    shell: Shell,
}

/// Write the man pages to a directory, one per command.
#[derive(Args)]
#[command(after_help = "Example:\n  fleetmend man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Output directory; created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Completions {
    pub(crate) fn run(&self, mut command: Command) -> anyhow::Result<()> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "fleetmend", &mut text);
        Ok(output::out(&String::from_utf8_lossy(&text))?)
    }
}

impl Man {
    pub(crate) fn run(&self, command: Command) -> anyhow::Result<()> {
        let dir: &Path = &self.dir;
        let shown = dir.display();
        let failed = || format!("cannot write man pages to {shown}");
        ensure!(!dir.exists() || dir.is_dir(), "{shown} exists but is not a directory");
        std::fs::create_dir_all(dir).with_context(failed)?;
        clap_mangen::generate_to(command, dir).with_context(failed)?;
        crate::print_line(&format!("Wrote the man pages to {shown}."))
    }
}

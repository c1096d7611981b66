//! What shells and `man` want to know of this command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// Print completions for a shell.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fleetmend completions bash > /etc/bash_completion.d/fleetmend
  fleetmend completions zsh > ~/.zfunc/_fleetmend
  fleetmend completions fish > ~/.config/fish/completions/fleetmend.fish")]
pub(crate) struct Completions {
    /// For which shell
    shell: Shell,
}

/// Write man pages into a directory, one a command.
#[derive(Args)]
#[command(after_help = "Example:\n  fleetmend man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Where; made if it is not there
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
        let failed = || format!("cannot write man pages into {shown}");
        ensure!(!dir.exists() || dir.is_dir(), "{shown} is a file, and should be a directory");
        std::fs::create_dir_all(dir).with_context(failed)?;
        clap_mangen::generate_to(command, dir).with_context(failed)?;
        crate::say(&format!("The man pages are in {shown}."))
    }
}

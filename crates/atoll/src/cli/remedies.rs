//! Remedies for the command line, for errors whose remedy from the server describes the HTTP API.

use atoll_model::{Code, Error};

/// Remedies by error code.
const BY_CODE: [(Code, &str); 15] = [
    (
        Code::SandboxNotFound,
        "`atoll ls` lists those that there are",
    ),
    (Code::SandboxStopped, "start it first: `atoll start`"),
    (Code::SandboxPaused, "resume it first: `atoll resume`"),
    (
        Code::SandboxFailed,
        "remove it with `atoll rm`; `atoll create` makes another",
    ),
    (
        Code::SessionNotFound,
        "`atoll history` lists those that there are",
    ),
    (
        Code::TerminalNotFound,
        "its program may have ended: `atoll shell ls` lists those that run",
    ),
    (
        Code::ExecNotFound,
        "`atoll commands ls` lists those that are remembered",
    ),
    (
        Code::TemplateNotFound,
        "`atoll template ls` lists those that there are",
    ),
    (
        Code::KeyNotFound,
        "`atoll key ls` lists those that there are",
    ),
    (
        Code::OrgNotFound,
        "`atoll org ls` lists those that there are",
    ),
    (
        Code::FileExists,
        "choose another name, or replace it: --force of `atoll files mv` and `atoll files cp`",
    ),
    (
        Code::NoCapacity,
        "try again later, or make room with `atoll stop`, `atoll pause` or `atoll rm`",
    ),
    (
        Code::UnsupportedByHost,
        "`atoll doctor` on the server's machine shows what it lacks",
    ),
    (Code::TooLarge, "`atoll cp` copies files of any size"),
    (
        Code::Misdirected,
        "use the server's address as the URL, or start it with `atoll serve --host NAME`",
    ),
];

/// Fields of requests and the options that set them, where their names differ.
const OPTIONS: [(&str, &str); 14] = [
    ("alias", "--name"),
    ("autoResume", "--auto-resume"),
    ("cpuCount", "--cpus"),
    ("diskMB", "--disk"),
    ("envs", "--env"),
    ("expiresAt", "--expires"),
    ("idleTimeout", "--idle-timeout"),
    ("maxSandboxes", "--max-sandboxes"),
    ("maxTimeout", "--max-timeout"),
    ("memoryMB", "--memory"),
    ("network", "--net"),
    ("onIdle", "--on-idle"),
    ("onTimeout", "--on-timeout"),
    ("templateID", "--template"),
];

const LOG_IN: &str = "set ATOLL_API_KEY, or log in again: `atoll login`";
const CHECK_URL: &str = "check the URL: /health below it says \"ok\"";
const MORE_SANDBOXES: &str =
    "`atoll rm` or `atoll stop` one, or have the limit raised: `atoll org set --max-sandboxes`";
const FULL_SANDBOX: &str =
    "remove files of the sandbox, or give a new one more disk: `atoll create --disk`";
const FULL_MACHINE: &str = "remove sandboxes with `atoll rm`, or free space on the server's machine: `atoll gc`, `atoll df`";
const NO_DISK_LIMITS: &str = "leave --disk out, or have the server started with `--storage image`";
const REMOVE_TREE: &str = "remove it recursively: `atoll files rm --recursive`";

/// Remedy of an error for a user of the command line; `None` if the server's remedy fits.
pub(super) fn of_refusal(error: &Error) -> Option<String> {
    let remedy = match error.code {
        code if code.status() == 401 => LOG_IN,
        // The command is implemented by a server.
        Code::NotFound if error.message.contains("no such route") => CHECK_URL,
        Code::QuotaExceeded if error.details.contains_key("max") => MORE_SANDBOXES,
        Code::Conflict if error.message.ends_with("the directory is not empty") => REMOVE_TREE,
        Code::UnsupportedByHost if lacks_disk_limits(error) => NO_DISK_LIMITS,
        Code::DiskFull if error.details.contains_key("path") => FULL_SANDBOX,
        Code::DiskFull => FULL_MACHINE,
        Code::InvalidRequest => return of_field(error),
        code => {
            let known = BY_CODE.iter().find(|(known, _)| *known == code);
            known.map(|(_, remedy)| *remedy)?
        }
    };
    Some(remedy.to_owned())
}

fn lacks_disk_limits(error: &Error) -> bool {
    let feature = error.details.get("feature");
    feature.is_some_and(|feature| feature == "disk limits")
}

/// The server's remedy, with the name of the option.
fn of_field(error: &Error) -> Option<String> {
    let field = error.details.get("field")?;
    let (_, option) = OPTIONS.iter().find(|(known, _)| known == field)?;
    let remedy = error.remedy.as_deref().unwrap_or("choose another value");
    Some(format!("{option}: {remedy}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use clap::{Command, CommandFactory as _};

    use super::super::Arguments;
    use super::*;

    /// Commands in backticks that begin with `atoll`.
    fn commands(remedy: &str) -> Vec<Vec<String>> {
        let quoted = remedy.split('`').skip(1).step_by(2);
        let words = quoted.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        words.filter(|words| words[0] == "atoll").collect()
    }

    /// Whether a command exists with all its subcommands and options.
    fn exists(words: &[String]) -> bool {
        let mut command: Command = Arguments::command();
        words.iter().skip(1).all(|word| {
            if let Some(option) = word.strip_prefix("--") {
                return command
                    .get_arguments()
                    .any(|known| known.get_long() == Some(option));
            }
            match command.find_subcommand(word).cloned() {
                Some(below) => command = below,
                // The value of an option.
                None => return word.chars().all(|letter| letter.is_ascii_uppercase()),
            }
            true
        })
    }

    #[test]
    fn remedies_name_existing_commands_and_no_routes() {
        let by_code = BY_CODE.iter().map(|(_, remedy)| *remedy);
        let mut count = 0;
        for remedy in by_code.chain([
            LOG_IN,
            CHECK_URL,
            MORE_SANDBOXES,
            FULL_SANDBOX,
            FULL_MACHINE,
            NO_DISK_LIMITS,
            REMOVE_TREE,
        ]) {
            for word in [
                "GET",
                "POST",
                "PUT",
                "PATCH",
                "DELETE",
                "header",
                "X-API-Key",
                "…/",
            ] {
                assert!(!remedy.contains(word), "{remedy}");
            }
            for words in commands(remedy) {
                assert!(exists(&words), "{remedy}");
                count += 1;
            }
        }
        assert!(count > 12, "{count}");
    }

    #[test]
    fn options_exist_and_are_named_for_their_fields() {
        let all: Vec<Command> = {
            let mut all = Vec::new();
            super::super::help::commands(&Arguments::command(), "", &mut all);
            all.into_iter().map(|(_, command)| command).collect()
        };
        for (field, option) in OPTIONS {
            let name = option.trim_start_matches("--");
            let mut arguments = all.iter().flat_map(Command::get_arguments);
            assert!(
                arguments.any(|known| known.get_long() == Some(name)),
                "{option}"
            );
            let error = Error::invalid(field, "it is wrong", "write it right");
            assert_eq!(
                of_refusal(&error),
                Some(format!("{option}: write it right"))
            );
        }
        let error = Error::invalid("timeout", "it is wrong", "write it right");
        assert_eq!(of_refusal(&error), None);
    }

    #[test]
    fn a_refusal_has_the_remedy_of_its_code() {
        let refused = |code, message: &str| of_refusal(&Error::new(code, message));
        let login = Some(LOG_IN.to_owned());
        for code in Code::ALL.iter().filter(|code| code.status() == 401) {
            assert_eq!(refused(*code, "no key"), login);
        }
        assert_eq!(
            refused(Code::PermissionDenied, "this key may not do that"),
            None
        );
        assert_eq!(refused(Code::NotFound, "there is no such watcher"), None);
        assert!(refused(Code::NotFound, "there is no such route").is_some());
        assert!(
            refused(Code::ExecNotFound, "")
                .unwrap()
                .contains("atoll commands ls")
        );
        assert_eq!(refused(Code::QuotaExceeded, "256 commands run"), None);
        let full = Error::new(Code::QuotaExceeded, "").detail("max", "3");
        assert!(of_refusal(&full).unwrap().contains("--max-sandboxes"));
    }
}

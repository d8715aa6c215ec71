//! What was typed, turned once into what it means.

mod authorities;
mod backup;
mod bench;
mod commands;
mod cp;
#[cfg(test)]
mod defaults;
mod df;
mod doctor;
mod e2b;
mod events;
mod exec;
mod files;
mod forward;
mod gc;
#[cfg(test)]
mod help;
mod history;
mod key;
mod local;
mod login;
mod logout;
mod logs;
mod ls;
mod mcp;
mod org;
mod ports;
mod progress;
#[cfg(test)]
mod reference;
mod remedies;
mod rm;
mod run;
mod sandbox;
mod serve;
mod server_args;
mod server_options;
mod shell;
mod template;
mod top;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use atoll_model::{Code, Error};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::Config;

/// Isolated Linux sandboxes on your own machine, in milliseconds.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Examples:
  atoll run -- python3 -c 'print(6*7)'
  atoll serve --dev
  atoll exec \"$(atoll sandbox create)\" uname -a
  atoll doctor
  atoll run --help

The data directory is /var/lib/atoll, or ATOLL_DATA_DIR. Sandboxes' files are in plain directories
of it or, with ATOLL_STORAGE=image, in an image that enforces disk limits.

Commands for a server's sandboxes find it by ATOLL_URL and ATOLL_API_KEY, by what `atoll login`
remembered, or by the socket in the data directory, which is root's. --url URL and --profile NAME
work before and after these commands."
)]
struct Arguments {
    #[command(flatten)]
    _server: server_options::ServerOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Serve(Box<serve::Serve>),
    #[command(visible_alias = "new")]
    Create(Box<sandbox::Create>),
    #[command(visible_aliases = ["list", "ps"])]
    Ls(ls::Ls),
    #[command(visible_aliases = ["show", "inspect"])]
    Get(sandbox::Get),
    #[command(visible_aliases = ["delete", "kill"])]
    Rm(rm::Rm),
    /// End the processes of sandboxes; their files stay.
    Stop(sandbox::Several),
    /// Start stopped sandboxes from their files.
    Start(sandbox::Several),
    /// Stop and start sandboxes.
    Restart(sandbox::Several),
    /// Freeze the processes of sandboxes, in memory.
    Pause(sandbox::Several),
    /// Let the processes of paused sandboxes continue.
    Resume(sandbox::Several),
    #[command(subcommand)]
    Sandbox(sandbox::Sandbox),
    Exec(exec::Exec),
    #[command(subcommand)]
    Commands(commands::Commands),
    Shell(shell::Shell),
    Cp(cp::Cp),
    #[command(subcommand)]
    Files(files::Files),
    Logs(logs::Logs),
    Ports(ports::Ports),
    Forward(forward::Forward),
    Events(events::Events),
    History(history::History),
    Top(top::Top),
    Mcp(Box<mcp::Mcp>),
    Login(login::Login),
    Logout(logout::Logout),
    #[command(subcommand)]
    Key(key::Key),
    #[command(subcommand)]
    Org(org::Org),
    Backup(backup::Backup),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    #[command(subcommand)]
    Template(template::Template),
    Df(df::Df),
    Gc(gc::Gc),
    #[command(subcommand)]
    E2b(e2b::E2b),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:
  atoll completions bash > /etc/bash_completion.d/atoll")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the API's description, as it is committed in openapi/v1.json.
    #[command(hide = true)]
    Openapi,
}

/// Does what the command line says.
pub(crate) fn main() -> ExitCode {
    let command = match parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    let config = match Config::read() {
        Ok(config) => config,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(error.code.exit_code());
        }
    };
    let done = match command {
        // These have exit codes of their own.
        Command::Run(run) => return run.run(&config),
        Command::Exec(exec) => return exec.run(&config),
        Command::Shell(shell) => match shell.terminals() {
            Some(terminals) => terminals.run(&config),
            None => return shell.run(&config),
        },
        // Who reads where it serves may leave.
        Command::Serve(serve) => return ended(serve.run(&config)),
        Command::Create(create) => create.run(&config).map(|()| ExitCode::SUCCESS),
        Command::Ls(ls) => ls.run(&config),
        Command::Get(get) => get.run(&config).map(|()| ExitCode::SUCCESS),
        Command::Rm(rm) => rm.run(&config),
        Command::Stop(which) => which.each(&config, Some("stop")),
        Command::Start(which) => which.each(&config, Some("start")),
        Command::Restart(which) => which.each(&config, Some("restart")),
        Command::Pause(which) => which.each(&config, Some("pause")),
        Command::Resume(which) => which.each(&config, Some("resume")),
        Command::Sandbox(sandbox) => sandbox.run(&config),
        Command::Commands(commands) => commands.run(&config),
        Command::Cp(cp) => cp.run(&config),
        Command::Files(files) => files.run(&config),
        Command::Logs(logs) => logs.run(&config),
        Command::Ports(ports) => ports.run(&config),
        Command::Forward(forward) => forward.run(&config),
        Command::Events(events) => events.run(&config),
        Command::History(history) => history.run(&config),
        Command::Top(top) => top.run(&config),
        Command::Mcp(mcp) => mcp.run(&config),
        Command::Login(login) => login.run(&config),
        Command::Logout(logout) => logout.run(&config),
        Command::Key(key) => key.run(&config),
        Command::Org(org) => org.run(&config),
        Command::Backup(backup) => backup.run(&config),
        Command::Doctor(doctor) => doctor.run(&config),
        Command::Bench(bench) => bench.run(&config),
        Command::Template(template) => template.run(&config),
        Command::Df(df) => df.run(&config),
        Command::Gc(gc) => gc.run(&config),
        Command::E2b(e2b) => e2b.run(&config),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "atoll", &mut script);
            say_bytes(&script);
            Ok(ExitCode::SUCCESS)
        }
        Command::Openapi => {
            say_bytes(atoll_server::openapi().as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    };
    match check_stdout() {
        Err(_) if stdout_closed() => ExitCode::from(EXIT_SIGPIPE),
        check_stdout => ended(check_stdout.and(done)),
    }
}

/// The command of this process, or how the process ends without one.
fn parse() -> Result<Command, ExitCode> {
    let parsed = Arguments::command().try_get_matches();
    let mut matches = parsed.map_err(|error| usage_error(&error))?;
    if let Err(error) = server_options::check(Arguments::command, &matches) {
        print_error(&error);
        return Err(misuse(error.code.exit_code()));
    }
    let parsed = Arguments::from_arg_matches_mut(&mut matches);
    match parsed {
        Ok(Arguments { command, .. }) => Ok(command),
        Err(error) => Err(usage_error(&error.format(&mut Arguments::command()))),
    }
}

/// Says what went wrong, if something did.
fn ended(done: Result<ExitCode, Error>) -> ExitCode {
    done.unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::from(error.code.exit_code())
    })
}

/// Exit code when whoever read our output has left: what a shell says of SIGPIPE.
const EXIT_SIGPIPE: u8 = 141;
/// Exit code for failures of Atoll's own, as with env(1) and docker(1).
const EXIT_INTERNAL: u8 = 125;

/// Shows what is wrong with the command line, or the help that it asks for.
fn usage_error(error: &clap::Error) -> ExitCode {
    match std::error::Error::source(error).and_then(|why| why.downcast_ref::<Error>()) {
        // A value that knows what it should be says so as everything else does.
        Some(why) => print_error(&of_argument(error, why)),
        None => drop(error.print()),
    }
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        code => misuse(code as u8),
    }
}

/// The exit code of a wrong command line: commands that run programs keep it apart from their programs' codes.
fn misuse(code: u8) -> ExitCode {
    let word = server_options::command_word(words()).unwrap_or_default();
    let runs = ["run", "exec", "shell"].contains(&word.as_str());
    ExitCode::from(if runs { EXIT_INTERNAL } else { code })
}

/// The words of the command line, without the program.
fn words() -> impl Iterator<Item = String> {
    let words = std::env::args_os().skip(1);
    words.map(|word| word.to_string_lossy().into_owned())
}

/// What is wrong with a value, and whose it is.
fn of_argument(error: &clap::Error, why: &Error) -> Error {
    let mut why = why.clone();
    if let Some(argument) = error.get(clap::error::ContextKind::InvalidArg) {
        why.message = format!("{argument}: {}", why.message);
    }
    why
}

/// The exit code of a command that was run, or one that cannot be mistaken for it.
fn as_command(done: Result<u8, Error>) -> ExitCode {
    done.map_or_else(
        |error| {
            print_error(&error);
            let code = error.details.get("exitCode");
            let code = code.and_then(|code| code.parse().ok());
            ExitCode::from(code.unwrap_or(EXIT_INTERNAL))
        },
        ExitCode::from,
    )
}

/// Says what went wrong and what to do about it.
pub(crate) fn print_error(error: &Error) {
    eprint_line(&format!("{}: {}", paint("31", "atoll"), error.message));
    if let Some(remedy) = &error.remedy {
        eprint_line(&format!("  {}: {remedy}", paint("36", "hint")));
    }
}

/// A line beside the data: on standard error.
pub(crate) fn eprint_line(line: &str) {
    // Nobody reads it: nothing to be done about that.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A line of data: on standard output.
pub(crate) fn say(line: &str) {
    say_bytes(format!("{line}\n").as_bytes());
}

/// Data as it is, at once: whoever reads may wait for it. What cannot be written is told by [`check_stdout`].
fn say_bytes(bytes: &[u8]) {
    let mut stdout = io::stdout();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        let _ = STDOUT_ERROR.set(error);
    }
}

/// Why standard output could not be written to.
static STDOUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Whether all was written that was said. What goes on for long asks, and ends if not.
pub(crate) fn check_stdout() -> Result<(), Error> {
    STDOUT_ERROR
        .get()
        .map_or(Ok(()), |error| Err(unwritten(error)))
}

/// Whoever read standard output has left, which needs no words.
fn stdout_closed() -> bool {
    let stdout_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    STDOUT_ERROR.get().is_some_and(stdout_closed)
}

/// Our output cannot be written.
pub(crate) fn unwritten(error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull => Code::DiskFull,
        _ => Code::InvalidRequest,
    };
    let message = format!("standard output cannot be written: {error}");
    Error::new(code, message).remedy("free some space there, or send it elsewhere")
}

/// Colours a word for people; a pipe gets it plain.
pub(crate) fn paint(colour: &str, word: &str) -> String {
    if std::io::stderr().is_terminal() {
        format!("\x1b[{colour}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// A single-threaded runtime: commands wait more than they work.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        Error::new(
            atoll_model::Code::Internal,
            format!("the runtime cannot be started: {error}"),
        )
    })?;
    let done = runtime.block_on(work);
    // A thread may still wait for input that never comes.
    runtime.shutdown_background();
    done
}

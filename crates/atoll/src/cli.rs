//! The command line: parsing, dispatch, output to standard streams and exit codes.

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
mod store;
mod template;
mod top;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use atoll_model::{Code, Error};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use comfy_table::Table;

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
    /// Stop sandboxes: end their processes, keep their files.
    Stop(sandbox::Several),
    /// Start stopped sandboxes from their stored files.
    Start(sandbox::Several),
    /// Stop and start sandboxes.
    Restart(sandbox::Several),
    /// Pause sandboxes: freeze their processes in memory.
    Pause(sandbox::Several),
    /// Resume the processes of paused sandboxes.
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
    #[command(
        subcommand,
        after_help = "Example:
  atoll store check --database-url postgres://atoll@localhost/atoll"
    )]
    Store(store::Store),
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
    /// Print the OpenAPI description, as committed in openapi/v1.json.
    #[command(hide = true)]
    Openapi,
}

/// Runs the command of the command line.
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
        // These commands have exit codes of their own.
        Command::Run(run) => return run.run(&config),
        Command::Exec(exec) => return exec.run(&config),
        Command::Shell(shell) => match shell.terminals() {
            Some(terminals) => terminals.run(&config),
            None => return shell.run(&config),
        },
        // The server continues if the reader of its standard output exits.
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
        Command::Store(store) => store.run(&config),
        Command::Doctor(doctor) => doctor.run(&config),
        Command::Bench(bench) => bench.run(&config),
        Command::Template(template) => template.run(&config),
        Command::Df(df) => df.run(&config),
        Command::Gc(gc) => gc.run(&config),
        Command::E2b(e2b) => e2b.run(&config),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "atoll", &mut script);
            print_bytes(&script);
            Ok(ExitCode::SUCCESS)
        }
        Command::Openapi => {
            print_bytes(atoll_server::openapi().as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    };
    match check_stdout() {
        Err(_) if stdout_closed() => ExitCode::from(EXIT_SIGPIPE),
        check_stdout => ended(check_stdout.and(done)),
    }
}

/// Parses the command line; `Err` is the exit code if there is no command to run.
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

/// Prints the error, if any.
fn ended(done: Result<ExitCode, Error>) -> ExitCode {
    done.unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::from(error.code.exit_code())
    })
}

/// Exit code when the reader of standard output has exited: that of a shell for SIGPIPE.
const EXIT_SIGPIPE: u8 = 141;
/// Exit code for failures of Atoll's own, as with env(1) and docker(1).
const EXIT_INTERNAL: u8 = 125;

/// Prints an error of the command line, or the requested help.
fn usage_error(error: &clap::Error) -> ExitCode {
    match std::error::Error::source(error).and_then(|why| why.downcast_ref::<Error>()) {
        // Errors of our value parsers have a hint, and are printed like all other errors.
        Some(why) => print_error(&of_argument(error, why)),
        None => drop(error.print()),
    }
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        code => misuse(code as u8),
    }
}

/// Exit code for an invalid command line. Commands that run programs use 125, which differs from
/// the codes of most programs.
fn misuse(code: u8) -> ExitCode {
    let word = server_options::command_word(words()).unwrap_or_default();
    let runs = ["run", "exec", "shell"].contains(&word.as_str());
    ExitCode::from(if runs { EXIT_INTERNAL } else { code })
}

/// Arguments of the command line, without the name of the program.
fn words() -> impl Iterator<Item = String> {
    let words = std::env::args_os().skip(1);
    words.map(|word| word.to_string_lossy().into_owned())
}

/// Message for an invalid value, with the name of its argument.
fn of_argument(error: &clap::Error, why: &Error) -> Error {
    let mut why = why.clone();
    if let Some(argument) = error.get(clap::error::ContextKind::InvalidArg) {
        why.message = format!("{argument}: {}", why.message);
    }
    why
}

/// Exit code of the command that was run, or 125 for an error of Atoll.
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

/// Prints an error and its remedy.
pub(crate) fn print_error(error: &Error) {
    eprint_line(&format!("{}: {}", paint("31", "atoll"), error.message));
    if let Some(remedy) = &error.remedy {
        eprint_line(&format!("  {}: {remedy}", paint("36", "hint")));
    }
}

/// Prints a line that is not data, on standard error.
pub(crate) fn eprint_line(line: &str) {
    // A failed write to standard error cannot be reported.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Creates a table without borders.
pub(crate) fn borderless_table() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table
}

/// Prints a line of data on standard output.
pub(crate) fn print_line(line: &str) {
    print_bytes(format!("{line}\n").as_bytes());
}

/// Writes and flushes data on standard output. [`check_stdout`] reports errors.
fn print_bytes(bytes: &[u8]) {
    let mut stdout = io::stdout();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        let _ = STDOUT_ERROR.set(error);
    }
}

/// First error of a write to standard output.
static STDOUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Returns the error of an earlier write to standard output. Long-running commands check it and
/// end.
pub(crate) fn check_stdout() -> Result<(), Error> {
    STDOUT_ERROR
        .get()
        .map_or(Ok(()), |error| Err(unwritten(error)))
}

/// Whether the reader of standard output has exited, which needs no message.
fn stdout_closed() -> bool {
    let stdout_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    STDOUT_ERROR.get().is_some_and(stdout_closed)
}

/// Error for a failed write to standard output.
pub(crate) fn unwritten(error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull => Code::DiskFull,
        _ => Code::InvalidRequest,
    };
    let message = format!("standard output cannot be written: {error}");
    Error::new(code, message).remedy("free some space there, or send it elsewhere")
}

/// Colours a word on a terminal only.
pub(crate) fn paint(colour: &str, word: &str) -> String {
    if std::io::stderr().is_terminal() {
        format!("\x1b[{colour}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// Creates a single-threaded runtime: commands mostly wait for I/O.
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
    // A thread may still be blocked in a read of standard input.
    runtime.shutdown_background();
    done
}

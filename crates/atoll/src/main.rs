//! The `atoll` command.

mod cli;
mod config;

fn main() -> std::process::ExitCode {
    // A keeper is this same binary under another name; it must never have had a thread.
    atoll_jail::keeper::run_if_invoked();
    // Before the first thread. Who may not give it up has not got it.
    let _ = atoll_jail::drop_cap_sys_resource();
    cli::main()
}

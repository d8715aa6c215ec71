//! The `atoll` command.

mod cli;
mod config;
mod wiring;

fn main() -> std::process::ExitCode {
    // A keeper is the same binary under another name; it must be single-threaded from the start.
    atoll_jail::keeper::run_if_invoked();
    // Before the first thread. A process that may not drop the capability does not have it.
    let _ = atoll_jail::drop_cap_sys_resource();
    cli::main()
}

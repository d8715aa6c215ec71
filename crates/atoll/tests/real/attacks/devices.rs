//! A11, A18: device nodes created with `mknod`, and input injected into terminals.

use atoll_testkit::Attempt;

use super::{Case, Control, Streams, USERS, allow, check, check_on, lines};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_device_can_be_made() {
    check(&Case {
        probe: &["a11-mknod"],
        // An overlay refuses the whiteout that the control makes; a tmpfs does not.
        place: "/dev/shm",
        gains: |_, found| lines(found, |it| it.worked() && it.what != "place"),
        controls: &[Control {
            lift: |plan| allow(plan, &["mknodat"]),
            users: USERS,
            gains: &["mknod:char-0:0 ok"],
        }],
    })
    .await;
}

/// Injected input, and calls that were not refused.
fn typed(_: &str, found: &[Attempt]) -> Vec<String> {
    lines(found, |it| {
        let command = it.what.contains("TIOC") && it.what != "pty:TIOCSCTTY";
        let typed = it.what.ends_with(":typed") && it.value("bytes") != Some("0");
        typed || (command && !["EPERM", "ENOTTY"].contains(&it.result.as_str()))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_program_injects_terminal_input() {
    check(&Case {
        probe: &["a18-tty"],
        place: "/",
        gains: typed,
        controls: &[Control {
            lift: |plan| allow(plan, &["ioctl"]),
            users: USERS,
            // Where `dev.tty.legacy_tiocsti` is 0 the kernel answers EIO instead of typing.
            gains: &["pty:TIOCSTI", "pty:TIOCSTI+high", "pty:TIOCSETD"],
        }],
    })
    .await;
}

/// Nor can a program inject input into its own terminal, where a reader would take it for the user's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_injects_input_into_its_own_terminal() {
    let case = Case {
        probe: &["a18-tty"],
        place: "/",
        gains: typed,
        controls: &[Control {
            lift: |plan| allow(plan, &["ioctl"]),
            users: USERS,
            // Injected input would be echoed before the result line.
            gains: &["stdin:TIOCSETD", "controlling:TIOCSETD"],
        }],
    };
    check_on(Streams::Terminal, &case).await;
}

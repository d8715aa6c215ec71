//! A11, A18: device nodes created with `mknod`, and input injected into terminals.

use atoll_testkit::Attempt;

use super::{Case, Control, Streams, USERS, allow, check, check_on, lines};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_device_can_be_made() {
    check(&Case {
        probe: &["a11-mknod"],
        // An overlay rejects the whiteout that the control creates; a tmpfs accepts it.
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

/// Returns injected input, and calls that were not refused.
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
            // If `dev.tty.legacy_tiocsti` is 0, TIOCSTI fails with EIO.
            gains: &["pty:TIOCSTI", "pty:TIOCSTI+high", "pty:TIOCSETD"],
        }],
    })
    .await;
}

/// Tests the program's own terminal, where another reader would mistake injected input for the
/// user's.
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

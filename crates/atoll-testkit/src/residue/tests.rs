use super::Residue;

#[test]
fn difference_shows_what_came_and_what_went() {
    let mut before = Residue::default();
    let mut after = Residue::default();
    for line in ["mount /a", "link atl-1"] {
        before.add(line.to_owned());
    }
    for line in ["mount /a", "mount /a", "cgroup /x"] {
        after.add(line.to_owned());
    }
    assert_eq!(
        before.diff(&after),
        ["+ cgroup /x", "+ mount /a", "- link atl-1"]
    );
    assert!(before.diff(&before).is_empty());
}

#[test]
fn this_test_is_no_residue() {
    let now = Residue::take();
    let me = format!("process {} ", std::process::id());
    assert!(!now.found.keys().any(|line| line.starts_with(&me)));
    assert!(
        now.found
            .keys()
            .any(|line| line.starts_with("mount /proc "))
    );
}

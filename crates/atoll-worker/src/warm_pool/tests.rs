use super::{MAX_OTHER_TEMPLATES, WarmPool, targets};

fn recent(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn half_of_the_pool_is_for_recent_templates() {
    let check = |size, names: &[&str], expected: &[(&str, usize)]| {
        assert_eq!(targets(size, &recent(names)), expected, "{size} {names:?}");
    };
    check(16, &[], &[("base", 16)]);
    check(16, &["a"], &[("a", 8), ("base", 8)]);
    check(
        16,
        &["a", "b", "c"],
        &[("a", 2), ("b", 2), ("c", 2), ("base", 10)],
    );
    check(2, &["a", "b"], &[("a", 1), ("base", 1)]);
    check(1, &["a"], &[("base", 1)]);
    check(0, &["a"], &[("base", 0)]);
}

#[test]
fn templates_are_ordered_by_last_use() {
    let pool = WarmPool::new(8);
    for name in ["a", "b", "base", "c", "a", "d", "e"] {
        pool.record_demand(name);
    }
    let known = pool.recent.lock().expect("templates").clone();
    assert_eq!(known, ["e", "d", "a", "c"]);
    assert_eq!(known.len(), MAX_OTHER_TEMPLATES);
}

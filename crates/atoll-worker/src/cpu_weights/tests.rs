use super::*;

struct Three([SandboxId; 3]);

impl Three {
    fn new() -> Self {
        Self([(); 3].map(|()| SandboxId::random()))
    }

    /// Indices of the sandboxes that are demoted after a check.
    fn after(&self, used: [f64; 3], demoted: &[usize]) -> Vec<usize> {
        let usage = self.0.iter().cloned().zip(used).collect();
        let demoted = demoted.iter().map(|&one| self.0[one].clone()).collect();
        let selected = select_demoted(&usage, &demoted);
        let is_demoted = |one: &usize| selected.contains(&self.0[*one]);
        (0..3).filter(is_demoted).collect()
    }
}

#[test]
fn loadavg_is_parsed() {
    assert_eq!(parse_runnable("0.20 0.18 0.12 11/80 11206\n"), 11);
    assert_eq!(parse_runnable(""), 0);
}

#[test]
fn restarted_sandbox_is_not_demoted() {
    let ids = Three::new().0;
    let mut all: HashMap<SandboxId, Arc<()>> =
        ids.iter().cloned().map(|id| (id, Arc::default())).collect();
    let demoted = downgrade(&all);
    all.insert(ids[0].clone(), Arc::default());
    all.remove(&ids[1]);
    assert_eq!(
        still_demoted(&demoted, &all),
        HashSet::from([ids[2].clone()])
    );
}

#[test]
fn sandboxes_with_an_equal_share_or_more_are_demoted() {
    let three = Three::new();
    assert_eq!(three.after([1.4, 0.5, 0.0], &[]), [0]);
    assert_eq!(three.after([1.2, 0.81, 0.0], &[]), [0]);
    assert_eq!(three.after([0.8, 0.8, 0.3], &[]), [0, 1]);
    assert_eq!(three.after([1.0, 1.0, 0.0], &[]), [0, 1]);
    assert_eq!(three.after([2.0, 0.0, 0.0], &[]), [0]);
    assert!(three.after([0.0, 0.0, 0.0], &[]).is_empty());
}

#[test]
fn demoted_sandbox_is_promoted_when_it_uses_little_and_does_not_alternate() {
    let three = Three::new();
    // Another one takes what it leaves: both are demoted from then on.
    assert_eq!(three.after([0.2, 1.8, 0.0], &[0]), [0, 1]);
    assert_eq!(three.after([1.0, 1.0, 0.0], &[0, 1]), [0, 1]);
    // It has ended its work.
    assert_eq!(three.after([0.1, 1.8, 0.0], &[0, 1]), [1]);
    // Two small ones that leave it too little have become heavy.
    assert_eq!(three.after([0.1, 0.6, 0.6], &[0]), [0, 1, 2]);
}

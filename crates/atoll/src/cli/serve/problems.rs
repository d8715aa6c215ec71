//! Problems of the configuration, which are reported together.

use std::fmt::Write as _;

use atoll_model::{Code, Error};

/// Collects the problems of a configuration.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Error>);

impl Problems {
    /// Returns the value, or records the problem.
    pub(super) fn check<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Records a problem.
    pub(super) fn add(&mut self, problem: Error) {
        self.0.push(problem);
    }

    /// Fails if there is a problem. A single one is returned as it is; several become a list with their remedies.
    pub(super) fn finish(self) -> Result<(), Error> {
        let mut problems = self.0.into_iter();
        let Some(first) = problems.next() else {
            return Ok(());
        };
        let rest: Vec<Error> = problems.collect();
        if rest.is_empty() {
            return Err(first);
        }
        let mut message = format!("the configuration has {} problems", rest.len() + 1);
        for problem in std::iter::once(&first).chain(&rest) {
            let _ = write!(message, "\n  {}", problem.message);
            if let Some(remedy) = &problem.remedy {
                let _ = write!(message, ": {remedy}");
            }
        }
        Err(Error::new(Code::InvalidRequest, message)
            .remedy("`atoll serve --print-config` shows a valid configuration"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_reported_together() {
        let mut problems = Problems::default();
        assert_eq!(problems.check(Ok(1)), Some(1));
        let one = Error::invalid("a", "a is wrong", "change a");
        assert_eq!(problems.check::<()>(Err(one.clone())), None);
        let mut single = Problems::default();
        let _ = single.check::<()>(Err(one.clone()));
        assert_eq!(single.finish(), Err(one));
        let _ = problems.check::<()>(Err(Error::invalid("b", "b is wrong", "change b")));
        let message = problems.finish().expect_err("two problems").message;
        let expected =
            "the configuration has 2 problems\n  a is wrong: change a\n  b is wrong: change b";
        assert_eq!(message, expected);
    }
}

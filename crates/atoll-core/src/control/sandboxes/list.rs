//! Filtered lists of an org's sandboxes that are not deleted.
//!
//! Lists are computed from the rows in memory: they show transient states, and only the rows of the page are copied.

use std::collections::BTreeMap;

use atoll_model::{Error, OrgId, Page, PageRequest, SandboxState, Scope};
use atoll_store::SandboxRow;

use super::SandboxView;
use crate::live_sandboxes::LiveSandboxes;
use crate::{Core, RequestContext};

/// Conditions on listed sandboxes. A sandbox must meet all of them.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// Lifecycle state.
    pub state: Option<SandboxState>,
    /// Template name.
    pub template: Option<String>,
    /// Metadata entries that the sandbox must have.
    pub metadata: BTreeMap<String, String>,
    /// Substring of id or alias, ignoring case.
    pub text: Option<String>,
}

impl SandboxFilter {
    fn matches(&self, row: &SandboxRow) -> bool {
        let has = |(name, value): (&String, &String)| row.metadata.get(name) == Some(value);
        self.state.is_none_or(|state| row.state == state)
            && self
                .template
                .as_ref()
                .is_none_or(|name| *name == row.template)
            && self.metadata.iter().all(has)
            && self.text.as_ref().is_none_or(|text| {
                // Ids and aliases are lowercase.
                let text = text.to_lowercase();
                let alias = row.alias.as_ref();
                row.id.as_str().contains(&text) || alias.is_some_and(|alias| alias.contains(&text))
            })
    }
}

/// A page of sandboxes.
#[derive(Debug, Clone)]
pub struct SandboxList {
    /// The page, newest first.
    pub page: Page<SandboxView>,
    /// Number of matching sandboxes on all pages.
    pub total: usize,
}

impl Core {
    /// Returns a page of the caller's sandboxes that are not deleted and match the filter, newest first.
    pub fn list_sandboxes(
        &self,
        context: &RequestContext,
        filter: &SandboxFilter,
        page: &PageRequest,
    ) -> Result<SandboxList, Error> {
        context.require(Scope::Read)?;
        Ok(list(&self.inner.sandboxes, &context.org.id, filter, page))
    }
}

fn list(
    sandboxes: &LiveSandboxes,
    org: &OrgId,
    filter: &SandboxFilter,
    page: &PageRequest,
) -> SandboxList {
    let position = |row: &SandboxRow| (row.created_at, row.id.to_string());
    let (mut rows, mut total) = (Vec::new(), 0);
    for entry in sandboxes.newest(usize::MAX) {
        entry.read(|row| {
            if row.org != *org || !filter.matches(row) {
                return;
            }
            total += 1;
            // One more row than fits shows that there is another page.
            let is_on_page = page.includes(&position(row));
            if is_on_page && rows.len() <= page.limit as usize {
                rows.push(row.clone());
            }
        });
    }
    SandboxList {
        page: Page::from_lookahead(rows, page, position).map(SandboxView::from),
        total,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::live_sandboxes::tests::{new_sandboxes, row};

    const FIRST: PageRequest = PageRequest {
        limit: 100,
        cursor: None,
    };

    /// Sandboxes of an org, created at times 0, 1, 2, ..., and as many of another org.
    fn filled(count: i64) -> (LiveSandboxes, OrgId) {
        let (sandboxes, org, other) = (new_sandboxes(), OrgId::random(), OrgId::random());
        for number in 0..count {
            for org in [&org, &other] {
                let mut row = row(org, &format!("web-{number}"));
                row.created_at = number;
                row.template = ["base", "node"][number as usize % 2].into();
                let team = ["red", "green", "blue"][number as usize % 3];
                row.metadata.insert("team".into(), team.into());
                row.metadata.insert("number".into(), number.to_string());
                if number % 5 == 0 {
                    row.state = SandboxState::Paused;
                }
                sandboxes.add(row);
            }
        }
        (sandboxes, org)
    }

    fn aliases(list: &SandboxList) -> Vec<&str> {
        let items = list.page.items.iter();
        items.filter_map(|view| view.row.alias.as_deref()).collect()
    }

    #[test]
    fn filter_requires_all_conditions() {
        let (sandboxes, org) = filled(30);
        let team = |name: &str| BTreeMap::from([("team".to_owned(), name.to_owned())]);
        let everything = SandboxFilter::default();
        let found = list(&sandboxes, &org, &everything, &FIRST);
        assert_eq!((found.total, found.page.items.len()), (30, 30));
        assert!(found.page.items.iter().all(|view| view.row.org == org));
        let green = SandboxFilter {
            metadata: team("green"),
            ..SandboxFilter::default()
        };
        assert_eq!(list(&sandboxes, &org, &green, &FIRST).total, 10);
        let mut two = green.clone();
        two.metadata.insert("number".into(), "4".into());
        assert_eq!(aliases(&list(&sandboxes, &org, &two, &FIRST)), ["web-4"]);
        let narrow = SandboxFilter {
            state: Some(SandboxState::Paused),
            template: Some("node".into()),
            metadata: team("green"),
            text: Some("WEB-2".into()),
        };
        assert_eq!(
            aliases(&list(&sandboxes, &org, &narrow, &FIRST)),
            ["web-25"]
        );
        for text in ["", "web", "WEB-"] {
            let part = SandboxFilter {
                text: Some(text.into()),
                ..SandboxFilter::default()
            };
            assert_eq!(list(&sandboxes, &org, &part, &FIRST).total, 30, "{text:?}");
        }
        let id = found.page.items[7].row.id.as_str()[..12].to_owned();
        let by_id = SandboxFilter {
            text: Some(id),
            ..SandboxFilter::default()
        };
        assert_eq!(aliases(&list(&sandboxes, &org, &by_id, &FIRST)), ["web-22"]);
        for unknown in [
            SandboxFilter {
                template: Some("nod".into()),
                ..SandboxFilter::default()
            },
            SandboxFilter {
                metadata: team("gree"),
                ..SandboxFilter::default()
            },
        ] {
            assert_eq!(list(&sandboxes, &org, &unknown, &FIRST).total, 0);
        }
    }

    #[test]
    fn pages_of_a_filtered_list_are_complete_and_disjoint() {
        let (sandboxes, org) = filled(30);
        let filter = SandboxFilter {
            template: Some("node".into()),
            ..SandboxFilter::default()
        };
        let mut page = PageRequest { limit: 4, ..FIRST };
        let (mut seen, mut sizes) = (Vec::new(), Vec::new());
        loop {
            let found = list(&sandboxes, &org, &filter, &page);
            assert_eq!(found.total, 15);
            sizes.push(found.page.items.len());
            seen.extend(found.page.items.iter().map(|view| view.row.created_at));
            let Some(next) = found.page.next else { break };
            page.cursor = Some(next);
        }
        assert_eq!(sizes, [4, 4, 4, 3]);
        let newest: Vec<i64> = (0..30).rev().filter(|number| number % 2 == 1).collect();
        assert_eq!(seen, newest);
    }

    #[test]
    fn filtering_10000_sandboxes_takes_under_a_second() {
        let (sandboxes, org) = filled(5_000);
        let filter = SandboxFilter {
            metadata: BTreeMap::from([("number".into(), "17".into())]),
            text: Some("web".into()),
            ..SandboxFilter::default()
        };
        // The shortest of several measurements, to exclude other load on the machine.
        let times = (0..20).map(|_| {
            let begin = Instant::now();
            assert_eq!(list(&sandboxes, &org, &filter, &FIRST).total, 1);
            begin.elapsed()
        });
        let best = times.min().unwrap_or_default();
        assert!(best < Duration::from_secs(1), "{best:?}");
    }
}

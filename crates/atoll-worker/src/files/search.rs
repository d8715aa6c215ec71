//! Search for files by name or content.

use std::sync::Arc;

use atoll_jail::wire::{self, FileOp, FromHelper};
use atoll_model::{Error, RunAs, SearchHit, SearchQuery};

use super::entry::to_entry;
use super::{HelperCall, check_path};
use crate::sandbox::Sandbox;

/// Bytes of a name pattern or of a text.
const MAX_QUERY_BYTES: usize = 1024;

/// Searches below a path; true if there may be more hits than the limit.
pub(crate) async fn search(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
    wanted: SearchQuery,
) -> Result<(Vec<SearchHit>, bool), Error> {
    for (field, value) in [("query", &wanted.name), ("content", &wanted.text)] {
        if value.len() > MAX_QUERY_BYTES || value.contains(&0) {
            let message = format!("{field} has more than {MAX_QUERY_BYTES} bytes, or a NUL byte");
            return Err(Error::invalid(field, message, "shorten it"));
        }
    }
    let max = wanted.limit as usize;
    let work = FileOp::Search {
        path: check_path(path)?,
        name: wanted.name,
        text: wanted.text,
        limit: wanted.limit,
    };
    let convert = |word| match word {
        FromHelper::SearchHit(some) => Some(some.into_iter().map(to_hit).collect()),
        _ => None,
    };
    let call = HelperCall::start(sandbox, caller, work, None).await?;
    call.collect(convert, max).await
}

fn to_hit(found: wire::SearchHit) -> SearchHit {
    SearchHit {
        entry: to_entry(found.entry),
        line: (found.line > 0).then_some((found.line, found.text)),
    }
}

//! Files that are looked for by their names, or by what is in them.

use std::sync::Arc;

use atoll_jail::wire::{self, FileWork, FromHelper};
use atoll_model::{Caller, Error, Found, Search};

use super::entry::entry;
use super::{HelperCall, check_path};
use crate::sandbox::Sandbox;

/// The longest pattern or text that is looked for.
const MAX_QUERY_BYTES: usize = 1024;

/// What was found, and whether there may be more.
pub(crate) async fn search(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
    wanted: Search,
) -> Result<(Vec<Found>, bool), Error> {
    for (field, value) in [("query", &wanted.name), ("content", &wanted.text)] {
        if value.len() > MAX_QUERY_BYTES || value.contains(&0) {
            let message = format!("{field} has more than {MAX_QUERY_BYTES} bytes, or a NUL byte");
            return Err(Error::invalid(field, message, "look for something shorter"));
        }
    }
    let max = wanted.limit as usize;
    let work = FileWork::Search {
        path: check_path(path)?,
        name: wanted.name,
        text: wanted.text,
        limit: wanted.limit,
    };
    let of = |word| match word {
        FromHelper::Found(some) => Some(some.into_iter().map(found).collect()),
        _ => None,
    };
    let call = HelperCall::start(sandbox, caller, work, None).await?;
    call.all(of, max).await
}

fn found(found: wire::Found) -> Found {
    Found {
        entry: entry(found.entry),
        line: (found.line > 0).then_some((found.line, found.text)),
    }
}

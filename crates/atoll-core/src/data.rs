//! Authorization of calls to one sandbox: commands, files and ports. Reads rows and does not write them.

pub(crate) mod access;
pub(crate) mod access_tokens;
pub(crate) mod port_links;
pub(crate) mod signed_urls;
pub(crate) mod watchers;

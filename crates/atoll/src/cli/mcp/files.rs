//! Tools for the files of a sandbox.

pub(super) mod edit;
pub(super) mod read;
pub(super) mod tree;
pub(super) mod write;

use atoll_client::Request;
use atoll_model::Error;
use bytes::Bytes;
use serde_json::Value;

use super::super::server_args::file_call;
use super::tools::ToolContext;

impl ToolContext<'_> {
    /// Request of the file API for one path.
    fn call(&self, call: &[&str], path: &str) -> String {
        file_call(&self.sandbox, call, &[("path", path)], None)
    }

    /// Replaces a file atomically.
    async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<Value, Error> {
        let request = Request::put_bytes(self.call(&[], path), bytes.into());
        self.client.send_json(&request).await
    }
}

//! Filters of the list of sandboxes. The server applies them.

use atoll_client::Client;
use atoll_model::Error;
use clap::Args;
use serde_json::Value;

/// Conditions that are combined with AND.
#[derive(Debug, Default, Args)]
pub(crate) struct Filter {
    /// Only sandboxes in this state: creating, running, paused, stopping, stopped or failed.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only sandboxes of this template.
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Only sandboxes whose metadata has this value; may be repeated with other keys.
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
    /// Only sandboxes whose id or name contains this text; case is ignored.
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

/// Metadata entry.
fn entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("expected KEY=VALUE, such as team=web")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Filter {
    pub(crate) fn is_empty(&self) -> bool {
        self.query().is_empty()
    }

    /// The sandboxes that meet the conditions, newest first.
    pub(crate) async fn list(&self, client: &Client) -> Result<Vec<Value>, Error> {
        let query = self.query();
        let query: Vec<_> = query
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        client.list("/sandboxes", &query).await
    }

    fn query(&self) -> Vec<(String, &str)> {
        let named = [
            ("state", &self.state),
            ("template", &self.template),
            ("q", &self.search),
        ];
        let named = named.into_iter().filter_map(|(name, value)| {
            let value = value.as_deref()?;
            Some((name.to_owned(), value))
        });
        let metadata = self.metadata.iter();
        let metadata = metadata.map(|(key, value)| (format!("metadata.{key}"), value.as_str()));
        named.chain(metadata).collect()
    }
}

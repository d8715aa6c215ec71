//! Filters of the list of sandboxes. The server applies them.

use atoll_client::Client;
use atoll_model::Error;
use clap::Args;
use serde_json::Value;

/// Conditions that a listed sandbox meets, all of them.
#[derive(Debug, Default, Args)]
pub(crate) struct Filter {
    /// Only sandboxes in this state: creating, running, paused, stopping, stopped or failed.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
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
        let state = self
            .state
            .iter()
            .map(|state| ("state".to_owned(), state.as_str()));
        state.collect()
    }
}

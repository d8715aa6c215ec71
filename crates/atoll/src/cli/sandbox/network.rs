//! `atoll sandbox network`: network and network rules of a sandbox.

use atoll_client::Request;
use atoll_model::{Error, Network, NetworkRule};
use clap::Args;
use serde_json::{Value, json};

use super::super::print_line;
use super::super::server_args::{ServerArgs, below, find, print_json, text};
use crate::config::Config;

/// Show the network and the network rules of a sandbox, or replace them.
///
/// A change replaces all rules: rules that --allow and --deny do not repeat are removed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox network web
  atoll sandbox network web --net internet --allow 1.1.1.1:443
  atoll sandbox network web --net none")]
pub(crate) struct Rules {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// New network; without this option the network does not change.
    #[arg(long, value_name = "none|internet")]
    net: Option<Network>,
    /// Allow connections to these addresses. Without --deny, all others are refused.
    #[arg(long, value_name = "RULE")]
    allow: Vec<NetworkRule>,
    /// Refuse connections to these addresses, except those that --allow names.
    #[arg(long, value_name = "RULE")]
    deny: Vec<NetworkRule>,
    #[command(flatten)]
    server: ServerArgs,
}

impl Rules {
    pub(super) fn run(&self, config: &Config) -> Result<(), Error> {
        let network = self.server.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let path = below(&id, &["network"]);
            if let Some(body) = self.body() {
                client
                    .send_json(&Request::put_json(path.clone(), &body))
                    .await?;
            }
            client.send_json(&Request::get(path)).await
        })?;
        if self.server.json {
            return print_json(&network);
        }
        print_line(&describe(&network));
        Ok(())
    }

    /// The change; `None` without options.
    fn body(&self) -> Option<Value> {
        if self.net.is_none() && self.allow.is_empty() && self.deny.is_empty() {
            return None;
        }
        let rules = |rules: &[NetworkRule]| -> Vec<String> {
            rules.iter().map(NetworkRule::to_string).collect()
        };
        let mut body = json!({ "allow": rules(&self.allow), "deny": rules(&self.deny) });
        if let Some(net) = self.net {
            body["network"] = json!(net.to_string());
        }
        Some(body)
    }
}

/// Prints the network, and a line for each list of rules.
fn describe(network: &Value) -> String {
    let list = |name: &str| {
        let rules = network[name].as_array().into_iter().flatten();
        let rules: Vec<&str> = rules.filter_map(Value::as_str).collect();
        rules.join(" ")
    };
    let (allow, deny) = (list("allow"), list("deny"));
    let rest = match text(network, "default") {
        "deny" => "denied",
        _ => "allowed",
    };
    let mut lines = vec![text(network, "network").to_owned()];
    if !allow.is_empty() {
        lines.push(format!("allow   {allow}"));
    }
    if !deny.is_empty() {
        lines.push(format!("deny    {deny}"));
    }
    if lines.len() > 1 || rest == "denied" {
        lines.push(format!("others  {rest}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rules: Rules,
    }

    #[test]
    fn update_sends_all_rules_and_no_option_sends_none() {
        let body = |line: &str| {
            let words = format!("network web {line}");
            Line::parse_from(words.split_whitespace()).rules.body()
        };
        assert_eq!(body(""), None);
        assert_eq!(body("--json"), None);
        assert_eq!(
            body("--net none"),
            Some(json!({ "network": "none", "allow": [], "deny": [] }))
        );
        assert_eq!(
            body("--deny 1.1.1.1 --allow 9.9.9.9:53"),
            Some(json!({ "allow": ["9.9.9.9:53"], "deny": ["1.1.1.1"] }))
        );
    }

    #[test]
    fn rules_are_printed_one_list_per_line() {
        let network = |allow: &[&str], deny: &[&str], default: &str| {
            describe(
                &json!({ "network": "internet", "allow": allow, "deny": deny, "default": default }),
            )
        };
        assert_eq!(network(&[], &[], "allow"), "internet");
        assert_eq!(network(&[], &[], "deny"), "internet\nothers  denied");
        assert_eq!(
            network(&["1.1.1.1:443", "9.9.9.9"], &[], "deny"),
            "internet\nallow   1.1.1.1:443 9.9.9.9\nothers  denied"
        );
        assert_eq!(
            network(&["1.1.1.1"], &["1.0.0.0/8"], "allow"),
            "internet\nallow   1.1.1.1\ndeny    1.0.0.0/8\nothers  allowed"
        );
    }
}

//! `atoll template` for the templates of a server, where the API supports it.

use crate::cli::borderless_table;
use atoll_client::{Client, Request, path, query};
use atoll_model::{Bytes, Error};
use serde_json::Value;

use super::super::cp::pack;
use super::super::print_line;
use super::super::server_args::{plain, print_json, text};
use super::{Template, metadata};

impl Template {
    pub(super) async fn remote(&self, client: &Client) -> Result<(), Error> {
        match self {
            Self::Ls { json, .. } => list(client, *json).await,
            Self::Add {
                name,
                source,
                replace,
                env,
                no_sudo,
                nested_user_namespaces,
                ..
            } => {
                check(client, "env", !env.is_empty())?;
                check(client, "nested-user-namespaces", *nested_user_namespaces)?;
                metadata(source)?;
                let replace = replace.to_string();
                let sudo = (!no_sudo).to_string();
                let options = [
                    ("name", name.as_str()),
                    ("replace", &replace),
                    ("sudo", &sudo),
                ];
                let added = pack::template(client, &query("/templates", &options), source).await?;
                print_line(&format!(
                    "template {name}: {} files, {}",
                    added["files"],
                    size(&added)
                ));
                Ok(())
            }
            Self::Rm { name, .. } => {
                client
                    .send_buffered(&Request::delete(path(&["templates", name])))
                    .await?;
                print_line(&format!("removed template {name}"));
                Ok(())
            }
            // `base` is made from the system of the machine that the command runs on.
            Self::Rebuild { .. } => Ok(()),
        }
    }
}

/// Returns an error for a flag that the API does not support.
fn check(client: &Client, flag: &str, is_given: bool) -> Result<(), Error> {
    if !is_given {
        return Ok(());
    }
    let message = format!(
        "--{flag} is for templates of this machine, and this one is for {}",
        client.target()
    );
    Err(Error::invalid(
        flag,
        message,
        "leave it out, or add --local",
    ))
}

async fn list(client: &Client, json: bool) -> Result<(), Error> {
    let all = client.list("/templates", &[]).await?;
    if json {
        return print_json(&Value::Array(all));
    }
    let mut table = borderless_table();
    table.set_header(["NAME", "FILES", "SIZE", "USER", "SUDO", "SOURCE"]);
    for template in &all {
        let sudo = template["sudo"].as_bool().unwrap_or(false);
        table.add_row([
            plain(text(template, "name")),
            template["files"].to_string(),
            size(template).to_string(),
            plain(text(template, "user")),
            if sudo { "yes" } else { "no" }.to_owned(),
            plain(text(template, "source")),
        ]);
    }
    print_line(&table.to_string());
    Ok(())
}

fn size(template: &Value) -> Bytes {
    Bytes(template["size"].as_u64().unwrap_or(0))
}

//! `filesystem.Filesystem`: what is there, changes of the tree, and watches.

mod entry;
mod watch;

use atoll_core::Doorstep;
use atoll_model::{Caller, Code, Error};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::PREFIX;
use super::target::{Place, above, clean, unknown_user};
use super::process::user;
use crate::App;
use crate::e2b::connect_rpc::{Fault, Unary};
use entry::EntryInfo;

/// The most entries that one list has.
const ENTRIES: u32 = 100_000;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/MakeDir", post(make_dir))
        .route("/filesystem.Filesystem/Move", post(rename))
        .route("/filesystem.Filesystem/ListDir", post(list_dir))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .merge(watch::routes())
}

/// Where the caller of a request works: in the sandbox it is for, as whom it says.
impl<S: Sync> FromRequestParts<S> for Place {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let step = parts.extensions.get::<Doorstep>();
        let step = step.ok_or_else(|| Fault::new("internal", "the request is for no sandbox"))?;
        Ok(Self::enter(step, user(&parts.headers)).await?)
    }
}

impl Place {
    async fn describe(&self, path: &str) -> Result<EntryInfo, Fault> {
        let described = self.runtime();
        let described = described.describe(self.id(), &self.who, path.as_bytes(), PREFIX);
        let described = described.await.map_err(|error| self.fault(error))?;
        Ok(described.into())
    }

    /// Makes one directory.
    async fn make_directory(&self, path: &str) -> Result<(), Error> {
        let made = self.runtime();
        let made = made.make_directory(self.id(), &self.who, path.as_bytes(), 0o755, false);
        made.await
    }

    /// Makes what is missing above a path.
    async fn make_above(&self, path: &str) -> Result<(), Fault> {
        let Some(above) = above(path) else {
            return Ok(());
        };
        let made = self.runtime();
        let made = made.make_directory(self.id(), &self.who, above.as_bytes(), 0o755, true);
        made.await.map_err(|error| self.fault(error))
    }

    fn fault(&self, error: Error) -> Fault {
        in_their_words(error, &self.who)
    }
}

/// A refusal in the words that E2B's clients and their users know.
fn in_their_words(error: Error, who: &Caller) -> Fault {
    let errno = error.details.get("errno");
    match error.code {
        Code::UnknownUser => Fault::new("unauthenticated", unknown_user(who)),
        _ if errno.is_some_and(|errno| errno == "ELOOP") => {
            Fault::new("failed_precondition", error.message)
        }
        _ => error.into(),
    }
}

#[derive(Debug, Default, Deserialize)]
struct Which {
    #[serde(default)]
    path: String,
}

async fn stat(place: Place, Unary(asked): Unary<Which>) -> Result<Json<Value>, Fault> {
    let entry = place.describe(&clean(&asked.path)).await?;
    Ok(Json(json!({ "entry": entry })))
}

async fn make_dir(place: Place, Unary(asked): Unary<Which>) -> Result<Json<Value>, Fault> {
    let path = clean(&asked.path);
    place.make_above(&path).await?;
    match place.make_directory(&path).await {
        Ok(()) => {}
        Err(error) if error.code == Code::FileExists => {
            return Err(in_the_way(&place, &path).await);
        }
        Err(error) => return Err(place.fault(error)),
    }
    let entry = place.describe(&path).await?;
    Ok(Json(json!({ "entry": entry })))
}

async fn in_the_way(place: &Place, path: &str) -> Fault {
    if place.is_directory(path).await {
        let message = format!("directory already exists: {path}");
        return Fault::new("already_exists", message);
    }
    let message = format!("path already exists but it is not a directory: {path}");
    Fault::new("invalid_argument", message)
}

#[derive(Debug, Default, Deserialize)]
struct Move {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

async fn rename(place: Place, Unary(asked): Unary<Move>) -> Result<Json<Value>, Fault> {
    let (from, to) = (clean(&asked.source), clean(&asked.destination));
    place.make_above(&to).await?;
    let (id, runtime) = (place.id(), place.runtime());
    let renamed = runtime.rename(id, &place.who, from.as_bytes(), to.as_bytes(), true);
    renamed.await.map_err(|error| place.fault(error))?;
    let entry = place.describe(&to).await?;
    Ok(Json(json!({ "entry": entry })))
}

#[derive(Debug, Default, Deserialize)]
struct List {
    #[serde(default)]
    path: String,
    /// None is one level.
    #[serde(default)]
    depth: u32,
}

async fn list_dir(place: Place, Unary(asked): Unary<List>) -> Result<Json<Value>, Fault> {
    let (path, depth) = (clean(&asked.path), asked.depth.max(1));
    let runtime = place.runtime();
    let which = (path.as_bytes(), depth, ENTRIES);
    let listed = runtime.describe_tree(place.id(), &place.who, which, PREFIX);
    let (entries, more) = listed.await.map_err(|error| place.fault(error))?;
    if more {
        let message = format!("{path} has more than {ENTRIES} entries: list less of it");
        return Err(Fault::new("failed_precondition", message));
    }
    let entries: Vec<EntryInfo> = entries.into_iter().map(EntryInfo::from).collect();
    Ok(Json(json!({ "entries": entries })))
}

/// Removes a file, or a directory with all that is in it; that it is not there is no failure.
async fn remove(place: Place, Unary(asked): Unary<Which>) -> Result<Json<Value>, Fault> {
    let path = clean(&asked.path);
    let runtime = place.runtime();
    let removed = runtime.remove(place.id(), &place.who, path.as_bytes(), true);
    match removed.await {
        Err(error) if error.code != Code::FileNotFound => Err(place.fault(error)),
        _ => Ok(Json(json!({}))),
    }
}

//! Changes of the tree.

use atoll_model::Error;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use serde::Deserialize;

use super::place::{Files, Rights};
use crate::App;
use crate::answer::{Answer, Failure};
use crate::body::{Body, Query};

/// What is to change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    path: Option<String>,
    from: Option<String>,
    to: Option<String>,
    mode: Option<String>,
    owner: Option<String>,
    group: Option<String>,
    user: Option<String>,
    authority: Option<Rights>,
    #[serde(default)]
    replace: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Aside {
    path: Option<String>,
}

/// What is to change, and where. Path and user may stand in the body or behind the question mark.
#[derive(Debug)]
pub(super) struct Changing {
    files: Files,
    asked: Change,
}

impl FromRequest<App> for Changing {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        let mut files = Files::from_request_parts(&mut parts, app).await?;
        let Query(aside) = Query::<Aside>::from_request_parts(&mut parts, app).await?;
        let request = Request::from_parts(parts, body);
        let Body(mut asked) = Body::<Change>::from_request(request, app).await?;
        asked.path = asked.path.or(aside.path);
        if asked.user.is_some() {
            files.who.user.clone_from(&asked.user);
        }
        if let Some(rights) = asked.authority {
            files.who.authority = rights.into();
        }
        Ok(Self { files, asked })
    }
}

impl Changing {
    fn path(&self) -> Result<&[u8], Error> {
        need("path", self.asked.path.as_deref())
    }

    fn from(&self) -> Result<&[u8], Error> {
        need("from", self.asked.from.as_deref())
    }

    fn to(&self) -> Result<&[u8], Error> {
        need("to", self.asked.to.as_deref())
    }

    async fn rename(&self, from: &[u8], to: &[u8]) -> Answer<StatusCode> {
        let Self { files, asked } = self;
        let runtime = files.runtime();
        let renamed = runtime.rename(files.id(), &files.who, from, to, asked.replace);
        renamed.await?;
        Ok(StatusCode::NO_CONTENT)
    }
}

fn need<'a>(field: &str, value: Option<&'a str>) -> Result<&'a [u8], Error> {
    let value = value.filter(|value| !value.is_empty());
    value.map(str::as_bytes).ok_or_else(|| {
        Error::invalid(
            field,
            format!("{field} is required"),
            "give a path in the sandbox",
        )
    })
}

/// Permission bits as people write them.
pub(super) fn octal(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8);
    mode.ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        let message = format!("{text:?} is not a mode");
        Error::invalid("mode", message, "write it in octal, like 644")
    })
}

pub(super) async fn make_directory(change: Changing) -> Answer<StatusCode> {
    let Changing { files, asked } = &change;
    let mode = asked.mode.as_deref().map_or(Ok(0o755), octal)?;
    let runtime = files.runtime();
    let made = runtime.make_directory(files.id(), &files.who, change.path()?, mode, true);
    made.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rename(change: Changing) -> Answer<StatusCode> {
    change.rename(change.from()?, change.to()?).await
}

/// Into a directory, under the same name.
pub(super) async fn move_into(change: Changing) -> Answer<StatusCode> {
    let from = change.from()?;
    let name = from
        .rsplit(|byte| *byte == b'/')
        .find(|part| !part.is_empty());
    let to = [change.to()?, b"/", name.unwrap_or_default()].concat();
    change.rename(from, &to).await
}

pub(super) async fn copy(change: Changing) -> Answer<StatusCode> {
    let Changing { files, asked } = &change;
    let (from, to) = (change.from()?, change.to()?);
    let runtime = files.runtime();
    let copied = runtime.copy(files.id(), &files.who, from, to, asked.replace);
    copied.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn chmod(change: Changing) -> Answer<StatusCode> {
    let Changing { files, asked } = &change;
    let path = change.path()?;
    let mode = octal(asked.mode.as_deref().unwrap_or_default())?;
    let changed = files.runtime().chmod(files.id(), &files.who, path, mode);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn chown(change: Changing) -> Answer<StatusCode> {
    let Changing { files, asked } = &change;
    let path = change.path()?;
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let (owner, group) = (name(&asked.owner), name(&asked.group));
    let runtime = files.runtime();
    let changed = runtime.chown(files.id(), &files.who, path, &owner, &group);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

//! Files that come in: one as it is, or several as the parts of a form.

use std::collections::{BTreeMap, HashSet};

use atoll_model::{Attributes, Error};
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::{Stream, TryStreamExt as _};
use serde::Serialize;

use super::body::Body;
use super::{metadata, refusal};
use crate::e2b::envd::target::{Place, clean, name};
use crate::e2b::error::{Answer, Refusal};
use crate::file_body;

/// What became of one.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

fn wrong(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

/// Writes all files of a body.
pub(super) async fn all(
    place: &Place,
    path: Option<String>,
    headers: &HeaderMap,
    body: &mut Body,
) -> Answer<Vec<Written>> {
    let attributes = metadata::attributes(headers)?;
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if let Ok(boundary) = multer::parse_boundary(kind) {
        return parts(place, path, &attributes, body, boundary).await;
    }
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/octet-stream") {
        let message = format!(
            "Content-Type '{kind}' is neither multipart/form-data nor application/octet-stream"
        );
        return Err(wrong(message));
    }
    let path = path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| wrong("query parameter 'path' is required"))?;
    let written = one(place, &clean(&path), attributes, body.chunks()).await?;
    Ok(vec![written])
}

/// The parts of a form that are files. Where they go says their name, if the query does not.
async fn parts(
    place: &Place,
    path: Option<String>,
    attributes: &Attributes,
    body: &mut Body,
    boundary: String,
) -> Answer<Vec<Written>> {
    let unread = |error: multer::Error| wrong(format!("the form cannot be read: {error}"));
    let mut form = multer::Multipart::new(body.chunks(), boundary);
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    while let Some(part) = form.next_field().await.map_err(unread)? {
        if part.name() != Some("file") {
            continue;
        }
        let named = part.file_name().map(unescaped);
        let named = path.clone().or(named).filter(|path| !path.is_empty());
        let named = named.ok_or_else(|| wrong("a file has no path"))?;
        let named = clean(&named);
        if !seen.insert(named.clone()) {
            let message = format!(
                "you cannot upload multiple files to the same path '{named}' in one upload request, only the first specified file was uploaded"
            );
            return Err(wrong(message));
        }
        let chunks = part.map_err(|error| {
            let message = format!("the form cannot be read: {error}");
            Error::invalid("body", message, "send it again, whole")
        });
        all.push(one(place, &named, attributes.clone(), chunks).await?);
    }
    Ok(all)
}

/// Forms write what would end a name, or its line, as numbers.
fn unescaped(name: &str) -> String {
    let name = name.replace("%22", "\"");
    name.replace("%0D", "\r").replace("%0A", "\n")
}

/// Writes one file.
async fn one(
    place: &Place,
    path: &str,
    attributes: Attributes,
    chunks: impl Stream<Item = Result<Bytes, Error>>,
) -> Answer<Written> {
    let metadata = attributes.values.clone();
    let written = async {
        let writer = place.runtime();
        let writer =
            writer.write_file_with_attributes(place.id(), &place.who, path.as_bytes(), attributes);
        let mut writer = writer.await?;
        file_body::pour(chunks, &mut writer).await?;
        writer.commit().await
    };
    match written.await {
        Ok(entry) => {
            let path = clean(&String::from_utf8_lossy(&entry.path));
            Ok(Written {
                name: name(&path).to_owned(),
                path,
                kind: "file",
                metadata,
            })
        }
        Err(error) => Err(refusal(error, place, path).await),
    }
}

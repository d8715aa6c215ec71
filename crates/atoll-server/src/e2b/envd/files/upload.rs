//! Uploads: a raw body with one file, or multipart form data with several.

use std::collections::{BTreeMap, HashSet};

use atoll_model::{Attributes, Error};
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::{Stream, TryStreamExt as _};
use serde::Serialize;

use super::body::UploadBody;
use super::{metadata, to_e2b_error};
use crate::e2b::envd::target::{FileTarget, clean_path, file_name};
use crate::e2b::error::{E2bError, E2bResult};
use crate::file_body;

/// Result for one file.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

fn invalid(message: impl Into<String>) -> E2bError {
    E2bError::new(StatusCode::BAD_REQUEST, message)
}

/// Writes all files of a body.
pub(super) async fn write_files(
    target: &FileTarget,
    path: Option<String>,
    headers: &HeaderMap,
    body: &mut UploadBody,
) -> E2bResult<Vec<Written>> {
    let attributes = metadata::attributes(headers)?;
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if let Ok(boundary) = multer::parse_boundary(kind) {
        return write_form_files(target, path, &attributes, body, boundary).await;
    }
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/octet-stream") {
        let message = format!(
            "Content-Type '{kind}' is neither multipart/form-data nor application/octet-stream"
        );
        return Err(invalid(message));
    }
    let path = path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| invalid("query parameter 'path' is required"))?;
    let written = write_file(target, &clean_path(&path), attributes, body.chunks()).await?;
    Ok(vec![written])
}

/// Writes the files of a form. The query's path takes precedence over the names in the form.
async fn write_form_files(
    target: &FileTarget,
    path: Option<String>,
    attributes: &Attributes,
    body: &mut UploadBody,
    boundary: String,
) -> E2bResult<Vec<Written>> {
    let unread = |error: multer::Error| invalid(format!("the form cannot be read: {error}"));
    let mut form = multer::Multipart::new(body.chunks(), boundary);
    let mut seen = HashSet::new();
    let mut written = Vec::new();
    while let Some(part) = form.next_field().await.map_err(unread)? {
        if part.name() != Some("file") {
            continue;
        }
        let file_path = part.file_name().map(unescaped);
        let file_path = path.clone().or(file_path).filter(|path| !path.is_empty());
        let file_path = file_path.ok_or_else(|| invalid("a file has no path"))?;
        let file_path = clean_path(&file_path);
        if !seen.insert(file_path.clone()) {
            let message = format!(
                "you cannot upload multiple files to the same path '{file_path}' in one upload request, only the first specified file was uploaded"
            );
            return Err(invalid(message));
        }
        let chunks = part.map_err(|error| {
            let message = format!("the form cannot be read: {error}");
            Error::invalid("body", message, "send the whole body again")
        });
        written.push(write_file(target, &file_path, attributes.clone(), chunks).await?);
    }
    Ok(written)
}

/// Decodes quotes and line breaks, which forms percent-encode in names.
fn unescaped(name: &str) -> String {
    let name = name.replace("%22", "\"");
    name.replace("%0D", "\r").replace("%0A", "\n")
}

/// Writes one file.
async fn write_file(
    target: &FileTarget,
    path: &str,
    attributes: Attributes,
    chunks: impl Stream<Item = Result<Bytes, Error>>,
) -> E2bResult<Written> {
    let metadata = attributes.values.clone();
    let written = async {
        let writer = target.runtime();
        let writer = writer.write_file_with_attributes(
            target.id(),
            &target.run_as,
            path.as_bytes(),
            attributes,
        );
        let mut writer = writer.await?;
        file_body::copy_stream(chunks, &mut *writer).await?;
        writer.commit().await
    };
    match written.await {
        Ok(entry) => {
            let path = clean_path(&String::from_utf8_lossy(&entry.path));
            Ok(Written {
                name: file_name(&path).to_owned(),
                path,
                kind: "file",
                metadata,
            })
        }
        Err(error) => Err(to_e2b_error(error, target, path).await),
    }
}

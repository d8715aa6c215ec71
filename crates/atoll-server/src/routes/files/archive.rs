//! Files and directories as tar archives.

use atoll_model::{Code, Error, Unpacked};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::place::Files;
use super::tree::Which;
use crate::answer::Answer;
use crate::body::Query;
use crate::transfer::{bytes, chunks, pour};

pub(super) async fn pack(files: Files, Query(which): Query<Which>) -> Answer<Response> {
    let packed = files.runtime();
    let packed = packed.pack(files.id(), &files.who, which.path.as_bytes());
    let reader = packed.await?;
    Ok(bytes("application/x-tar", files.used, reader, None))
}

pub(super) async fn unpack(
    files: Files,
    Query(which): Query<Which>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Value>> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "archives are taken without a Content-Encoding",
        )
        .remedy("send it as tar makes it: tar -c . | curl -T - …")
        .into());
    }
    let unpacking = files.runtime();
    let unpacking = unpacking.unpack(files.id(), &files.who, which.path.as_bytes());
    let mut unpacking = unpacking.await?;
    pour(chunks(body), unpacking.writer()).await?;
    Ok(Json(view(&unpacking.finish().await?)))
}

fn view(unpacked: &Unpacked) -> Value {
    let told = unpacked
        .told
        .iter()
        .map(|(name, why)| json!({ "name": String::from_utf8_lossy(name), "why": why }));
    json!({
        "entries": unpacked.entries, "bytes": unpacked.bytes, "skipped": unpacked.left_out,
        "skippedEntries": told.collect::<Vec<_>>(),
    })
}

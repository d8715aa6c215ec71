//! The OpenAPI 3.1 document of the API. Handlers declare path, parameters and successful responses;
//! this module adds operation ids, tags, path parameters, error responses and common headers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use atoll_model::Code;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, PathItem};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ErrorBody;
use crate::{AppState, docs_page, routes};

/// Tags in the order of the document.
const TAGS: &[(&str, &str)] = &[
    (
        "sandboxes",
        "Isolated Linux environments, their metrics and logs.",
    ),
    (
        "commands",
        "Processes in a sandbox, in the foreground or background.",
    ),
    ("files", "Files of a sandbox, as raw bytes."),
    (
        "terminals",
        "Commands with a PTY, which several clients can share.",
    ),
    (
        "ports",
        "Listening ports in a sandbox, and tunnels to them.",
    ),
    ("templates", "Root file systems for sandboxes."),
    ("events", "Changes of sandboxes."),
    ("sessions", "History of sandboxes, including deleted ones."),
    ("keys", "API keys, and tickets for browsers."),
    ("orgs", "Owners of sandboxes and keys."),
    ("server", "The server itself, without authentication."),
];

/// Pattern and description of path parameters, by the preceding path segment.
const PATH_PARAMS: &[(&str, &str, &str)] = &[
    (
        "sandboxes",
        "^[a-z0-9][a-z0-9-]{0,62}$",
        "The id or the alias of a sandbox",
    ),
    (
        "commands",
        "^(exec_[a-z0-9]{20}|pid:[0-9]+|tag:[^/]+)$",
        "The id of a command, `pid:N` or `tag:NAME`",
    ),
    ("pty", "^pty_[a-z0-9]{20}$", "The id of a terminal"),
    ("ports", "^[1-9][0-9]{0,4}$", "A port, up to 65535"),
    (
        "sessions",
        "^(sess_[a-z0-9]{20}|i[a-z0-9]{20})$",
        "The id of a session or of its sandbox",
    ),
    (
        "templates",
        "^[a-z0-9][a-z0-9._-]{0,62}$",
        "The name of a template",
    ),
    ("keys", "^key_[a-z0-9]{20}$", "The id of a key"),
    ("orgs", "^org_[a-z0-9]{20}$", "The id of an org"),
];

/// Error codes by prefix of the path.
const ERRORS_BY_PREFIX: &[(&str, &[Code])] = &[
    (
        "/",
        &[Code::PermissionDenied, Code::Misdirected, Code::Internal],
    ),
    ("/sandboxes/{id}", &[Code::SandboxNotFound]),
    (
        "/sandboxes/{id}/",
        &[
            Code::Conflict,
            Code::SandboxPaused,
            Code::SandboxStopped,
            Code::SandboxFailed,
            Code::NoCapacity,
            Code::Timeout,
            Code::DiskFull,
        ],
    ),
    ("/sandboxes/{id}/commands/{exec}", &[Code::ExecNotFound]),
    (
        "/sandboxes/{id}/commands/{exec}/stdin",
        &[Code::StdinClosed, Code::TooLarge],
    ),
    (
        "/sandboxes/{id}/files",
        &[
            Code::FileNotFound,
            Code::FileExists,
            Code::NotAFile,
            Code::NotADirectory,
            Code::UnknownUser,
            Code::TooLarge,
            Code::RangeNotSatisfiable,
        ],
    ),
    ("/sandboxes/{id}/pty/{pty}", &[Code::TerminalNotFound]),
    ("/keys", &[Code::OrgNotFound]),
    ("/sandboxes/{id}/ports/{port}", &[Code::InvalidRequest]),
    ("/sessions/{id}", &[Code::SessionNotFound]),
    ("/templates/{name}", &[Code::TemplateNotFound]),
    ("/keys/{id}", &[Code::KeyNotFound]),
    ("/orgs/{id}", &[Code::OrgNotFound]),
];

/// Further error codes of single routes.
const ERRORS_BY_ROUTE: &[(&str, &str, &[Code])] = &[
    (
        "post",
        "/sandboxes",
        &[
            Code::UnknownTemplate,
            Code::Conflict,
            Code::IdempotencyMismatch,
            Code::QuotaExceeded,
            Code::UnsupportedByHost,
            Code::NoCapacity,
            Code::Timeout,
            Code::DiskFull,
        ],
    ),
    (
        "patch",
        "/sandboxes/{id}",
        &[Code::Conflict, Code::SandboxFailed, Code::DiskFull],
    ),
    ("post", "/orgs", &[Code::Conflict]),
    ("patch", "/orgs/{id}", &[Code::Conflict]),
    ("delete", "/orgs/{id}", &[Code::Conflict]),
    ("post", "/sandboxes/{id}/start", &[Code::QuotaExceeded]),
    ("post", "/sandboxes/{id}/restart", &[Code::QuotaExceeded]),
    (
        "post",
        "/sandboxes/{id}/commands",
        &[
            Code::UnknownUser,
            Code::CwdNotFound,
            Code::ProgramNotFound,
            Code::IdempotencyMismatch,
            Code::QuotaExceeded,
        ],
    ),
    ("put", "/sandboxes/{id}/network", &[Code::UnsupportedByHost]),
    ("get", "/sandboxes/{id}/files/watch", &[Code::QuotaExceeded]),
    (
        "put",
        "/sandboxes/{id}/files/archive",
        &[Code::UnsupportedMediaType],
    ),
    (
        "post",
        "/templates",
        &[
            Code::Conflict,
            Code::TooLarge,
            Code::UnsupportedMediaType,
            Code::UnsupportedByHost,
            Code::DiskFull,
        ],
    ),
    ("delete", "/templates/{name}", &[Code::Conflict]),
    ("post", "/tickets", &[Code::QuotaExceeded]),
    (
        "post",
        "/sandboxes/{id}/pty",
        &[
            Code::UnknownUser,
            Code::CwdNotFound,
            Code::ProgramNotFound,
            Code::IdempotencyMismatch,
            Code::QuotaExceeded,
        ],
    ),
];

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(description))
        .routes(routes!(page))
}

/// OpenAPI
///
/// The OpenAPI document of this API.
#[utoipa::path(get, path = "/openapi.json", security(()), responses((status = 200, body = Object)))]
async fn description() -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "application/json");
    ([kind], Bytes::from_static(openapi().as_bytes()))
}

/// Reference
///
/// The OpenAPI document as an HTML page.
#[utoipa::path(get, path = "/docs", security(()), responses((status = 200, content_type = "text/html", body = String)))]
async fn page() -> impl IntoResponse {
    docs_page::respond()
}

/// The OpenAPI document of all routes.
pub fn openapi() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let document = build_document(&routes::openapi());
        // Cannot fail for a JSON value.
        let text = serde_json::to_string_pretty(&document).unwrap_or_default() + "\n";
        // The format registry spells it `uint`.
        text.replace("\"u-int", "\"uint")
    });
    &TEXT
}

/// Sets tag and operation id prefix of a router's operations.
pub(crate) fn with_tag(name: &str, mut router: OpenApiRouter<AppState>) -> OpenApiRouter<AppState> {
    let paths = &mut router.get_openapi_mut().paths.paths;
    for operation in paths.values_mut().flat_map(operations) {
        let own = operation.operation_id.take().unwrap_or_default();
        operation.operation_id = Some(format!("{name}_{own}"));
        operation.tags = Some(vec![name.to_owned()]);
    }
    router
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [
        &mut item.get,
        &mut item.post,
        &mut item.put,
        &mut item.patch,
        &mut item.delete,
    ];
    all.into_iter().flatten()
}

/// Adds path parameters, error responses and metadata to the document.
fn build_document(routes: &OpenApi) -> Value {
    let mut document = json!(routes);
    let mut responses_by_name = BTreeMap::new();
    let schemas = document["components"]["schemas"].take();
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, item) in paths {
            let params = path_params(path);
            if !params.is_empty() {
                item["parameters"] = params.into();
            }
            for method in METHODS {
                if let Some(operation) = item.get_mut(method) {
                    add_common_responses(method, path, operation, &mut responses_by_name);
                    make_body_optional(operation, &schemas);
                }
            }
        }
    }
    document["info"] = json!({
        "title": "Atoll",
        "description": "Isolated Linux sandboxes: run commands, move files, open terminals.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["servers"] = json!([
        { "url": "/" },
        { "url": "/api", "description": "The same routes, except `/sessions`" },
    ]);
    document["security"] = json!([{ "key": [] }, { "bearer": [] }]);
    document["tags"] = TAGS
        .iter()
        .map(|(name, description)| json!({ "name": name, "description": description }))
        .collect();
    let components = &mut document["components"];
    components["schemas"] = schemas;
    components["securitySchemes"] = json!({
        "key": { "type": "apiKey", "in": "header", "name": "X-API-Key", "description": "`atl_` and 64 hex digits" },
        "bearer": { "type": "http", "scheme": "bearer", "description": "The same key" },
    });
    components["headers"] = json!({
        "X-Request-ID": {
            "description": "Id of the request, as in the server's log",
            "schema": { "type": "string", "pattern": "^req_[a-z0-9]{20}$" },
            "required": true,
        },
        "WWW-Authenticate": {
            "description": "The authentication scheme, for a 401",
            "schema": { "type": "string" },
            "required": true,
        },
        "X-Next-Cursor": {
            "description": "Cursor of the next page; missing on the last page",
            "schema": { "type": "string" },
        },
    });
    components["responses"] = json!(responses_by_name);
    let mut schemas = vec![(ErrorBody::name().into_owned(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    for (name, schema) in schemas {
        components["schemas"][name] = json!(schema);
    }
    document
}

/// Marks a JSON body without required fields as optional.
fn make_body_optional(operation: &mut Value, schemas: &Value) {
    let body = "/requestBody/content/application~1json/schema/$ref";
    let name = operation.pointer(body).and_then(Value::as_str);
    let name = name.and_then(|name| name.rsplit('/').next());
    if name.is_some_and(|name| schemas[name].get("required").is_none()) {
        operation["requestBody"]["required"] = false.into();
    }
}

/// The parameters of a path.
fn path_params(path: &str) -> Vec<Value> {
    let words: Vec<&str> = path.split('/').collect();
    let pairs = words.windows(2).filter_map(|pair| match pair {
        [before, part] => Some((before, part.strip_prefix('{')?.strip_suffix('}')?)),
        _ => None,
    });
    let params = pairs.map(|(before, name)| {
        let known = PATH_PARAMS.iter().find(|(word, ..)| word == before);
        let (_, pattern, description) = known.copied().unwrap_or_default();
        json!({
            "name": name, "in": "path", "required": true, "description": description,
            "schema": { "type": "string", "pattern": pattern },
        })
    });
    params.collect()
}

/// Adds common headers, default descriptions and error responses to an operation.
fn add_common_responses(
    method: &str,
    path: &str,
    operation: &mut Value,
    responses_by_name: &mut BTreeMap<String, Value>,
) {
    let request_id = json!({ "$ref": "#/components/headers/X-Request-ID" });
    let paged = operation["parameters"]
        .as_array()
        .is_some_and(|all| all.iter().any(|parameter| parameter["name"] == "cursor"));
    let by_status = error_codes(method, path, operation);
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    for (status, response) in responses.iter_mut() {
        response["headers"]["X-Request-ID"] = request_id.clone();
        if paged {
            let next = json!({ "$ref": "#/components/headers/X-Next-Cursor" });
            response["headers"]["X-Next-Cursor"] = next;
        }
        if response["description"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
        {
            response["description"] = default_description(status).into();
        }
    }
    for (status, with_status) in by_status {
        let names: Vec<&str> = with_status.iter().map(|code| code.name()).collect();
        let name = names.join(".");
        let means = with_status
            .iter()
            .map(|code| format!("- `{}`: {}", code.name(), code.meaning()));
        let means: Vec<String> = means.collect();
        responses
            .entry(status.to_string())
            .or_insert_with(|| json!({ "$ref": format!("#/components/responses/{name}") }));
        responses_by_name.entry(name).or_insert_with(|| {
            let mut headers = json!({ "X-Request-ID": request_id });
            if status == 401 {
                let challenge = json!({ "$ref": "#/components/headers/WWW-Authenticate" });
                headers["WWW-Authenticate"] = challenge;
            }
            json!({
                "description": means.join("\n"),
                "headers": headers,
                "content": { "application/json": { "schema": { "allOf": [
                    { "$ref": "#/components/schemas/Failure" },
                    { "properties": { "code": { "enum": names } } },
                ] } } },
            })
        });
    }
}

/// Description of a response whose handler gives none.
fn default_description(status: &str) -> &'static str {
    match status {
        "201" => "Created",
        "204" => "Done",
        _ => "OK",
    }
}

/// Error codes of an operation, by status.
fn error_codes(method: &str, path: &str, operation: &Value) -> BTreeMap<u16, BTreeSet<Code>> {
    let mut all = BTreeSet::new();
    for (begin, some) in ERRORS_BY_PREFIX {
        if path.starts_with(begin) {
            all.extend(*some);
        }
    }
    for (one, place, some) in ERRORS_BY_ROUTE {
        if (*one, *place) == (method, path) {
            all.extend(*some);
        }
    }
    if operation.get("security").is_none() {
        all.extend([Code::MissingApiKey, Code::InvalidApiKey, Code::RateLimited]);
        if method == "get" {
            all.insert(Code::InvalidTicket);
        }
    }
    let body = operation.pointer("/requestBody/content/application~1json");
    // A POST without parameters accepts an empty object.
    let empty = method == "post" && operation.get("requestBody").is_none();
    if body.is_some() || empty {
        all.extend([
            Code::InvalidRequest,
            Code::TooLarge,
            Code::UnsupportedMediaType,
        ]);
    }
    if operation.get("parameters").is_some() || path.contains('{') {
        all.insert(Code::InvalidRequest);
    }
    let mut by_status = BTreeMap::<u16, BTreeSet<Code>>::new();
    for code in all {
        by_status.entry(code.status()).or_default().insert(code);
    }
    by_status
}

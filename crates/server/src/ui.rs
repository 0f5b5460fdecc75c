//! The dashboard: files embedded by `build.rs`. Every page is the same index, which calls the API.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

struct UiFile {
    name: &'static str,
    tag: &'static str,
    content: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/ui.rs"));

/// First path segments of its pages; the same as in `ui/src/shell/pages.ts`, which a test compares.
const PAGES: &[&str] = &[
    "admin",
    "analytics",
    "e",
    "errors",
    "executions",
    "guards",
    "playground",
    "rules",
    "schedules",
    "t",
    "tasks",
    "upcoming",
    "workers",
    "workflows",
    "x",
];

/// Content security policy: own origin only, no inline code.
const SECURITY: &str =
    "default-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'";

/// Base of relative links in the index, so that it works behind any prefix.
const BASE: &str = "<base href=\"./\"";

/// Path of the batches screen in the dialect `task`, and the path it redirects to.
const VIEW: (&str, &str) = ("/view", "executions");

/// Fallback route: a file or page of the dashboard, or 404.
pub async fn answer(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if method == Method::GET && uri.path() == VIEW.0 {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, VIEW.1)]).into_response();
    }
    let found = matches!(method, Method::GET | Method::HEAD).then(|| find(uri.path())).flatten();
    let Some((file, depth)) = found else { return Problem::not_found("route").into_response() };
    if headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == file.tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, file.tag)]).into_response();
    }
    let is_index = file.name == "index.html";
    // Names under `assets` carry a hash of what they hold.
    let keep = if file.name.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut response = match (is_index, std::str::from_utf8(file.content)) {
        (true, Ok(text)) => text.replacen(BASE, &format!("<base href=\"{}\"", up(depth)), 1).into_response(),
        _ => file.content.into_response(),
    };
    for (name, value) in [
        (header::CONTENT_TYPE, kind(file.name)),
        (header::CACHE_CONTROL, keep),
        (header::CONTENT_SECURITY_POLICY, SECURITY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    // The index differs by address, and a browser keeps it by address.
    response.headers_mut().insert(header::ETAG, HeaderValue::from_static(file.tag));
    response
}

/// The file at a path, and the depth of the path.
fn find(path: &str) -> Option<(&'static UiFile, usize)> {
    let path = path.strip_prefix('/')?;
    let named = |name: &str| FILES.iter().find(|file| file.name == name);
    if path.is_empty() {
        return Some((named("index.html")?, 0));
    }
    let first = path.split('/').next().unwrap_or_default();
    if PAGES.contains(&first) {
        return Some((named("index.html")?, path.matches('/').count()));
    }
    named(path).map(|file| (file, 0))
}

fn up(depth: usize) -> String {
    if depth == 0 { "./".into() } else { "../".repeat(depth) }
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_the_index_and_files_are_themselves() {
        for (path, depth) in [("/", 0), ("/tasks", 0), ("/t/01a1", 1), ("/workflows/a/b/c", 3), ("/tasks/", 1)] {
            let (file, found) = find(path).unwrap_or_else(|| panic!("{path} is there"));
            assert_eq!((file.name, found), ("index.html", depth), "{path}");
        }
        assert!(FILES.iter().all(|file| find(&format!("/{}", file.name)).is_some()));
        for nothing in ["/nowhere", "/api", "/assets/", "/index", "/../Cargo.toml", "//", ""] {
            assert!(find(nothing).is_none(), "{nothing}");
        }
    }

    #[tokio::test]
    async fn the_index_finds_its_parts_from_every_depth() {
        for (path, base) in [("/", "\"./\""), ("/t/1", "\"../\""), ("/workflows/a/b", "\"../../\"")] {
            let response = answer(Method::GET, Uri::from_static(path), HeaderMap::new()).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], SECURITY);
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
            let text = std::str::from_utf8(&body).expect("text");
            assert!(text.contains(&format!("<base href={base}")), "{path}: {text}");
            assert!(!text.contains("<style") && !text.contains(" style=") && !text.contains("<script>"), "{path}");
        }
    }

    /// F1-15.
    #[tokio::test]
    async fn the_view_of_batches_leads_to_the_dashboard() {
        let response = answer(Method::GET, Uri::from_static("/view"), HeaderMap::new()).await;
        assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(response.headers()[header::LOCATION], "executions", "behind any prefix");
        assert!(find("/executions").is_some());
    }

    #[tokio::test]
    async fn what_did_not_change_is_not_sent_again() {
        let first = answer(Method::GET, Uri::from_static("/"), HeaderMap::new()).await;
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        let second = answer(Method::GET, Uri::from_static("/"), headers).await;
        assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
        let other = answer(Method::POST, Uri::from_static("/"), HeaderMap::new()).await;
        assert_eq!(other.status(), StatusCode::NOT_FOUND);
    }
}

//! The API reference as a self-contained page without external resources.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::route_set::RouteSet;
use crate::routes::{Route, table};

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// The API reference page and its content security policy.
pub struct DocPage {
    pub text: Bytes,
    /// Content security policy: only this script, this style and the document of this server.
    pub content_security_policy: String,
}

/// The routes as text, for browsers without scripts.
fn routes(added: &[RouteSet]) -> String {
    let one = |route: Route| format!("<p><code>{} {}</code> {}</p>", route.method, route.path, route.summary);
    table(added).into_iter().map(one).collect()
}

/// The page of a server with these added routes.
pub fn page(added: &[RouteSet]) -> DocPage {
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    DocPage {
        text: format!(
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width, \
             initial-scale=1\"><title>Comeback API</title><style>{STYLE}</style><body><noscript><main><h1>Comeback \
             API</h1><p>A script draws this page from <a href=/openapi.json>/openapi.json</a>. Without it, these are the \
             routes:</p>{}</main></noscript><script>{SCRIPT}</script></html>",
            routes(added)
        )
        .into(),
        content_security_policy: format!(
            "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            digest(SCRIPT),
            digest(STYLE)
        ),
    }
}

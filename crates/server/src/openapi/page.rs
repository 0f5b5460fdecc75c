//! The API reference as a self-contained page without external resources.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::routes::{Route, table};

const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// The API reference page and its content security policy.
pub struct DocPage {
    pub text: String,
    /// Content security policy: only this script, this style and the document of this server.
    pub content_security_policy: String,
}

/// Fallback without scripts.
fn routes() -> String {
    let one = |route: Route| format!("<p><code>{} {}</code> {}</p>", route.method, route.path, route.summary);
    table().into_iter().map(one).collect()
}

/// The page, built once.
pub fn page() -> &'static DocPage {
    static PAGE: LazyLock<DocPage> = LazyLock::new(|| {
        let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
        DocPage {
            text: format!(
                "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width, \
                 initial-scale=1\"><title>Comeback API</title><style>{STYLE}</style><body><noscript><main><h1>Comeback \
                 API</h1><p>A script draws this page from <a href=/openapi.json>/openapi.json</a>. Without it, these are the \
                 routes:</p>{}</main></noscript><script>{SCRIPT}</script></html>",
                routes()
            ),
            content_security_policy: format!(
                "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; \
                 form-action 'none'; frame-ancestors 'none'",
                digest(SCRIPT),
                digest(STYLE)
            ),
        }
    });
    &PAGE
}

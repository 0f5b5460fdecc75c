//! Masks secrets in every JSON response, whatever route made it.

use axum::body::{Body, HttpBody, to_bytes};
use axum::http::header;
use axum::response::Response;
use comeback_core::{Invalid, mask};
use comeback_engine::secrets::SENT_BACK;
use serde_json::Value;

/// Marks a response that its route has masked already.
#[derive(Clone, Copy)]
pub struct Masked;

/// Masks the body of a response. Streams are masked where they are written.
pub async fn answer(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.starts_with("application/json");
    let is_whole = response.body().size_hint().exact().is_some();
    if !is_json || !is_whole || response.extensions().get::<Masked>().is_some() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // It is in memory already.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return Response::from_parts(head, Body::empty()) };
    let masked = std::str::from_utf8(&bytes).ok().and_then(masked);
    match masked {
        None => Response::from_parts(head, Body::from(bytes)),
        Some(text) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, Body::from(text))
        }
    }
}

/// The text with its secrets masked. `None` if it holds none.
fn masked(text: &str) -> Option<String> {
    if !mask::may_hold_secrets(text) {
        return None;
    }
    let before: Value = serde_json::from_str(text).ok()?;
    let mut after = before.clone();
    mask::mask(&mut after);
    (after != before).then(|| after.to_string())
}

/// Refuses a value that contains a mask in place of a secret: it would overwrite the secret.
pub fn refuse_sent_back(at: &str, value: &Value) -> Result<(), Invalid> {
    match mask::mask_sent_back(value) {
        None => Ok(()),
        Some(path) if at.is_empty() => Err(Invalid::one(path, SENT_BACK)),
        Some(path) if path.is_empty() => Err(Invalid::one(at, SENT_BACK)),
        Some(path) => Err(Invalid::one(format!("{at}.{path}"), SENT_BACK)),
    }
}

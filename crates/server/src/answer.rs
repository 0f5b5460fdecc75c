//! Answers: what of a large one was not sent yet counts as memory of its namespace, so that readers that take it slowly take it from
//! nobody else.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

use crate::memory::Memory;

/// Answers up to this size are handed to the connection whole.
const SMALL: u64 = 64 << 10;
/// Bytes of a large answer that are handed to the connection at a time.
const PIECE: usize = 64 << 10;

/// Headers of every answer of the API: nobody keeps it, and nobody guesses what it is.
pub fn guard(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// The bytes of an answer, if they are many. Streams of events have a quota of their own.
pub fn large(response: &Response) -> Option<u64> {
    response.body().size_hint().exact().filter(|size| *size > SMALL)
}

/// Lets a large answer keep memory until the connection has taken it.
pub fn hold(response: Response, memory: Memory) -> Response {
    response.map(|body| Body::new(Held { body, piece: Bytes::new(), memory, yielded: true }))
}

/// A body in pieces, so that what the connection has not taken yet stays here.
struct Held {
    body: Body,
    piece: Bytes,
    memory: Memory,
    /// Whether other connections of this thread had their turn since the last piece.
    yielded: bool,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if self.piece.has_remaining() {
                self.yielded = !self.yielded;
                if self.yielded {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let size = self.piece.len().min(PIECE);
                let taken = self.piece.split_to(size);
                let left = self.size_hint().lower();
                self.memory.shrink_to(left);
                return Poll::Ready(Some(Ok(Frame::data(taken))));
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.piece = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.body.size_hint();
        let here = self.piece.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + here);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + here);
        }
        hint
    }
}

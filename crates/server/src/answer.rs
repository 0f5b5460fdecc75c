//! Response bodies. The unsent part of a large response counts against the memory quota of its namespace, so slow
//! readers hurt only themselves.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

use crate::memory::MemoryPermit;

/// Responses up to this size are sent in one piece.
const SMALL: u64 = 64 << 10;
/// Chunk size of a large response, in bytes.
const PIECE: usize = 64 << 10;

/// Sets the headers of every API response: no caching, no MIME sniffing.
pub fn guard(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Size of a response if it is large. Event streams have a quota of their own.
pub fn large(response: &Response) -> Option<u64> {
    response.body().size_hint().exact().filter(|size| *size > SMALL)
}

/// Makes a large response hold its memory permit until it is sent.
pub fn hold(response: Response, memory: MemoryPermit) -> Response {
    response.map(|body| Body::new(MeteredBody { body, piece: Bytes::new(), memory, yielded: true }))
}

/// A body sent in chunks that gives back memory as chunks are sent.
struct MeteredBody {
    body: Body,
    piece: Bytes,
    memory: MemoryPermit,
    /// Whether the task has yielded since the last chunk.
    yielded: bool,
}

impl HttpBody for MeteredBody {
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

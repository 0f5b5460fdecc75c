//! Routes that another crate adds to the server's own, and the interface that both make together.

use std::collections::HashMap;
use std::sync::OnceLock;

use axum::http::HeaderValue;
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;

use crate::openapi::page::DocPage;
use crate::openapi::{document, page};
use crate::problem::Problem;
use crate::routes::Line;

/// Routes that a crate adds to the server's own. They are authenticated, limited, masked and documented like those.
#[derive(Clone, Copy, Debug)]
pub struct RouteSet {
    /// Tag of these routes in the document.
    pub tag: &'static str,
    /// Description of the tag.
    pub about: &'static str,
    /// Lines of the route table.
    pub lines: fn() -> Vec<Line>,
    /// Schemas that the lines refer to, by name.
    pub schemas: fn() -> Vec<(&'static str, Value)>,
}

impl RouteSet {
    /// The lines under the tag of the set.
    pub(crate) fn tagged_lines(&self) -> Vec<Line> {
        (self.lines)().into_iter().map(|line| line.tag(self.tag)).collect()
    }
}

/// The form of errors on routes whose clients do not read problem documents (RFC 9457).
#[derive(Debug)]
pub struct ErrorFormat {
    /// Name of the schema of the body.
    pub schema: &'static str,
    /// The body for a problem, with the id of the request.
    pub body: fn(&Problem, &str) -> Value,
}

/// Header with the type of a problem that is told in another form.
const PROBLEM: &str = "comeback-problem";

impl ErrorFormat {
    /// The response for a problem.
    pub(crate) fn render(&self, problem: &Problem, request_id: &str) -> Response {
        let mut response = problem.render_as((self.body)(problem, request_id), "application/json");
        if let Ok(slug) = HeaderValue::from_str(&problem.slug()) {
            response.headers_mut().insert(PROBLEM, slug);
        }
        response
    }
}

/// The routes of one server beside its own, and the documents that follow from all of them.
pub(crate) struct Interface {
    pub added: Vec<RouteSet>,
    /// Error formats by the path of the route, where errors are no problem documents.
    error_formats: HashMap<&'static str, &'static ErrorFormat>,
    document: OnceLock<Bytes>,
    page: OnceLock<DocPage>,
}

impl Interface {
    pub fn new(added: Vec<RouteSet>) -> Interface {
        let routes = added.iter().flat_map(RouteSet::tagged_lines).map(Line::into_route);
        let error_formats = routes.filter_map(|route| Some((route.path, route.error_format?))).collect();
        Interface { added, error_formats, document: OnceLock::new(), page: OnceLock::new() }
    }

    /// Renders a problem as clients of the route at this path read it.
    pub fn render(&self, path: Option<&str>, problem: &Problem, request_id: &str) -> Response {
        match path.and_then(|path| self.error_formats.get(path)) {
            Some(format) => format.render(problem, request_id),
            None => problem.render(request_id),
        }
    }

    /// The OpenAPI document as text.
    pub fn document(&self) -> Bytes {
        self.document.get_or_init(|| document(&self.added).to_string().into()).clone()
    }

    /// The document as a page.
    pub fn page(&self) -> &DocPage {
        self.page.get_or_init(|| page::page(&self.added))
    }
}

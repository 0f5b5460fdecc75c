//! The table of all routes: the role each one needs, its handler and its description. A route that is not in the table does not exist.
//!
//! Over 500 lines: the table, the guard of every route and the reader of its query are the way of one request.

mod accounts;
pub mod admin;
mod alerts;
mod audit;
mod cleanup;
pub mod clock;
mod dependencies;
pub mod errors;
pub mod events;
mod executions;
mod health;
mod keys;
pub mod leases;
mod metrics;
mod operations;
mod policies;
mod query;
mod retries;
mod rules;
mod schedules;
mod secrets;
mod stats;
mod subscriptions;
pub mod tasks;
mod workers;
mod workflow_acts;
mod workflows;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use comeback_core::{Invalid, TaskId};
use comeback_engine::store::{Running, interactive, panic_point};
use uuid::Uuid;

use crate::auth::{self, Need};
use crate::auth_failures::{self, RefusalReason};
use crate::connections::ClientConnection;
use crate::limiter::{Admitted, LimiterOptions, RequestClass, check_length};
use crate::openapi::Doc;
use crate::problem::Problem;
use crate::route_set::{ErrorFormat, RouteSet};
use crate::{App, RequestRecord, answer, heavy, mask, ui};

pub use query::{CURSOR, LABELS, LIMIT, Query, header_text};

/// State that every handler takes.
pub type AppState = State<Arc<App>>;

/// One route: its method, path, required role and documentation.
#[derive(Clone, Debug)]
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub need: Need,
    pub summary: &'static str,
    /// Documentation; a test requires it.
    pub doc: Option<Doc>,
    /// The form of its errors, if they are no problem documents.
    pub error_format: Option<&'static ErrorFormat>,
    /// Its tag in the document, if that does not follow from its path.
    pub tag: Option<&'static str>,
    /// Bodies of many megabytes are expected here.
    large: bool,
    /// Workers ask for work here.
    leases: bool,
}

impl Route {
    /// Maximum body size in bytes.
    pub fn most_bytes(&self, options: &LimiterOptions) -> usize {
        if self.large { options.large_body } else { options.small_body }
    }

    /// The class of requests that it is limited with.
    pub fn class(&self) -> RequestClass {
        if self.leases { RequestClass::Lease } else { RequestClass::of(&self.method, self.need) }
    }
}

/// A route and its handler.
#[derive(Debug)]
pub struct Line {
    route: Route,
    answer: MethodRouter<Arc<App>>,
}

impl Line {
    /// Describes the route.
    pub fn doc(mut self, doc: Doc) -> Line {
        self.route.doc = Some(doc);
        self
    }

    /// Answers errors in another form than problem documents.
    pub fn errors(mut self, format: &'static ErrorFormat) -> Line {
        self.route.error_format = Some(format);
        self
    }

    /// Limits the route with the other requests for work.
    pub fn leases(mut self) -> Line {
        self.route.leases = true;
        self
    }

    /// Puts the route under a tag of the document.
    pub(crate) fn tag(mut self, tag: &'static str) -> Line {
        self.route.tag = Some(tag);
        self
    }

    /// The route without its handler.
    pub(crate) fn into_route(self) -> Route {
        self.route
    }
}

/// A line of the table, without a description.
pub fn line(
    method: Method,
    path: &'static str,
    need: Need,
    summary: &'static str,
    answer: MethodRouter<Arc<App>>,
) -> Line {
    let (doc, error_format, tag) = (None, None, None);
    Line { route: Route { method, path, need, summary, doc, error_format, tag, large: false, leases: false }, answer }
}

/// The line with room for bodies of many megabytes.
pub fn large(mut line: Line) -> Line {
    line.route.large = true;
    line
}

fn lines(added: &[RouteSet]) -> Vec<Line> {
    [health::lines(), metrics::lines(), tasks::lines(), leases::lines(), events::lines(), policies::lines()]
        .into_iter()
        .chain([
            workflows::lines(),
            workflow_acts::lines(),
            executions::lines(),
            schedules::lines(),
            rules::lines(),
            accounts::lines(),
        ])
        .chain([dependencies::lines()])
        .chain([retries::lines(), errors::lines()])
        .chain([operations::lines()])
        .chain([subscriptions::lines(), alerts::lines(), secrets::lines()])
        .chain([
            stats::lines(),
            clock::lines(),
            admin::lines(),
            workers::lines(),
            cleanup::lines(),
            audit::lines(),
            keys::lines(),
        ])
        .chain(added.iter().map(RouteSet::tagged_lines))
        .flatten()
        .collect()
}

/// All routes of a server with these added ones.
pub fn table(added: &[RouteSet]) -> Vec<Route> {
    lines(added).into_iter().map(Line::into_route).collect()
}

/// The router of all routes with their middleware.
pub fn router(app: &Arc<App>) -> Router {
    let mut router: Router<Arc<App>> = Router::new();
    for Line { route, answer } in lines(&app.interface.added) {
        let size = route.most_bytes(app.limiter.options());
        let class = route.class();
        // Documents hold no secrets, workers are given tasks as they are, and the answer to a submit has ids only.
        let masks = !(matches!(route.need, Need::Nothing | Need::Work) || route.large && route.path == "/api/v1/tasks");
        let guard = RouteGuard { app: app.clone(), path: route.path, need: route.need, class, size, masks };
        let takes_none = route.need != Need::Nothing && route.doc.as_ref().is_some_and(|doc| doc.query.is_empty());
        let answer = if takes_none { answer.route_layer(middleware::from_fn(no_parameters)) } else { answer };
        let guarded =
            answer.layer(DefaultBodyLimit::disable()).layer(middleware::from_fn_with_state(guard, guard_route));
        router = router.route(route.path, guarded);
    }
    router
        .fallback(ui::answer)
        .layer(middleware::from_fn(only_json))
        .layer(middleware::from_fn(not_from_another_site))
        .layer(middleware::from_fn_with_state(app.clone(), finish))
        .with_state(app.clone())
}

/// Middleware state of a route: authentication, body limit, admission and masking.
#[derive(Clone)]
struct RouteGuard {
    app: Arc<App>,
    path: &'static str,
    need: Need,
    class: RequestClass,
    size: usize,
    /// Whether secrets are masked in its responses.
    masks: bool,
}

/// Response extension: the path of the route that responded.
#[derive(Clone, Copy)]
struct MatchedRoute(&'static str);

async fn guard_route(State(guard): State<RouteGuard>, request: Request, next: Next) -> Response {
    let path = guard.path;
    let mut response = admit(guard, request, next).await.unwrap_or_else(Problem::into_response);
    response.extensions_mut().insert(MatchedRoute(path));
    response
}

/// Namespace of requests without a key in the limiter; no real namespace has this name.
const KEYLESS: &str = "";

/// Checks the key, reads the whole body, then waits for a permit: a slow sender never holds one.
async fn admit(guard: RouteGuard, request: Request, next: Next) -> Result<Response, Problem> {
    let connection = request.extensions().get::<ClientConnection>().cloned();
    let mut caller = match auth::check(&guard.app, guard.need, guard.path, &request) {
        Ok(caller) => caller,
        Err(problem) => {
            if let (StatusCode::UNAUTHORIZED, Some(connection)) = (problem.status, &connection) {
                guard.app.auth_failures.slow_down(connection.peer(), request.headers()).await?;
            }
            return Err(problem);
        }
    };
    let key_ends_at = caller.key_ends_at();
    caller.request = request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone());
    let namespace = if guard.need == Need::Nothing { KEYLESS.to_owned() } else { caller.namespace.clone() };
    if let (true, Some(connection)) = (guard.need != Need::Nothing, &connection) {
        connection.authenticated(&namespace);
    }
    // Public routes take no body, so none is read.
    let (mut request, memory) = match guard.need {
        Need::Nothing => {
            check_length(request.headers(), guard.size)?;
            (request.map(|_| Body::empty()), None)
        }
        _ => guard.app.limiter.read(request, guard.class, guard.size, &namespace).await?,
    };
    let permit = guard.app.limiter.acquire(guard.class, &namespace).await?;
    let is_large = request.body().size_hint().lower() > heavy::LARGE as u64;
    let large = match guard.class {
        RequestClass::Write if is_large => Some(guard.app.limiter.acquire_large(&namespace).await?),
        _ => None,
    };
    let admitted = Admitted::new((permit, large), memory);
    let reads = (guard.class == RequestClass::Look).then(|| guard.app.engine.interactive(&caller.namespace));
    request.extensions_mut().insert(caller);
    let answer = admitted.clone().during(async move {
        let response = next.run(request).await;
        if guard.masks { mask::answer(response).await } else { response }
    });
    let mut response = match reads {
        Some(reads) => heavy::run(interactive(reads, answer)).await,
        None if is_large => heavy::run(answer).await,
        None => answer.await,
    };
    if let Some(value) = key_ends_at.and_then(|at| HeaderValue::from_str(&at.to_rfc3339()).ok()) {
        response.headers_mut().insert(KEY_EXPIRES, value);
    }
    // The body is done; a large response counts until it is sent.
    admitted.release_memory();
    match answer::large(&response) {
        Some(size) => Ok(answer::hold(response, guard.app.limiter.answer(guard.class, &namespace, size)?)),
        None => Ok(response),
    }
}

/// Response header with the expiry of a key that expires within two weeks.
const KEY_EXPIRES: &str = "comeback-key-expires";

/// Refuses cross-site requests from browsers that would change something (CSRF).
async fn not_from_another_site(request: Request, next: Next) -> Result<Response, Problem> {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && auth::is_from_another_site(request.headers()) {
        return Err(Problem::forbidden("cross-site requests may not change anything"));
    }
    Ok(next.run(request).await)
}

/// Refuses bodies of media types that a web page can send cross-site without a preflight (CSRF).
async fn only_json(request: Request, next: Next) -> Result<Response, Problem> {
    let carries = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let is_empty =
        length == Some("0") || (length.is_none() && !request.headers().contains_key(header::TRANSFER_ENCODING));
    if carries && !is_empty {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        // Workflows are written in YAML; no web page can send that without asking for permission first (CORS).
        let is_yaml = *request.method() == Method::PUT && YAML.contains(&kind.as_str());
        if kind != "application/json" && !kind.ends_with("+json") && !is_yaml {
            return Err(Problem::not_json());
        }
    }
    Ok(next.run(request).await)
}

const YAML: [&str; 3] = ["application/yaml", "application/x-yaml", "text/yaml"];

/// Refuses query parameters on a route that has none.
async fn no_parameters(request: Request, next: Next) -> Result<Response, Problem> {
    Query::read(request.uri().query(), &[] as &[&str])?;
    Ok(next.run(request).await)
}

/// Id of a request.
#[derive(Clone)]
struct RequestId(String);

/// Outermost middleware: sets the request id, renders problems, counts refusals and calls the observer.
async fn finish(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = (std::time::SystemTime::now(), std::time::Instant::now());
    let observed = app.requests.as_ref().map(|observer| (observer, RequestHead::of(&request)));
    let given = request.headers().get("x-request-id").and_then(|value| value.to_str().ok());
    let sane = |text: &&str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let id = given.filter(sane).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let path = request.extensions().get::<MatchedPath>().cloned();
    let render =
        |problem: &Problem, id: &str| app.interface.render(path.as_ref().map(MatchedPath::as_str), problem, id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let had_key = auth_failures::has_key(request.headers());
    let named = CurrentRequest { method: request.method().clone(), route: path.clone(), id: id.clone() };
    let answer = async {
        panic_point!("server-request");
        next.run(request).await
    };
    let response = Running::Request(Arc::new(named)).scope(answer).await;
    let route = response.extensions().get::<MatchedRoute>().map(|at| at.0);
    let mut response = match response.extensions().get::<Problem>() {
        Some(problem) => {
            problem.log(&id);
            problem.quota.inspect(|quota| app.quota_refusals.count(*quota));
            render(problem, &id)
        }
        None if response.status().is_client_error() || response.status().is_server_error() => {
            let allow = response.headers().get(header::ALLOW).cloned();
            let problem = Problem::of_status(response.status());
            problem.log(&id);
            let mut rendered = render(&problem, &id);
            if let Some(allow) = allow {
                rendered.headers_mut().insert(header::ALLOW, allow);
            }
            rendered
        }
        None => response,
    };
    if let Some(reason) = RefusalReason::of(response.status(), had_key) {
        app.auth_failures.count(reason, route.unwrap_or("no route"), &id);
    }
    // Files of the dashboard say themselves how long they may be kept.
    let is_file = route.is_none() && (response.status().is_success() || response.status().is_redirection());
    if !is_file {
        answer::guard(response.headers_mut());
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    if let Some((observer, head)) = observed {
        observer(&RequestRecord {
            id: &id,
            method: head.method.as_str(),
            route: route.unwrap_or("no route"),
            status: response.status().as_u16(),
            began: began.0,
            took: began.1.elapsed(),
            traceparent: head.traceparent.as_deref(),
        });
    }
    response
}

/// Name of the current request in a panic message.
struct CurrentRequest {
    method: Method,
    route: Option<MatchedPath>,
    id: String,
}

impl std::fmt::Display for CurrentRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let route = self.route.as_ref().map_or("no route", MatchedPath::as_str);
        write!(f, "{} {route} {}", self.method, self.id)
    }
}

/// Parts of a request kept for its record.
struct RequestHead {
    method: Method,
    traceparent: Option<String>,
}

impl RequestHead {
    fn of(request: &Request) -> RequestHead {
        let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        RequestHead { method: request.method().clone(), traceparent: traceparent.map(str::to_owned) }
    }
}

/// Parses a task id. An invalid one is not found.
pub fn task_id(text: &str) -> Result<TaskId, Problem> {
    Uuid::try_parse(text).map(TaskId).map_err(|_| Problem::not_found("task"))
}

/// Refuses an invalid name as not found.
pub fn known_name(app: &App, what: &str, name: &str) -> Result<(), Problem> {
    let mut faults = Invalid::default();
    app.engine.config().limits.check_name("name", name, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(Problem::not_found(what)) }
}

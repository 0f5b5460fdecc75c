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

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use comeback_core::{Invalid, TaskId};
use comeback_engine::store::{Running, interactive, panic_point};
use uuid::Uuid;

use crate::auth::{self, Need};
use crate::auth_failures::{self, Reason};
use crate::connections::Connection;
use crate::gate::{Admitted, Class, GateOptions, check_length};
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;
use crate::route_set::{ErrorFormat, RouteSet};
use crate::{App, Asked, answer, heavy, mask, ui};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub need: Need,
    pub summary: &'static str,
    /// What the document says beside that; a test asks for it.
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
    /// How many bytes a body may have.
    pub fn most_bytes(&self, options: &GateOptions) -> usize {
        if self.large { options.large_body } else { options.small_body }
    }

    /// The class of requests that it is limited with.
    pub fn class(&self) -> Class {
        if self.leases { Class::Lease } else { Class::of(&self.method, self.need) }
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

pub fn router(app: &Arc<App>) -> Router {
    let mut router: Router<Arc<App>> = Router::new();
    for Line { route, answer } in lines(&app.interface.added) {
        let size = route.most_bytes(app.gate.options());
        let class = route.class();
        // Documents hold no secrets, workers are given tasks as they are, and the answer to a submit has ids only.
        let masks = !(matches!(route.need, Need::Nothing | Need::Work) || route.large && route.path == "/api/v1/tasks");
        let door = Door { app: app.clone(), path: route.path, need: route.need, class, size, masks };
        let takes_none = route.need != Need::Nothing && route.doc.as_ref().is_some_and(|doc| doc.query.is_empty());
        let answer = if takes_none { answer.route_layer(middleware::from_fn(no_parameters)) } else { answer };
        let guarded = answer.layer(DefaultBodyLimit::disable()).layer(middleware::from_fn_with_state(door, enter));
        router = router.route(route.path, guarded);
    }
    router
        .fallback(ui::answer)
        .layer(middleware::from_fn(only_json))
        .layer(middleware::from_fn(not_from_another_site))
        .layer(middleware::from_fn_with_state(app.clone(), finish))
        .with_state(app.clone())
}

/// What a request meets on its way to its route.
#[derive(Clone)]
struct Door {
    app: Arc<App>,
    path: &'static str,
    need: Need,
    class: Class,
    size: usize,
    /// Whether secrets are masked in its answers.
    masks: bool,
}

/// The line of the table that answered.
#[derive(Clone, Copy)]
struct At(&'static str);

async fn enter(State(door): State<Door>, request: Request, next: Next) -> Response {
    let path = door.path;
    let mut response = pass(door, request, next).await.unwrap_or_else(Problem::into_response);
    response.extensions_mut().insert(At(path));
    response
}

/// Counts requests that need no key in the gate, where no namespace has this name.
const KEYLESS: &str = "";

/// First the key, then the whole body, then a place: nobody keeps a place by sending slowly.
async fn pass(door: Door, request: Request, next: Next) -> Result<Response, Problem> {
    let connection = request.extensions().get::<Connection>().cloned();
    let mut caller = match auth::check(&door.app, door.need, door.path, &request) {
        Ok(caller) => caller,
        Err(problem) => {
            if let (StatusCode::UNAUTHORIZED, Some(connection)) = (problem.status, &connection) {
                door.app.auth_failures.slow_down(connection.peer(), request.headers()).await?;
            }
            return Err(problem);
        }
    };
    let key_ends_at = caller.key_ends_at();
    caller.request = request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone());
    let namespace = if door.need == Need::Nothing { KEYLESS.to_owned() } else { caller.namespace.clone() };
    if let (true, Some(connection)) = (door.need != Need::Nothing, &connection) {
        connection.authenticated(&namespace);
    }
    // What anybody may ask for takes no body, so none is waited for or kept.
    let (mut request, memory) = match door.need {
        Need::Nothing => {
            check_length(request.headers(), door.size)?;
            (request.map(|_| Body::empty()), None)
        }
        _ => door.app.gate.read(request, door.class, door.size, &namespace).await?,
    };
    let place = door.app.gate.enter(door.class, &namespace).await?;
    let is_large = request.body().size_hint().lower() > heavy::LARGE as u64;
    let large = match door.class {
        Class::Write if is_large => Some(door.app.gate.enter_large(&namespace).await?),
        _ => None,
    };
    let admitted = Admitted::new((place, large), memory);
    let reads = (door.class == Class::Look).then(|| door.app.engine.interactive(&caller.namespace));
    request.extensions_mut().insert(caller);
    let answer = admitted.clone().during(async move {
        let response = next.run(request).await;
        if door.masks { mask::answer(response).await } else { response }
    });
    let mut response = match reads {
        Some(reads) => heavy::run(interactive(reads, answer)).await,
        None if is_large => heavy::run(answer).await,
        None => answer.await,
    };
    if let Some(value) = key_ends_at.and_then(|at| HeaderValue::from_str(&at.to_rfc3339()).ok()) {
        response.headers_mut().insert(KEY_EXPIRES, value);
    }
    // The body was worked on; a large answer counts until it was sent.
    admitted.release_memory();
    match answer::large(&response) {
        Some(size) => Ok(answer::hold(response, door.app.gate.answer(door.class, &namespace, size)?)),
        None => Ok(response),
    }
}

/// In every answer to a key that ends within two weeks: when it does.
const KEY_EXPIRES: &str = "comeback-key-expires";

/// A browser says where a request comes from. What would change something must not come from a page of somebody else, with a
/// body or without one.
async fn not_from_another_site(request: Request, next: Next) -> Result<Response, Problem> {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && auth::is_from_another_site(request.headers()) {
        return Err(Problem::forbidden("a page of another site may not change anything here"));
    }
    Ok(next.run(request).await)
}

/// A body that a web page could send without asking is not read: it could come from a page that nobody trusts.
async fn only_json(request: Request, next: Next) -> Result<Response, Problem> {
    let carries = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let is_empty =
        length == Some("0") || (length.is_none() && !request.headers().contains_key(header::TRANSFER_ENCODING));
    if carries && !is_empty {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        // Workflows are written in YAML; no web page can send that without being asked for leave first.
        let is_yaml = *request.method() == Method::PUT && YAML.contains(&kind.as_str());
        if kind != "application/json" && !kind.ends_with("+json") && !is_yaml {
            return Err(Problem::not_json());
        }
    }
    Ok(next.run(request).await)
}

const YAML: [&str; 3] = ["application/yaml", "application/x-yaml", "text/yaml"];

/// A route without parameters refuses every one by its name.
async fn no_parameters(request: Request, next: Next) -> Result<Response, Problem> {
    Query::read(request.uri().query(), &[] as &[&str])?;
    Ok(next.run(request).await)
}

/// What a request is called.
#[derive(Clone)]
struct RequestId(String);

/// Gives the request its name, and every answer that is not a success the shape of a problem.
async fn finish(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = (std::time::SystemTime::now(), std::time::Instant::now());
    let asked = app.requests.as_ref().map(|tell| (tell, Heard::of(&request)));
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
    let route = response.extensions().get::<At>().map(|at| at.0);
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
    if let Some(reason) = Reason::of(response.status(), had_key) {
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
    if let Some((tell, heard)) = asked {
        tell(&Asked {
            id: &id,
            method: heard.method.as_str(),
            route: route.unwrap_or("no route"),
            status: response.status().as_u16(),
            began: began.0,
            took: began.1.elapsed(),
            traceparent: heard.traceparent.as_deref(),
        });
    }
    response
}

/// How a panic names a request.
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

/// What is still known of a request when it is answered.
struct Heard {
    method: Method,
    traceparent: Option<String>,
}

impl Heard {
    fn of(request: &Request) -> Heard {
        let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        Heard { method: request.method().clone(), traceparent: traceparent.map(str::to_owned) }
    }
}

/// Stands in a list of parameters for one of each label.
pub const LABELS: &str = "label.<name>";
pub const LIMIT: Param = Param::new("limit", "How many at most; 50 where nothing is said.", || schema::between(1, 500));
pub const CURSOR: Param = Param::new("cursor", "Where to go on: `next_cursor` of the page before.", schema::text);

/// What a parameter is called.
pub trait Named {
    fn name(&self) -> &str;

    /// Whether nothing behind the equals sign is as good as no parameter.
    fn may_be_empty(&self) -> bool {
        true
    }
}

impl Named for &str {
    fn name(&self) -> &str {
        self
    }
}

impl Named for Param {
    fn name(&self) -> &str {
        self.name
    }

    fn may_be_empty(&self) -> bool {
        (self.schema)() == schema::text()
    }
}

/// The parameters after the question mark; what nobody knows is refused by name, and so is what is said twice.
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn read(request: Option<&str>, known: &[impl Named]) -> Result<Query, Problem> {
        let mut found = BTreeMap::new();
        let mut faults = Invalid::default();
        for part in request.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            let general = if name.starts_with("label.") { LABELS } else { name.as_str() };
            match known.iter().find(|it| it.name() == general) {
                None => {
                    let names: Vec<&str> = known.iter().map(Named::name).collect();
                    let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    faults.push(name.clone(), format!("is no parameter here; there are {there_are}"));
                }
                Some(it) if value.is_empty() && !it.may_be_empty() => faults.push(name.clone(), "may not be empty"),
                Some(_) => {}
            }
            if value.contains('\0') {
                faults.push(name.clone(), "may not contain a zero character");
            }
            if found.insert(name.clone(), value).is_some() {
                faults.push(name, "is given twice");
            }
        }
        faults.or(Query(found)).map_err(Problem::from)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(|(name, _)| name.starts_with("label."))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What is given must be readable, even where it is nothing.
    pub fn parse<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        match self.0.get(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(Invalid::one(name, format!("`{text}` cannot be read")).into()),
            },
        }
    }

    pub fn limit(&self) -> Result<u32, Problem> {
        match self.parse::<u32>("limit")? {
            None => Ok(50),
            Some(limit) if (1..=500).contains(&limit) => Ok(limit),
            Some(_) => Err(Invalid::one("limit", "must be between 1 and 500").into()),
        }
    }
}

/// A header whose text is kept. What is not text is refused: to leave it out would be to do something else than was asked.
pub fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Invalid::one(name, "may hold visible ASCII characters only").into()),
    }
}

fn decode(text: &str) -> Result<String, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap_or(b'!'), rest.next().unwrap_or(b'!')];
                std::str::from_utf8(&digits)
                    .ok()
                    .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                    .ok_or_else(|| Problem::bad_request("a `%` in the address is not followed by two digits"))?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| Problem::bad_request("the address is not UTF-8"))
}

pub fn task_id(text: &str) -> Result<TaskId, Problem> {
    Uuid::try_parse(text).map(TaskId).map_err(|_| Problem::not_found("task"))
}

/// A name that nothing can have is that of nothing there is.
pub fn known_name(app: &App, what: &str, name: &str) -> Result<(), Problem> {
    let mut faults = Invalid::default();
    app.engine.config().limits.check_name("name", name, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(Problem::not_found(what)) }
}

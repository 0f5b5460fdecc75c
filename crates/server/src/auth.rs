//! Authorization: roles, scopes, addresses, and the namespace of a request.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use comeback_core::transition::Actor;
use comeback_core::{Invalid, Timestamp};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::App;
pub use crate::keys::{EVERYWHERE, Key, KeyLimits, KeyResult, Keys, NewKey, default_namespace, key_id};
use crate::problem::Problem;

/// Role of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Viewer,
    Worker,
    Submitter,
    Operator,
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: &[Role] = &[Role::Viewer, Role::Worker, Role::Submitter, Role::Operator, Role::Admin];

    /// The word of a role.
    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Worker => "worker",
            Role::Submitter => "submitter",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    /// Parses the word of a role.
    pub fn from_word(word: &str) -> Option<Role> {
        Role::ALL.iter().copied().find(|role| role.word() == word)
    }

    /// Whether the role grants a permission.
    pub fn may(self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::Read => !matches!(self, Role::Worker),
            Need::Work => matches!(self, Role::Worker | Role::Admin),
            Need::Submit => matches!(self, Role::Submitter | Role::Operator | Role::Admin),
            Need::Operate => matches!(self, Role::Operator | Role::Admin),
            Need::Administer | Need::AdministerAll => self == Role::Admin,
        }
    }
}

/// Permission that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// No key required: health, documents.
    Nothing,
    Read,
    Work,
    Submit,
    Operate,
    Administer,
    /// An admin of all namespaces: the request affects every namespace.
    AdministerAll,
}

/// The authenticated caller of a request and its namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    pub namespace: String,
    pub role: Role,
    /// Name of the key, or its id if it has no name. `None` on a server without keys.
    pub key: Option<String>,
    /// Whether the caller may use all namespaces, not only the one of this request.
    pub everywhere: bool,
    /// Id of the request.
    pub request: Option<String>,
    pub id: Option<String>,
    /// Limits of the key below its role.
    terms: Option<Arc<KeyLimits>>,
    /// Expiry of the key, if it is within two weeks.
    ends_at: Option<Timestamp>,
}

impl Caller {
    /// A caller without a key.
    fn nobody(namespace: String, role: Role, everywhere: bool) -> Caller {
        Caller { namespace, role, key: None, everywhere, request: None, id: None, terms: None, ends_at: None }
    }

    /// Whether the caller's key is still valid. Long polls and streams ask repeatedly.
    pub fn still_may(&self, app: &App) -> bool {
        match &self.id {
            Some(id) => app.keys.is_live(id, app.engine.now()),
            None => app.keys.is_empty(),
        }
    }

    /// Whether the caller may see data of all namespaces.
    pub fn may_administer_all(&self) -> bool {
        self.everywhere && self.role.may(Need::AdministerAll)
    }

    /// Whether the caller may list and revoke a key.
    pub fn governs(&self, key: &Key) -> bool {
        self.everywhere || key.namespace == self.namespace
    }

    /// The actor for the audit log: the name in the request, else the name of the key.
    pub fn act(&self, by: Option<String>, note: Option<String>) -> Actor {
        let by = by.or_else(|| self.key.clone());
        Actor {
            by,
            note,
            key: self.key.clone(),
            key_id: self.id.clone(),
            request: self.request.clone(),
            ..Actor::default()
        }
    }

    /// Limits of the key, if it is limited to queues or kinds.
    pub fn scope(&self) -> Option<&KeyLimits> {
        self.terms.as_deref().filter(|terms| terms.is_scoped())
    }

    /// Refuses a queue or a kind outside the limits of the key.
    pub fn check_scope(&self, queue: &str, kind: &str) -> Result<(), Problem> {
        let Some(scope) = self.scope() else { return Ok(()) };
        for (what, name, allowed) in [("queue", queue, &scope.queues), ("kind", kind, &scope.kinds)] {
            if !allowed.allows(name) {
                return Err(Problem::forbidden(format!("this key does not allow the {what} `{name}`")));
            }
        }
        Ok(())
    }

    /// Expiry of the key, if it is within two weeks.
    pub fn key_ends_at(&self) -> Option<Timestamp> {
        self.ends_at
    }
}

/// Request header with the namespace.
pub const NAMESPACE: &str = "comeback-namespace";

/// Peer address of the connection of a request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Address of the caller: the peer, or behind trusted proxies the last address in `X-Forwarded-For` that is not a
/// trusted proxy. `None` if it is unknown.
pub fn caller_address(request: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    let peer = request.extensions().get::<Peer>()?.0.to_canonical();
    if !is_trusted(&peer) {
        return Some(peer);
    }
    let mut last = peer;
    let lines: Vec<&axum::http::HeaderValue> = request.headers().get_all("x-forwarded-for").iter().collect();
    for line in lines.into_iter().rev() {
        for text in line.to_str().ok()?.rsplit(',') {
            last = address_of(text.trim())?.to_canonical();
            if !is_trusted(&last) {
                return Some(last);
            }
        }
    }
    Some(last)
}

/// Parses an address with or without a port.
fn address_of(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()))
}

/// Routes that a key limited to queues or kinds may use. All others would show or change data outside its limits.
const SCOPED: &[(Method, &str)] = &[
    (Method::GET, "/api/v1/me"),
    (Method::POST, "/api/v1/tasks"),
    (Method::GET, "/api/v1/tasks/{id}"),
    (Method::POST, "/api/v1/leases"),
    (Method::POST, "/api/v1/leases/heartbeat"),
    (Method::POST, "/api/v1/leases/report"),
];

/// Authenticates and authorizes a request for the route at `path`.
pub fn check(app: &App, need: Need, path: &str, request: &Request) -> Result<Caller, Problem> {
    let caller = identify(app, need, request)?;
    let mut faults = Invalid::default();
    app.engine.config().limits.check_namespace(&caller.namespace, &mut faults);
    if let Some(fault) = faults.faults.first() {
        return Err(Invalid::one(NAMESPACE, &fault.message).into());
    }
    if !caller.role.may(need) {
        let detail = format!("the role {} does not allow this", caller.role.word());
        return Err(Problem::forbidden(detail));
    }
    if need == Need::AdministerAll && !caller.everywhere {
        return Err(Problem::forbidden("this affects all namespaces: it needs an admin key for `*`"));
    }
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if caller.scope().is_some() && !SCOPED.iter().any(|(it, at)| it == method && *at == path) {
        let detail = "this key is limited to queues or kinds: it may submit tasks and read them by id, or lease, heartbeat and report";
        return Err(Problem::forbidden(detail));
    }
    Ok(caller)
}

fn identify(app: &App, need: Need, request: &Request) -> Result<Caller, Problem> {
    let headers = request.headers();
    let wanted = headers.get(NAMESPACE).map(|value| value.to_str().unwrap_or("").to_owned());
    if need == Need::Nothing {
        return Ok(Caller::nobody("default".into(), Role::Viewer, false));
    }
    if app.keys.is_empty() {
        refuse_strangers(headers)?;
        refuse_proxied(headers)?;
        return Ok(Caller::nobody(wanted.unwrap_or_else(|| "default".into()), Role::Admin, true));
    }
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(token) = text.strip_prefix("Bearer ") else {
        return Err(Problem::unauthorized("send a key: `Authorization: Bearer cbk_…`"));
    };
    let now = app.engine.now();
    let Some(key) = app.keys.find(token.trim(), now) else {
        return Err(Problem::unauthorized("the key is unknown, expired or revoked"));
    };
    if !key.terms.allowed_addresses.is_empty()
        && !key.terms.allows_address(caller_address(request, &app.trusted_proxies))
    {
        app.keys.count_refused_address();
        return Err(Problem::forbidden("this key may not be used from this address"));
    }
    let namespace = match (key.namespace.as_str(), wanted) {
        (EVERYWHERE, wanted) => wanted.unwrap_or_else(|| "default".into()),
        (own, Some(wanted)) if wanted != own => {
            return Err(Problem::forbidden(format!("the key is for the namespace `{own}` only")));
        }
        (own, _) => own.to_owned(),
    };
    let everywhere = key.namespace == EVERYWHERE;
    let name = key.name.clone().unwrap_or_else(|| key.id.clone());
    Ok(Caller {
        namespace,
        role: key.role,
        key: Some(name),
        everywhere,
        request: None,
        id: Some(key.id.clone()),
        terms: Some(key.terms.clone()),
        ends_at: key.expires_at.map(Timestamp).filter(|_| key.ends_soon(now)),
    })
}

/// Whether a browser sent the request from a page of another origin.
pub fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").to_ascii_lowercase());
    if matches!(text("sec-fetch-site").as_deref(), Some("cross-site" | "same-site")) {
        return true;
    }
    let Some(origin) = text("origin") else { return false };
    let (from, port) = match origin.split_once("://") {
        Some(("http", host)) => (host, ":80"),
        Some(("https", host)) => (host, ":443"),
        _ => return true,
    };
    let bare = |host: &str| host.strip_suffix(port).unwrap_or(host).to_owned();
    text("host").is_none_or(|host| bare(&host) != bare(from))
}

/// Refuses hosts other than localhost on a server without keys (DNS rebinding).
fn refuse_strangers(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
    match name.to_ascii_lowercase().as_str() {
        "localhost" | "127.0.0.1" | "[::1]" => Ok(()),
        _ => Err(Problem::forbidden(format!(
            "a server without keys accepts requests to localhost only, not to `{name}`"
        ))),
    }
}

/// Refuses proxied requests on a server without keys: the caller may be remote and the host rewritten.
fn refuse_proxied(headers: &HeaderMap) -> Result<(), Problem> {
    let is_proxys = |name: &str| name == "forwarded" || name == "via" || name.starts_with("x-forwarded-");
    match headers.keys().find(|name| is_proxys(name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Problem::forbidden(format!(
            "a server without keys does not accept proxied requests (`{name}` was sent); create a key first: comeback \
             key create --role admin"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_may_what_it_should() {
        let table = [
            (Role::Viewer, [true, true, false, false, false, false, false]),
            (Role::Worker, [true, false, true, false, false, false, false]),
            (Role::Submitter, [true, true, false, true, false, false, false]),
            (Role::Operator, [true, true, false, true, true, false, false]),
            (Role::Admin, [true, true, true, true, true, true, true]),
        ];
        let needs =
            [Need::Nothing, Need::Read, Need::Work, Need::Submit, Need::Operate, Need::Administer, Need::AdministerAll];
        for (role, expected) in table {
            assert_eq!(needs.map(|need| role.may(need)), expected, "{role:?}");
        }
    }

    #[test]
    fn the_address_of_a_caller_is_the_last_one_that_no_trusted_proxy_has() {
        let proxies: Vec<IpNet> = vec!["10.0.0.0/8".parse().expect("a network"), "::1/128".parse().expect("one")];
        let seen = |peer: &str, forwarded: &[&'static str]| {
            let mut request = Request::new(axum::body::Body::empty());
            request.extensions_mut().insert(Peer(peer.parse().expect("an address")));
            for line in forwarded {
                request.headers_mut().append("x-forwarded-for", line.parse().expect("a header"));
            }
            caller_address(&request, &proxies).map(|address| address.to_string())
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(seen("203.0.113.9", &["10.1.1.1"]), is("203.0.113.9"), "nobody trusts what a stranger says");
        assert_eq!(seen("10.0.0.1", &["198.51.100.7, 203.0.113.9, 10.0.0.2"]), is("203.0.113.9"));
        assert_eq!(seen("10.0.0.1", &["198.51.100.7", "203.0.113.9:4711"]), is("203.0.113.9"));
        assert_eq!(seen("::ffff:10.0.0.1", &["::ffff:203.0.113.9"]), is("203.0.113.9"));
        assert_eq!(seen("::1", &["[2001:db8::1]:80"]), is("2001:db8::1"));
        assert_eq!(seen("10.0.0.1", &[]), is("10.0.0.1"), "the proxy itself");
        assert_eq!(seen("10.0.0.1", &["203.0.113.9, nonsense"]), None);
        assert_eq!(caller_address(&Request::new(axum::body::Body::empty()), &proxies), None);
    }

    #[test]
    fn a_page_of_another_site_is_told_apart() {
        let is_strange = |pairs: &[(&'static str, &str)]| {
            let of = |(name, value): &(&'static str, &str)| {
                (axum::http::HeaderName::from_static(name), value.parse().expect("a header"))
            };
            is_from_another_site(&pairs.iter().map(of).collect())
        };
        for own in [
            &[][..],
            &[("host", "localhost:7330")],
            &[("host", "localhost:7330"), ("origin", "http://localhost:7330")],
            &[("host", "Jobs.example"), ("origin", "https://jobs.example:443")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "same-origin")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "none")],
        ] {
            assert!(!is_strange(own), "{own:?}");
        }
        for strange in [
            &[("host", "localhost:7330"), ("origin", "https://evil.example")][..],
            &[("host", "localhost:7330"), ("origin", "http://localhost:3000")],
            &[("host", "localhost:7330"), ("origin", "null")],
            &[("host", "localhost:7330"), ("origin", "")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "same-site")],
            &[("origin", "https://evil.example")],
        ] {
            assert!(is_strange(strange), "{strange:?}");
        }
    }

    #[test]
    fn only_this_machine_is_answered_without_keys() {
        let with = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            refuse_strangers(&headers).is_ok()
        };
        for host in ["localhost:7330", "127.0.0.1:7330", "[::1]:7330", "LOCALHOST", "[::1]"] {
            assert!(with(host), "{host}");
        }
        for host in ["evil.example", "evil.example:7330", "localhost.evil.example", "10.0.0.1:7330"] {
            assert!(!with(host), "{host}");
        }
    }
}

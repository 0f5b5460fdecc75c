//! What the document says about one route. It stands beside the route, in the same table.

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::schema;

/// One parameter, in the address or in a header. The same list tells the document and refuses what is not in it.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub about: &'static str,
    pub schema: fn() -> Value,
}

impl Param {
    pub const fn new(name: &'static str, about: &'static str, schema: fn() -> Value) -> Param {
        Param { name, about, schema }
    }
}

pub type Parts = Vec<(String, RefOr<Schema>)>;

/// A type whose schema is derived.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    pub name: fn() -> String,
    pub collect: fn(&mut Parts),
}

impl Derived {
    fn of<T: ToSchema>() -> Derived {
        Derived {
            name: || T::name().into_owned(),
            collect: |parts| {
                parts.push((T::name().into_owned(), T::schema()));
                T::schemas(parts);
            },
        }
    }
}

/// Where an answer leads: an operation, one of its parameters, and what of the answer goes there.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub operation: &'static str,
    pub parameter: &'static str,
    pub from: &'static str,
}

#[derive(Clone, Debug)]
pub struct Doc {
    /// What a client calls it.
    pub id: &'static str,
    /// What the summary leaves out.
    pub about: &'static str,
    /// Parts of the path that are not described by their names.
    pub path: &'static [Param],
    pub query: &'static [Param],
    pub headers: Vec<Param>,
    /// Any one of these; none where no body is read.
    pub body: Vec<Derived>,
    pub body_needed: bool,
    /// Bodies that a server takes as they are.
    pub examples: Vec<Value>,
    pub status: u16,
    /// Another status for the same answer.
    pub also: Option<u16>,
    pub media: &'static str,
    pub answer: Option<Value>,
    pub links: Vec<Link>,
    /// Why it may answer nothing (204) too.
    pub or_nothing: Option<&'static str>,
    /// Words of problems that this route has beside those which follow from its line.
    pub problems: Vec<&'static str>,
}

const IDEMPOTENCY_KEY: Param = Param::new(
    "Idempotency-Key",
    "The same key with the same request answers what was answered first and changes nothing, for a day at least; with another \
     request it is refused.",
    || schema::named("Name"),
);

impl Doc {
    pub fn new(id: &'static str) -> Doc {
        Doc {
            id,
            about: "",
            path: &[],
            query: &[],
            headers: Vec::new(),
            body: Vec::new(),
            body_needed: false,
            examples: Vec::new(),
            status: 200,
            also: None,
            media: "application/json",
            answer: None,
            links: Vec::new(),
            or_nothing: None,
            problems: Vec::new(),
        }
    }

    pub fn about(self, about: &'static str) -> Doc {
        Doc { about, ..self }
    }

    /// Describes parts of the path.
    pub fn path(self, path: &'static [Param]) -> Doc {
        Doc { path, ..self }
    }

    /// Lists the parameters of the query.
    pub fn query(self, query: &'static [Param]) -> Doc {
        Doc { query, ..self }
    }

    pub fn header(mut self, header: Param) -> Doc {
        self.headers.push(header);
        self
    }

    /// A body that may be left out, as may everything in it.
    pub fn takes<T: ToSchema>(mut self) -> Doc {
        self.body.push(Derived::of::<T>());
        self
    }

    pub fn needs<T: ToSchema>(self) -> Doc {
        Doc { body_needed: true, ..self.takes::<T>() }
    }

    pub fn example(mut self, body: Value) -> Doc {
        self.examples.push(body);
        self
    }

    pub fn answers(self, answer: Value) -> Doc {
        Doc { answer: Some(answer), ..self }
    }

    pub fn creates(self, answer: Value) -> Doc {
        Doc { status: 201, ..self.answers(answer) }
    }

    pub fn also(self, status: u16) -> Doc {
        Doc { also: Some(status), ..self }
    }

    pub fn answers_nothing(self) -> Doc {
        Doc { status: 204, ..self }
    }

    pub fn or_nothing(self, why: &'static str) -> Doc {
        Doc { or_nothing: Some(why), ..self }
    }

    /// Something else than JSON.
    pub fn answers_text(self, media: &'static str) -> Doc {
        Doc { media, ..self.answers(schema::text()) }
    }

    pub fn leads(mut self, operation: &'static str, parameter: &'static str, from: &'static str) -> Doc {
        self.links.push(Link { operation, parameter, from });
        self
    }

    pub fn problems(mut self, problems: &[&'static str]) -> Doc {
        self.problems.extend(problems);
        self
    }

    /// It is done once, however often it is asked under the same key.
    pub fn once(self) -> Doc {
        self.header(IDEMPOTENCY_KEY).problems(&["idempotency-mismatch"])
    }
}

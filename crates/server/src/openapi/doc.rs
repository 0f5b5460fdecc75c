//! Documentation of one route, kept beside the route in the same table.

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::schema;

/// A query or header parameter. The same list documents the parameters and refuses unknown ones.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub about: &'static str,
    pub schema: fn() -> Value,
}

impl Param {
    /// A parameter with its description and schema.
    pub const fn new(name: &'static str, about: &'static str, schema: fn() -> Value) -> Param {
        Param { name, about, schema }
    }
}

/// Derived schemas by name.
pub type Parts = Vec<(String, RefOr<Schema>)>;

/// A type whose schema is derived.
#[derive(Clone, Copy, Debug)]
pub struct DerivedSchema {
    pub name: fn() -> String,
    pub collect: fn(&mut Parts),
}

impl DerivedSchema {
    fn of<T: ToSchema>() -> DerivedSchema {
        DerivedSchema {
            name: || T::name().into_owned(),
            collect: |parts| {
                parts.push((T::name().into_owned(), T::schema()));
                T::schemas(parts);
            },
        }
    }
}

/// An OpenAPI link: an operation, one of its parameters, and the expression for its value.
#[derive(Clone, Copy, Debug)]
pub struct DocLink {
    pub operation: &'static str,
    pub parameter: &'static str,
    pub from: &'static str,
}

/// Documentation of one route.
#[derive(Clone, Debug)]
pub struct Doc {
    /// The `operationId`.
    pub id: &'static str,
    /// The description, beyond the summary.
    pub about: &'static str,
    /// Parts of the path that are not described by their names.
    pub path: &'static [Param],
    pub query: &'static [Param],
    pub headers: Vec<Param>,
    /// Alternative body types; empty if the route reads no body.
    pub body: Vec<DerivedSchema>,
    pub body_needed: bool,
    /// Valid example bodies.
    pub examples: Vec<Value>,
    pub status: u16,
    /// Another status for the same response.
    pub also: Option<u16>,
    pub media: &'static str,
    pub answer: Option<Value>,
    pub links: Vec<DocLink>,
    /// Description of a 204 response, if there is one.
    pub or_nothing: Option<&'static str>,
    /// Slugs of problems beyond those that follow from the route.
    pub problems: Vec<&'static str>,
}

const IDEMPOTENCY_KEY: Param = Param::new(
    "Idempotency-Key",
    "A repeated request with the same key gets the first response and changes nothing, for at least a day. The same \
     key with a different request is refused.",
    || schema::named("Name"),
);

impl Doc {
    /// Documentation with an `operationId`.
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

    /// Sets the description.
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

    /// Adds a header parameter.
    pub fn header(mut self, header: Param) -> Doc {
        self.headers.push(header);
        self
    }

    /// Adds an optional body.
    pub fn takes<T: ToSchema>(mut self) -> Doc {
        self.body.push(DerivedSchema::of::<T>());
        self
    }

    /// Adds a required body.
    pub fn needs<T: ToSchema>(self) -> Doc {
        Doc { body_needed: true, ..self.takes::<T>() }
    }

    /// Adds an example body.
    pub fn example(mut self, body: Value) -> Doc {
        self.examples.push(body);
        self
    }

    /// Sets the schema of a 200 response.
    pub fn answers(self, answer: Value) -> Doc {
        Doc { answer: Some(answer), ..self }
    }

    /// Sets the schema of a 201 response.
    pub fn creates(self, answer: Value) -> Doc {
        Doc { status: 201, ..self.answers(answer) }
    }

    /// Adds another status for the same response.
    pub fn also(self, status: u16) -> Doc {
        Doc { also: Some(status), ..self }
    }

    /// Sets a 204 response.
    pub fn answers_nothing(self) -> Doc {
        Doc { status: 204, ..self }
    }

    /// Adds a 204 response with its description.
    pub fn or_nothing(self, why: &'static str) -> Doc {
        Doc { or_nothing: Some(why), ..self }
    }

    /// Sets a text response of another media type.
    pub fn answers_text(self, media: &'static str) -> Doc {
        Doc { media, ..self.answers(schema::text()) }
    }

    /// Adds a link to another operation.
    pub fn leads(mut self, operation: &'static str, parameter: &'static str, from: &'static str) -> Doc {
        self.links.push(DocLink { operation, parameter, from });
        self
    }

    /// Adds problem slugs.
    pub fn problems(mut self, problems: &[&'static str]) -> Doc {
        self.problems.extend(problems);
        self
    }

    /// Documents the `Idempotency-Key` header.
    pub fn once(self) -> Doc {
        self.header(IDEMPOTENCY_KEY).problems(&["idempotency-mismatch"])
    }
}

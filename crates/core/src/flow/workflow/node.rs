//! A document as it was written: values with their places, keys in their order.

use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::problem::Position;

#[derive(Clone, Debug)]
pub struct Node {
    pub at: Position,
    pub content: Content,
}

/// Shared where an alias names it, so that a copy costs nothing until it is a value.
#[derive(Clone, Debug)]
pub enum Content {
    Null,
    Bool(bool),
    Number(Number),
    Text(Arc<str>),
    List(Arc<[Node]>),
    Map(Arc<[Entry]>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub key_at: Position,
    pub value: Node,
}

impl Entry {
    /// Beside its key where it begins on the same line, else the key: a block begins where its name stands.
    pub fn at(&self) -> Position {
        if self.value.at.line == self.key_at.line { self.value.at } else { self.key_at }
    }
}

impl Node {
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn list(&self) -> Option<&[Node]> {
        match &self.content {
            Content::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn map(&self) -> Option<&[Entry]> {
        match &self.content {
            Content::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.content, Content::Null)
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.map()?.iter().find(|entry| entry.key == key)
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub fn to_value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(yes) => Value::Bool(*yes),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) => Value::String(text.to_string()),
            Content::List(items) => items.iter().map(Node::to_value).collect(),
            Content::Map(_) => Value::Object(self.to_map()),
        }
    }

    /// The fields of a map; nothing for anything else.
    pub fn to_map(&self) -> Map<String, Value> {
        self.map().unwrap_or_default().iter().map(|entry| (entry.key.clone(), entry.value.to_value())).collect()
    }

    /// Goes down a path as far as it leads: the place of the last part that is there, and what is left of the path.
    pub fn follow<'p>(&self, path: &'p str) -> (Position, &'p str) {
        let (mut node, mut at, mut rest) = (self, self.at, path);
        loop {
            let step = match &node.content {
                Content::List(items) => {
                    index_of(rest).and_then(|(n, left)| Some((items.get(n)?, items.get(n)?.at, left)))
                }
                Content::Map(entries) => {
                    let name = rest.strip_prefix('.').unwrap_or(rest);
                    // Keys may hold dots themselves: the longest one that fits is meant.
                    let fits = |entry: &&Entry| {
                        name.strip_prefix(entry.key.as_str())
                            .is_some_and(|left| left.is_empty() || left.starts_with(['.', '[']))
                    };
                    let entry = entries.iter().filter(fits).max_by_key(|entry| entry.key.len());
                    entry.map(|entry| (&entry.value, entry.at(), &name[entry.key.len()..]))
                }
                _ => None,
            };
            match step {
                Some((next, place, left)) if !rest.is_empty() => (node, at, rest) = (next, place, left),
                _ => return (at, rest),
            }
        }
    }
}

fn index_of(path: &str) -> Option<(usize, &str)> {
    let (number, left) = path.strip_prefix('[')?.split_once(']')?;
    Some((number.parse().ok()?, left))
}

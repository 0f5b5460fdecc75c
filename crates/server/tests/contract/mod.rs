//! The document tells the truth: it is the one that is checked in, it describes every route, and what a running server answers is
//! what it says.

mod document;
mod judge;
mod story;

//! One program for all these tests: linked one by one they take longer than they run.

mod backtest;
mod common;
mod decide;
mod ends;
mod forecast;
mod graph;
mod lint;
mod model;
mod properties;
mod requirements;
mod transition;
mod vectors;

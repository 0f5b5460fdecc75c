use super::node::Node;
use super::problem::Findings;
use super::{Routes, Workflow};
pub fn is_one(root: &Node) -> bool {
    root.get("kind").is_some()
}
pub fn read(_root: &Node, _routes: &mut Routes, _findings: &mut Findings) -> Option<Workflow> {
    None
}

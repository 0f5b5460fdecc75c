//! Tables of documents and what becomes of them.

mod documents;
mod playbooks;
mod problems;
mod robust;
mod schemas;

use super::*;

fn good(text: &str) -> Workflow {
    match read(text) {
        Ok(source) => source.workflow,
        Err(problems) => panic!("{problems}\n---\n{text}"),
    }
}

/// Each problem on a line of its own, as people see it.
fn bad(text: &str) -> String {
    match read(text) {
        Ok(_) => panic!("nothing was found wrong with\n{text}"),
        Err(problems) => problems.to_string(),
    }
}

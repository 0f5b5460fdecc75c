//! The output of the command line, word for word. Every `.txt` beside this file is a conversation with the binary:
//!
//! ```text
//! # a remark
//! $ comeback enqueue hello            what is typed; `tty$` in place of `$` types it on a terminal of 80 columns
//! <id1>  ○ pending                    what it answers on stdout,
//! ! on stderr,                        on stderr,
//! ? 3                                 and its exit code, where that is not 0
//! % lease me                          what happens beside it; see `stage`
//! ```
//!
//! Ids, times, ports and the like are told apart and numbered (see `mask`). `COMEBACK_TRANSCRIPTS=write` writes down what was said
//! in place of comparing it.

mod mask;
mod play;
mod stage;
mod typed;

use libtest_mimic::{Arguments, Trial};

/// Sets the same limits on all machines; the binary inherits them.
fn level_the_ground() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    let current = Some(most.unwrap_or(8_192).min(8_192));
    setrlimit(Resource::Nofile, Rlimit { current, maximum: most }).expect("a limit");
}

fn main() {
    level_the_ground();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("the folder").flatten().map(|it| it.path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "txt"));
    files.sort();
    assert!(!files.is_empty(), "there are no transcripts");
    let trials = files.into_iter().map(|path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Trial::test(name, move || play::play(&path).map_err(Into::into))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

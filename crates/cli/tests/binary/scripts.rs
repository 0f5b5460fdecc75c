//! The scripts beside the code: what they ask of a machine, and what they say to cargo.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::text;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder for PATH with nothing in it but these.
fn path_of(programs: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for program in programs {
        let found = std::env::split_paths(&std::env::var_os("PATH").expect("a PATH"))
            .map(|place| place.join(program))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{program} is on this machine"));
        symlink(found, folder.path().join(program)).expect("a link");
    }
    folder
}

fn run(path: &Path, script: &str, args: &[&str]) -> Output {
    let bash = path.join("bash");
    Command::new(bash).arg(root().join(script)).args(args).env("PATH", path).output().expect("it runs")
}

#[test]
fn a_build_needs_cargo_and_a_compiler_only() {
    let enough = path_of(&["bash", "dirname", "cargo", "cc"]);
    let done = run(enough.path(), "scripts/setup", &["--build"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for (missing, there) in [("cargo", "cc"), ("cc", "cargo")] {
        let refused = run(path_of(&["bash", "dirname", there]).path(), "scripts/setup", &["--build"]);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(&format!("{missing} is not on PATH")), "{}", text(&refused.stderr));
    }
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    for target in ["demo", "serve"] {
        assert!(makefile.contains(&format!("\n{target}: tools ")), "{target} needs no more than that");
    }
}

/// The words of the chaos part are those of cargo test; nextest has others and refuses these.
#[test]
fn the_chaos_part_is_for_cargo_test() {
    let path = path_of(&["bash", "dirname"]);
    let (cargo, heard) = (path.path().join("cargo"), path.path().join("heard"));
    std::fs::write(&cargo, format!("#!{}/bash\necho \"$@\" >> {}\n", path.path().display(), heard.display()))
        .expect("a cargo that listens");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("it may run");
    let done = run(path.path(), "scripts/test", &["--part", "chaos"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let heard = std::fs::read_to_string(heard).expect("it was called");
    assert!(heard.lines().count() == 2 && heard.lines().all(|line| line.starts_with("test ")), "{heard}");
}

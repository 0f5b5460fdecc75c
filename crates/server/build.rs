//! Puts the dashboard into the binary: the files of `ui/dist` where it was built, else a small page written by hand.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is"));
    let built = here.join("../../ui/dist");
    println!("cargo:rerun-if-changed={}", built.display());
    println!("cargo:rerun-if-changed={}", here.join("src/ui").display());
    println!("cargo:rerun-if-env-changed=REQUIRE_UI");
    let is_built = built.join("index.html").is_file();
    if !is_built {
        let what = "the dashboard is not built (scripts/ui build)";
        assert!(env::var("REQUIRE_UI").as_deref() != Ok("1"), "REQUIRE_UI is set, but {what}");
        println!("cargo:warning={what}: a small status page takes its place");
    }
    let from = if is_built { built } else { here.join("src/ui") };
    let mut files = Vec::new();
    collect(&from, &from, &mut files);
    files.sort();
    let mut code = String::from("static FILES: &[UiFile] = &[\n");
    for (name, path) in files {
        let content = fs::read(&path).expect("a file of the dashboard can be read");
        let _ = writeln!(
            code,
            "    UiFile {{ name: {name:?}, tag: \"\\\"{:016x}\\\"\", content: include_bytes!({path:?}) }},",
            fingerprint(&content)
        );
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write"));
    fs::write(out.join("ui.rs"), code).expect("what was generated can be written");
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) {
    for entry in fs::read_dir(folder).expect("the folder of the dashboard can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|it| it != "rs") && !entry.file_name().to_string_lossy().starts_with('.')
        {
            let name = path.strip_prefix(root).expect("it is inside").to_string_lossy().replace('\\', "/");
            files.push((name, path));
        }
    }
}

/// FNV-1a: only tells one version of a file from another.
fn fingerprint(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

//! Copies: of a file by SQLite itself, of PostgreSQL by its own pg_dump.

use std::ffi::OsStr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use comeback_engine::store::{Place, PostgresOptions, StoreError, sqlite};
use serde_json::json;

use super::progress::Progress;
use crate::commands::broken;
use crate::failure::{Failure, code};
use crate::output::{Output, View, size};

pub async fn run(out: &Output, place: &Place, to: &Path) -> Result<u8, Failure> {
    if to.exists() {
        return Err(Failure::new(code::USAGE, format!("{} exists already", to.display()))
            .why("a backup never replaces anything")
            .remedy("name another file: --to FILE"));
    }
    let bytes = match place {
        Place::File(path) => copy(place, path, to)?,
        Place::Server(options) => dump(place, options, to).await?,
    };
    let restore = match place {
        Place::File(_) => format!("comeback serve --db {}", to.display()),
        Place::Server(_) => format!("pg_restore --no-owner --dbname URL {}", to.display()),
    };
    let mut view = View::new(json!({"db": place.to_string(), "to": to, "bytes": bytes}));
    view.line(format!("{place} → {}   {}, whole and readable by you alone", to.display(), size(bytes)));
    view.with_hint(format!("use it: {restore}")).print(out)
}

fn copy(place: &Place, from: &Path, to: &Path) -> Result<u64, Failure> {
    let mut progress = Progress::begin();
    let copied = sqlite::backup(from, to, &mut |at| progress.tell("copying", at.pages, Some(at.total)));
    copied.map_err(|error| match error {
        StoreError::Refused(why) => Failure::new(code::FAILED, "no backup was made")
            .why(why)
            .remedy("remove it, or name another file: --to FILE"),
        StoreError::Unavailable(why) => {
            Failure::new(code::FAILED, "no backup was made").why(why).remedy("look at the disk and the folder")
        }
        error => broken(place, &error),
    })
}

async fn dump(place: &Place, options: &PostgresOptions, to: &Path) -> Result<u64, Failure> {
    let (url, password) = apart(&options.url);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = find("pg_dump", &path, Path::new(DEBIAN)).ok_or_else(|| {
        Failure::new(code::FAILED, format!("no backup of {place} was made"))
            .why(format!("pg_dump is neither on PATH nor in {DEBIAN}"))
            .remedy(format!("pg_dump --format=custom --schema={} --file={} '{url}'", options.schema, to.display()))
    })?;
    // Under another name until it is whole, and for its owner alone.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let wrong = |why: String| {
        Failure::new(code::FAILED, format!("no backup of {place} was made"))
            .why(why)
            .remedy("look at the disk, the folder and the rights of the user")
    };
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
    made.map_err(|error| wrong(format!("{}: {error}", partial.display())))?;
    let mut command = tokio::process::Command::new(program);
    command.args(["--format=custom", "--no-password"]);
    command.arg(format!("--schema={}", options.schema)).arg("--file").arg(&partial).arg(&url);
    if let Some(password) = password {
        command.env("PGPASSWORD", password);
    }
    let ran = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().await;
    let outcome = match ran {
        Err(error) => Err(error.to_string()),
        Ok(output) if output.status.success() && !is_readable(&path, &partial).await => {
            Err("pg_restore cannot read what pg_dump wrote".into())
        }
        Ok(output) if output.status.success() => {
            let linked = std::fs::File::open(&partial).and_then(|file| file.sync_all());
            linked.and_then(|()| std::fs::hard_link(&partial, to)).map_err(|error| error.to_string())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().collect::<Vec<_>>().join("; ")),
    };
    let _ = std::fs::remove_file(&partial);
    outcome.map_err(wrong)?;
    Ok(to.metadata().map_or(0, |it| it.len()))
}

/// Whether the list of what is in it can be read; unknown counts as yes.
async fn is_readable(path: &OsStr, dump: &Path) -> bool {
    let Some(program) = find("pg_restore", path, Path::new(DEBIAN)) else { return true };
    let quiet = Stdio::null;
    let listed = tokio::process::Command::new(program).arg("--list").arg(dump).stdout(quiet()).stderr(quiet()).status();
    listed.await.is_ok_and(|status| status.success())
}

/// A URL without its password, and the password: what is in the arguments of a process, everybody on the machine can read.
fn apart(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest),
    };
    let (path, query) = place.split_once('?').unwrap_or((place, ""));
    let mut password = None;
    let kept: Vec<&str> = query
        .split('&')
        .filter(|part| match part.strip_prefix("password=") {
            Some(secret) => {
                password = Some(secret.to_owned());
                false
            }
            None => !part.is_empty(),
        })
        .collect();
    let name = user.map(|user| match user.split_once(':') {
        Some((name, secret)) => {
            password = Some(secret.to_owned());
            format!("{name}@")
        }
        None => format!("{user}@"),
    });
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    (format!("{scheme}://{}{path}{query}", name.unwrap_or_default()), password.map(|text| decoded(&text)))
}

/// A password in a URL may be written with `%` signs.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (byte, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(value)) => {
                bytes.push(value);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where Debian keeps what belongs to a version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// On PATH, or where Debian keeps it, the newest first.
fn find(name: &str, path: &OsStr, debian: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.is_file();
    if let Some(found) = std::env::split_paths(path).map(|folder| folder.join(name)).find(is_program) {
        return Some(found);
    }
    let versions = std::fs::read_dir(debian).ok()?.flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| {
            let number = version.file_name().to_str()?.parse().ok()?;
            Some((number, version.path().join("bin").join(name)))
        })
        .filter(|(_, path)| is_program(path))
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_path_first_and_then_by_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let debian = folder.path().join("postgresql");
        assert_eq!(find("pg_dump", OsStr::new(""), &debian), None);
        for version in ["9", "13", "17"] {
            let bin = debian.join(version).join("bin");
            std::fs::create_dir_all(&bin).expect("a folder");
            std::fs::write(bin.join("pg_dump"), "").expect("a program");
        }
        let newest = find("pg_dump", OsStr::new(""), &debian).expect("found");
        assert!(newest.ends_with("17/bin/pg_dump"), "{newest:?}");
        let own = folder.path().join("own");
        std::fs::create_dir_all(&own).expect("a folder");
        std::fs::write(own.join("pg_dump"), "").expect("a program");
        assert_eq!(find("pg_dump", own.as_os_str(), &debian), Some(own.join("pg_dump")));
    }

    #[test]
    fn a_password_is_taken_out_of_a_url() {
        for (url, bare, password) in [
            ("postgres://host/db", "postgres://host/db", None),
            ("postgres://me@host/db", "postgres://me@host/db", None),
            (
                "postgres://me:p%40ss@host:5432/db?sslmode=require",
                "postgres://me@host:5432/db?sslmode=require",
                Some("p@ss"),
            ),
            ("postgres://host/db?user=me&password=secret", "postgres://host/db?user=me", Some("secret")),
        ] {
            assert_eq!(apart(url), (bare.to_owned(), password.map(str::to_owned)), "{url}");
        }
    }
}

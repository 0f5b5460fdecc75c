//! Backups: of a file through SQLite, of PostgreSQL through pg_dump.

use std::ffi::OsStr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use comeback_engine::store::{Place, PostgresOptions, StoreError, sqlite};
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::progress::ProgressLine;
use crate::commands::broken;
use crate::error::{CliError, code};
use crate::output::{Output, View, size};

pub async fn run(out: &Output, place: &Place, to: &Path) -> Result<u8, CliError> {
    if to.exists() {
        return Err(CliError::new(code::USAGE, format!("{} already exists", to.display()))
            .why("a backup does not overwrite files")
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
    view.line(format!("{place} → {}   {}, complete, readable only by you", to.display(), size(bytes)));
    view.with_hint(format!("restore: {restore}")).print(out)
}

fn copy(place: &Place, from: &Path, to: &Path) -> Result<u64, CliError> {
    let mut progress = ProgressLine::new();
    let copied = sqlite::backup(from, to, &mut |at| progress.update("copying", at.pages, Some(at.total)));
    copied.map_err(|error| match error {
        StoreError::Refused(why) => {
            CliError::new(code::FAILED, "backup failed").why(why).remedy("remove it, or name another file: --to FILE")
        }
        StoreError::Unavailable(why) => {
            CliError::new(code::FAILED, "backup failed").why(why).remedy("check the disk and the folder")
        }
        error => broken(place, &error),
    })
}

async fn dump(place: &Place, options: &PostgresOptions, to: &Path) -> Result<u64, CliError> {
    let (url, password) = split_password(&options.url);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = find("pg_dump", &path, Path::new(DEBIAN)).ok_or_else(|| {
        CliError::new(code::FAILED, format!("backup of {place} failed"))
            .why(format!("pg_dump is neither on PATH nor in {DEBIAN}"))
            .remedy(format!("pg_dump --format=custom --schema={} --file={} '{url}'", options.schema, to.display()))
    })?;
    // Written under another name until complete, readable only by its owner.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let wrong = |why: String| {
        CliError::new(code::FAILED, format!("backup of {place} failed"))
            .why(why)
            .remedy("check the disk, the folder and the permissions of the user")
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

/// Whether pg_restore can list the dump; true if there is no pg_restore.
async fn is_readable(path: &OsStr, dump: &Path) -> bool {
    let Some(program) = find("pg_restore", path, Path::new(DEBIAN)) else { return true };
    let quiet = Stdio::null;
    let listed = tokio::process::Command::new(program).arg("--list").arg(dump).stdout(quiet()).stderr(quiet()).status();
    listed.await.is_ok_and(|status| status.success())
}

/// Splits the password off a URL: the arguments of a process are visible to all users of the machine.
fn split_password(url: &str) -> (String, Option<String>) {
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
    (
        format!("{scheme}://{}{path}{query}", name.unwrap_or_default()),
        password.map(|text| percent_decode_str(&text).decode_utf8_lossy().into_owned()),
    )
}

/// Debian's folder of versioned PostgreSQL programs.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Finds a program on PATH, or the newest one in Debian's folder.
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
            assert_eq!(split_password(url), (bare.to_owned(), password.map(str::to_owned)), "{url}");
        }
    }
}

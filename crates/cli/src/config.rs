//! Which server, which key, which namespace: from a flag, the environment, a profile, or the default, in this order. Every
//! value knows where it came from.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Deserialize;

use crate::args::Global;
use crate::failure::{Failure, code};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7330";

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The profile that is used when none is named.
    profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    server: Option<String>,
    key: Option<String>,
    key_file: Option<PathBuf>,
    namespace: Option<String>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Environment(&'static str),
    Profile(String),
    /// The file names it for want of another.
    File,
    Default,
    Nowhere,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag(name) => write!(f, "--{name}"),
            Origin::Environment(name) => f.write_str(name),
            Origin::Profile(name) => write!(f, "profile {name}"),
            Origin::File => f.write_str("configuration file"),
            Origin::Default => f.write_str("default"),
            Origin::Nowhere => f.write_str("not set"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub value: Option<String>,
    pub origin: Origin,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub profile: Setting,
    pub server: Setting,
    pub key: Setting,
    pub namespace: Setting,
    /// Where the file is looked for, and whether it is there.
    pub file: Option<PathBuf>,
    pub file_exists: bool,
    /// Said once, on stderr.
    pub warnings: Vec<String>,
}

/// What was said on the command line or in the environment, and which of the two.
pub struct Said<'a> {
    pub global: &'a Global,
    pub matches: &'a ArgMatches,
}

impl Said<'_> {
    fn setting(&self, name: &'static str, variable: &'static str, value: &Option<String>) -> Option<Setting> {
        let value = value.clone().filter(|value| !value.is_empty())?;
        let origin = match self.matches.value_source(name) {
            Some(ValueSource::EnvVariable) => Origin::Environment(variable),
            _ => Origin::Flag(name),
        };
        Some(Setting { value: Some(value), origin })
    }
}

impl Settings {
    pub fn find(said: &Said<'_>) -> Result<Settings, Failure> {
        let Place { path, must_exist } = place();
        let file_exists = path.as_deref().is_some_and(Path::exists);
        let file = match path.as_deref() {
            Some(path) if file_exists || must_exist => read(path)?,
            _ => File::default(),
        };
        let global = said.global;
        let profile = said
            .setting("profile", "COMEBACK_PROFILE", &global.profile)
            .or_else(|| file.profile.clone().map(|name| Setting { value: Some(name), origin: Origin::File }))
            .unwrap_or(Setting { value: None, origin: Origin::Nowhere });
        let chosen = match &profile.value {
            None => Profile::default(),
            Some(name) => file.profiles.get(name).cloned().ok_or_else(|| unknown(name, &file, path.as_deref()))?,
        };
        let of_profile = |value: Option<String>| {
            let origin = Origin::Profile(profile.value.clone().unwrap_or_default());
            value.map(|value| Setting { value: Some(value), origin })
        };
        let nowhere = Setting { value: None, origin: Origin::Nowhere };
        let key = match said.setting("key", "COMEBACK_KEY", &global.key) {
            Some(key) => key,
            None => of_profile(chosen.key()?).unwrap_or(nowhere.clone()),
        };
        let mut settings = Settings {
            server: said
                .setting("server", "COMEBACK_SERVER", &global.server)
                .or_else(|| of_profile(chosen.server.clone()))
                .unwrap_or(Setting { value: Some(DEFAULT_SERVER.into()), origin: Origin::Default }),
            key,
            namespace: said
                .setting("namespace", "COMEBACK_NAMESPACE", &global.namespace)
                .or_else(|| of_profile(chosen.namespace.clone()))
                .unwrap_or(nowhere),
            profile,
            file: path,
            file_exists,
            warnings: Vec::new(),
        };
        let holds_keys = file.profiles.values().any(|profile| profile.key.is_some());
        let secret = settings.file.as_deref().filter(|_| holds_keys).into_iter().chain(chosen.key_file.as_deref());
        settings.warnings = secret.filter_map(open_to_others).collect();
        Ok(settings)
    }

    pub fn server(&self) -> &str {
        self.server.value.as_deref().unwrap_or(DEFAULT_SERVER)
    }
}

impl Profile {
    fn key(&self) -> Result<Option<String>, Failure> {
        match (&self.key, &self.key_file) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, None) => Ok(None),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) => Err(Failure::new(code::USAGE, format!("the key file {} cannot be read", path.display()))
                    .why(error.to_string())
                    .remedy("write the key into it, or name another one as key_file")),
            },
        }
    }
}

/// A secret without its secret part.
pub fn masked(key: &str) -> String {
    match key.rsplit_once('_') {
        Some((name, secret)) if !secret.is_empty() => format!("{name}_…"),
        _ => "…".into(),
    }
}

struct Place {
    path: Option<PathBuf>,
    /// Whoever names a file means it.
    must_exist: bool,
}

/// Where the file is looked for.
pub fn path() -> Option<PathBuf> {
    place().path
}

fn place() -> Place {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = named("COMEBACK_CONFIG") {
        return Place { path: Some(path), must_exist: true };
    }
    let folder = named("XDG_CONFIG_HOME").or_else(|| named("HOME").map(|home| home.join(".config")));
    Place { path: folder.map(|folder| folder.join("comeback").join("config.toml")), must_exist: false }
}

fn read(path: &Path) -> Result<File, Failure> {
    let wrong = |why: String| {
        Failure::new(code::USAGE, format!("the configuration file {} cannot be used", path.display()))
            .why(why)
            .remedy("correct it, or name another one: COMEBACK_CONFIG=FILE")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        wrong(format!("{place}{}", error.message()))
    })
}

fn unknown(name: &str, file: &File, path: Option<&Path>) -> Failure {
    let names: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
    let place = path.map_or_else(|| "anywhere".into(), |path| format!("in {}", path.display()));
    let failure = Failure::new(code::USAGE, format!("there is no profile `{name}` {place}"));
    match names.as_slice() {
        [] => failure.why("there are no profiles").remedy("add [profiles.NAME] with server, key and namespace"),
        names => failure.why(format!("there are: {}", names.join(", "))).remedy(format!("--profile {}", names[0])),
    }
}

fn open_to_others(path: &Path) -> Option<String> {
    let mode = path.metadata().ok()?.permissions().mode();
    (mode & 0o077 != 0)
        .then(|| format!("warning: {} holds a key and others may read it; do: chmod 600 {0}", path.display()))
}

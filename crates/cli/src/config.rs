//! Server, key and namespace of the client: from a flag, the environment, a profile, or the default, in this order. Every value
//! has its origin.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Deserialize;

use crate::args::Global;
use crate::error::{CliError, code};

/// Server URL without any setting.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7330";

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    /// Profile that is used when none is given.
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

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    Flag(&'static str),
    Environment(&'static str),
    Profile(String),
    /// Default profile of the file.
    File,
    Default,
    Nowhere,
}

impl std::fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingOrigin::Flag(name) => write!(f, "--{name}"),
            SettingOrigin::Environment(name) => f.write_str(name),
            SettingOrigin::Profile(name) => write!(f, "profile {name}"),
            SettingOrigin::File => f.write_str("configuration file"),
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::Nowhere => f.write_str("not set"),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub value: Option<String>,
    pub origin: SettingOrigin,
}

/// Effective settings of the client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub profile: Setting,
    pub server: Setting,
    pub key: Setting,
    pub namespace: Setting,
    /// Path of the file, whether or not it exists.
    pub file: Option<PathBuf>,
    pub file_exists: bool,
    /// Printed once, on stderr.
    pub warnings: Vec<String>,
}

/// Values of the command line and the environment, with the source of each.
pub struct ConfigSources<'a> {
    pub global: &'a Global,
    pub matches: &'a ArgMatches,
}

impl ConfigSources<'_> {
    fn setting(&self, name: &'static str, variable: &'static str, value: &Option<String>) -> Option<Setting> {
        let value = value.clone().filter(|value| !value.is_empty())?;
        let origin = match self.matches.value_source(name) {
            Some(ValueSource::EnvVariable) => SettingOrigin::Environment(variable),
            _ => SettingOrigin::Flag(name),
        };
        Some(Setting { value: Some(value), origin })
    }
}

impl ClientSettings {
    pub fn find(sources: &ConfigSources<'_>) -> Result<ClientSettings, CliError> {
        let ConfigPath { path, must_exist } = config_path();
        let file_exists = path.as_deref().is_some_and(Path::exists);
        let file = match path.as_deref() {
            Some(path) if file_exists || must_exist => read(path)?,
            _ => ConfigFile::default(),
        };
        let global = sources.global;
        let profile = sources
            .setting("profile", "COMEBACK_PROFILE", &global.profile)
            .or_else(|| file.profile.clone().map(|name| Setting { value: Some(name), origin: SettingOrigin::File }))
            .unwrap_or(Setting { value: None, origin: SettingOrigin::Nowhere });
        let chosen = match &profile.value {
            None => Profile::default(),
            Some(name) => {
                file.profiles.get(name).cloned().ok_or_else(|| unknown_profile(name, &file, path.as_deref()))?
            }
        };
        let of_profile = |value: Option<String>| {
            let origin = SettingOrigin::Profile(profile.value.clone().unwrap_or_default());
            value.map(|value| Setting { value: Some(value), origin })
        };
        let nowhere = Setting { value: None, origin: SettingOrigin::Nowhere };
        let key = match sources.setting("key", "COMEBACK_KEY", &global.key) {
            Some(key) => key,
            None => of_profile(chosen.key()?).unwrap_or(nowhere.clone()),
        };
        let mut settings = ClientSettings {
            server: sources
                .setting("server", "COMEBACK_SERVER", &global.server)
                .or_else(|| of_profile(chosen.server.clone()))
                .unwrap_or(Setting { value: Some(DEFAULT_SERVER.into()), origin: SettingOrigin::Default }),
            key,
            namespace: sources
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
        settings.warnings = secret.filter_map(readable_by_others).collect();
        Ok(settings)
    }

    pub fn server(&self) -> &str {
        self.server.value.as_deref().unwrap_or(DEFAULT_SERVER)
    }
}

impl Profile {
    fn key(&self) -> Result<Option<String>, CliError> {
        match (&self.key, &self.key_file) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, None) => Ok(None),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) => Err(CliError::new(code::USAGE, format!("cannot read the key file {}", path.display()))
                    .why(error.to_string())
                    .remedy("write the key into it, or set another key_file")),
            },
        }
    }
}

/// A key without its secret part.
pub fn masked(key: &str) -> String {
    match key.rsplit_once('_') {
        Some((name, secret)) if !secret.is_empty() => format!("{name}_…"),
        _ => "…".into(),
    }
}

struct ConfigPath {
    path: Option<PathBuf>,
    /// Set by COMEBACK_CONFIG: a missing file is an error.
    must_exist: bool,
}

/// Path of the configuration file.
pub fn path() -> Option<PathBuf> {
    config_path().path
}

fn config_path() -> ConfigPath {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = named("COMEBACK_CONFIG") {
        return ConfigPath { path: Some(path), must_exist: true };
    }
    let folder = named("XDG_CONFIG_HOME").or_else(|| named("HOME").map(|home| home.join(".config")));
    ConfigPath { path: folder.map(|folder| folder.join("comeback").join("config.toml")), must_exist: false }
}

fn read(path: &Path) -> Result<ConfigFile, CliError> {
    let invalid = |why: String| {
        CliError::new(code::USAGE, format!("invalid configuration file {}", path.display()))
            .why(why)
            .remedy("correct it, or use another file: COMEBACK_CONFIG=FILE")
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        invalid(format!("{place}{}", error.message()))
    })
}

fn unknown_profile(name: &str, file: &ConfigFile, path: Option<&Path>) -> CliError {
    let names: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
    let place = path.map(|path| format!(" in {}", path.display())).unwrap_or_default();
    let failure = CliError::new(code::USAGE, format!("there is no profile `{name}`{place}"));
    match names.as_slice() {
        [] => failure.why("there are no profiles").remedy("add [profiles.NAME] with server, key and namespace"),
        names => failure.why(format!("profiles are {}", names.join(", "))).remedy(format!("--profile {}", names[0])),
    }
}

fn readable_by_others(path: &Path) -> Option<String> {
    let mode = path.metadata().ok()?.permissions().mode();
    (mode & 0o077 != 0)
        .then(|| format!("warning: {} holds a key and is readable by other users; do: chmod 600 {0}", path.display()))
}

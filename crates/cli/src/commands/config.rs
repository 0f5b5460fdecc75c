//! `config`: effective settings and where each comes from.

use clap::{Arg, ArgAction};
use comeback_engine::store::Place;
use serde_json::json;

use crate::args::ConfigCommand;
use crate::config::{ClientSettings, Setting, masked};
use crate::error::{CliError, code};
use crate::output::{Output, Table, View, outln};

pub fn run(
    out: &Output,
    settings: impl Fn() -> Result<ClientSettings, CliError>,
    command: ConfigCommand,
) -> Result<u8, CliError> {
    match command {
        ConfigCommand::View { serve: false } => view(out, &settings()?),
        ConfigCommand::View { serve: true } => of_serve(out),
        ConfigCommand::Path => match crate::config::path() {
            Some(path) => {
                outln!("{}", path.display());
                Ok(code::OK)
            }
            None => Err(CliError::new(code::NOT_FOUND, "no path for a configuration file")
                .why("neither COMEBACK_CONFIG, XDG_CONFIG_HOME nor HOME is set")
                .remedy("COMEBACK_CONFIG=FILE")),
        },
    }
}

fn view(out: &Output, settings: &ClientSettings) -> Result<u8, CliError> {
    for warning in &settings.warnings {
        crate::output::errln!("{warning}");
    }
    let key = Setting { value: settings.key.value.as_deref().map(masked), origin: settings.key.origin.clone() };
    let rows = [
        ("profile", &settings.profile),
        ("server", &settings.server),
        ("key", &key),
        ("namespace", &settings.namespace),
    ];
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    let mut data = json!({});
    for (name, setting) in rows {
        data[name] = json!({"value": setting.value, "from": setting.origin.to_string()});
        let value = setting.value.clone().unwrap_or_else(|| "–".into());
        table.rows.push(vec![name.into(), value.into(), setting.origin.to_string().into()]);
    }
    let file = settings.file.as_deref().map(|path| path.display().to_string());
    data["file"] = json!({"path": file, "exists": settings.file_exists});
    let hint = match file {
        Some(path) if settings.file_exists => format!("file: {path}"),
        Some(path) => format!("no file (would be {path})"),
        None => "no file".to_owned(),
    };
    View::table(data, table).with_hint(hint).print(out)
}

/// The settings of `serve` in this environment: variables, or defaults.
fn of_serve(out: &Output) -> Result<u8, CliError> {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM", "ENVIRONMENT"]);
    let mut data = json!({});
    for arg in serve_settings() {
        let (Some(name), Some(variable)) = (arg.get_long(), arg.get_env().and_then(|it| it.to_str())) else { continue };
        let given = std::env::var(variable).ok();
        let from = if given.is_some() { variable } else { "default" };
        let value = given.or_else(|| default_of(&arg));
        // A URL may hold a password.
        let value = value.map(|value| if name == "db" { Place::named(&value).to_string() } else { value });
        data[name] = json!({"value": value, "from": from, "environment": variable});
        let shown = value.unwrap_or_else(|| "–".into());
        table.rows.push(vec![name.to_owned().into(), shown.into(), from.to_owned().into(), variable.to_owned().into()]);
    }
    for (variable, value) in crate::environment::retry_variables() {
        let name = variable.to_ascii_lowercase().replace('_', "-");
        data[&name] = json!({"value": value, "from": variable, "environment": variable});
        table.rows.push(vec![name.into(), value.into(), variable.to_owned().into(), variable.to_owned().into()]);
    }
    View::table(data, table).with_hint("– means unset: see comeback serve --help").print(out)
}

fn serve_settings() -> Vec<Arg> {
    let all = crate::args::command();
    let serve = all.find_subcommand("serve");
    let own = serve.into_iter().flat_map(clap::Command::get_arguments).filter(|arg| !arg.is_global_set());
    own.filter(|arg| arg.get_id() != "help").cloned().collect()
}

fn default_of(arg: &Arg) -> Option<String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some("false".to_owned());
    }
    arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F1-20: every option of `serve` has a variable, and its default is documented.
    #[test]
    fn every_setting_of_a_server_has_a_variable_and_a_stated_default() {
        let topic = include_str!("help/environment.txt");
        let settings = serve_settings();
        assert!(settings.len() > 10, "they were found");
        for arg in settings {
            let name = arg.get_id().as_str();
            let variable = arg.get_env().and_then(|it| it.to_str()).unwrap_or_else(|| panic!("{name} has no variable"));
            let line = topic.lines().find(|line| line.trim_start().starts_with(&format!("{variable} ")));
            let line = line.unwrap_or_else(|| panic!("comeback help environment does not name {variable}"));
            match default_of(&arg).filter(|default| default != "false") {
                Some(default) => assert!(line.contains(&format!("({default})")), "{line}: {default}"),
                None => assert!(line.ends_with(')'), "{line}: what holds without it?"),
            }
        }
    }
}

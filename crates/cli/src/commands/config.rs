//! Which settings are in force, and where each comes from.

use serde_json::json;

use crate::args::ConfigCommand;
use crate::config::{Setting, Settings, masked};
use crate::failure::{Failure, code};
use crate::output::{Output, Table, View, say};

pub fn run(
    out: &Output,
    settings: impl Fn() -> Result<Settings, Failure>,
    command: ConfigCommand,
) -> Result<u8, Failure> {
    match command {
        ConfigCommand::View => view(out, &settings()?),
        ConfigCommand::Path => match crate::config::path() {
            Some(path) => {
                say!("{}", path.display());
                Ok(code::OK)
            }
            None => Err(Failure::new(code::NOT_FOUND, "there is no place for a configuration file")
                .why("neither COMEBACK_CONFIG, XDG_CONFIG_HOME nor HOME is set")
                .remedy("COMEBACK_CONFIG=FILE")),
        },
    }
}

fn view(out: &Output, settings: &Settings) -> Result<u8, Failure> {
    for warning in &settings.warnings {
        eprintln!("{warning}");
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
        Some(path) => format!("no file: {path} would be read"),
        None => "no file".to_owned(),
    };
    View::table(data, table).with_hint(hint).print(out)
}

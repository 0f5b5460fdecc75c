//! `--watch`: repaints the view on a terminal, and prints it again on a pipe when it has changed.

use std::future::Future;
use std::io::Write;
use std::time::Duration;

use comeback_core::Millis;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{OutputFormat, WatchArgs};
use crate::error::{CliError, code};
use crate::output::{Output, View, outln, span};

/// Prints a view once, or repeatedly until Ctrl-C.
pub async fn show<L>(out: &Output, watch: &WatchArgs, load: impl Fn() -> L) -> Result<u8, CliError>
where
    L: Future<Output = Result<View, CliError>>,
{
    let Some(every) = &watch.watch else { return load().await?.print(out) };
    let invalid =
        |why: String| CliError::new(code::USAGE, format!("invalid --watch `{every}`")).why(why).remedy("--watch=2s");
    let every = Millis::parse(every).map_err(|error| invalid(error.to_string()))?;
    if every < Millis(100) {
        return Err(invalid("the minimum is 100ms".into()));
    }
    let repaints = out.terminal && out.format == OutputFormat::Table;
    let _cursor = repaints.then(HiddenCursor::hide);
    // Registered once, so that Ctrl-C during a request is noticed too.
    let mut interrupted = Interrupted::listen()?;
    let mut seen: Option<View> = None;
    loop {
        let view = tokio::select! {
            view = load() => view,
            () = interrupted.wait() => return Ok(code::OK),
        };
        match view {
            Ok(view) if repaints => {
                repaint(every, &view.lines(out, seen.as_ref())?, view.hint.as_deref());
                seen = Some(view);
            }
            Ok(view) => {
                if seen.as_ref().is_none_or(|seen| differs(seen, &view, out)) {
                    append(out, &view, seen.is_some())?;
                    seen = Some(view);
                }
            }
            // The server may come back; the last view stays on the screen.
            Err(failure) if repaints && seen.is_some() && failure.code == code::UNREACHABLE => {
                let mut lines = seen.as_ref().map_or_else(|| Ok(Vec::new()), |view| view.lines(out, None))?;
                lines.push(String::new());
                lines.push(failure.to_string().lines().next().unwrap_or_default().to_owned());
                repaint(every, &lines, None);
            }
            Err(failure) => return Err(failure),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(every.0)) => {}
            () = interrupted.wait() => return Ok(code::OK),
        }
    }
}

/// Whether the data changed; relative times do not count.
fn differs(before: &View, after: &View, out: &Output) -> bool {
    if out.is_json() {
        let still = |view: &View| {
            let mut data = view.data.clone();
            data.as_object_mut().map(|data| data.remove("now"));
            data
        };
        return still(before) != still(after);
    }
    before.blocks != after.blocks
}

fn append(out: &Output, view: &View, again: bool) -> Result<(), CliError> {
    if out.is_json() {
        outln!("{}", crate::output::json_line(&view.data));
        return Ok(());
    }
    if again {
        outln!("");
    }
    view.print(out).map(|_| ())
}

fn repaint(every: Millis, lines: &[String], hint: Option<&str>) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    let rows = if size == 0 { 24 } else { size.max(5) };
    let clock = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
    let mut page = format!("\x1b[Hevery {}   {clock}   Ctrl-C to stop\x1b[K\n\x1b[K\n", span(every));
    let room = rows.saturating_sub(4);
    for line in lines.iter().take(room) {
        page.push_str(line);
        page.push_str("\x1b[K\n");
    }
    let hidden = lines.len().saturating_sub(room);
    let more = if hidden > 0 { format!("… {hidden} more lines; ") } else { String::new() };
    page.push_str(&format!("{more}{}\x1b[K\x1b[J", crate::output::safe::cell(hint.unwrap_or_default())));
    let mut screen = std::io::stdout();
    if screen.write_all(page.as_bytes()).and_then(|()| screen.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Hides the cursor until dropped.
struct HiddenCursor;

impl HiddenCursor {
    fn hide() -> HiddenCursor {
        crate::output::write_out_raw(format_args!("\x1b[?25l\x1b[2J"));
        HiddenCursor
    }
}

impl Drop for HiddenCursor {
    fn drop(&mut self) {
        crate::output::try_outln!("\x1b[?25h");
    }
}

/// SIGINT and SIGTERM, from the creation of this value on.
pub struct Interrupted {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupted {
    pub fn listen() -> Result<Interrupted, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(code::FAILED, "cannot register signal handlers").why(error.to_string())
        };
        let register = |kind: SignalKind| signal(kind).map_err(failed);
        Ok(Interrupted { interrupt: register(SignalKind::interrupt())?, terminate: register(SignalKind::terminate())? })
    }

    /// Waits for either signal.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

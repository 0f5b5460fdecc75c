//! Looking again and again: repainted on a terminal, and on a pipe said again when something has changed.

use std::future::Future;
use std::io::Write;
use std::time::Duration;

use comeback_core::Millis;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Format, Watch};
use crate::failure::{Failure, code};
use crate::output::{Output, View, say, span};

/// Looks once, or until Ctrl-C.
pub async fn show<L>(out: &Output, watch: &Watch, look: impl Fn() -> L) -> Result<u8, Failure>
where
    L: Future<Output = Result<View, Failure>>,
{
    let Some(every) = &watch.watch else { return look().await?.print(out) };
    let wrong = |why: String| Failure::new(code::USAGE, format!("`{every}` is no span")).why(why).remedy("--watch=2s");
    let every = Millis::parse(every).map_err(|error| wrong(error.to_string()))?;
    if every < Millis(100) {
        return Err(wrong("it is shorter than 100ms".into()));
    }
    let repaints = out.terminal && out.format == Format::Table;
    let _screen = repaints.then(Screen::begin);
    // One ear for the whole time: a Ctrl-C during a look is heard too.
    let mut interrupted = Interrupted::listen()?;
    let mut seen: Option<View> = None;
    loop {
        let view = tokio::select! {
            view = look() => view,
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
            // Once it was there it may come back; what was seen last stays on the screen.
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

/// Times that only move are no news.
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

fn append(out: &Output, view: &View, again: bool) -> Result<(), Failure> {
    if out.is_json() {
        say!("{}", crate::output::json_line(&view.data));
        return Ok(());
    }
    if again {
        say!("");
    }
    view.print(out).map(|_| ())
}

fn repaint(every: Millis, lines: &[String], hint: Option<&str>) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    let rows = if size == 0 { 24 } else { size.max(5) };
    let clock = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
    let mut page = format!("\x1b[Hevery {}   {clock}   Ctrl-C ends it\x1b[K\n\x1b[K\n", span(every));
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

/// The terminal as it was, however this ends.
struct Screen;

impl Screen {
    fn begin() -> Screen {
        crate::output::drawn(format_args!("\x1b[?25l\x1b[2J"));
        Screen
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        crate::output::tell!("\x1b[?25h");
    }
}

/// Ctrl-C, or being told to end: heard from the moment this is made.
pub struct Interrupted {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupted {
    pub fn listen() -> Result<Interrupted, Failure> {
        let deaf = |error: std::io::Error| Failure::new(code::FAILED, "Ctrl-C cannot be heard").why(error.to_string());
        let hear = |kind: SignalKind| signal(kind).map_err(deaf);
        Ok(Interrupted { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

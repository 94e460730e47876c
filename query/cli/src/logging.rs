//! What the libraries log, as lines like all others on standard error: `backstory: MESSAGE: CAUSE`.

use std::fmt;
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// From now on warnings are lines; with `BACKSTORY_LOG`, what that asks for, in the logger's own form.
pub(crate) fn start() {
    let all = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time();
    match EnvFilter::try_from_env("BACKSTORY_LOG") {
        Ok(filter) => all.with_env_filter(filter).with_ansi(std::io::stderr().is_terminal()).init(),
        Err(_) => all.with_max_level(LevelFilter::WARN).event_format(Line).init(),
    }
}

struct Line;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N>
    for Line
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        writeln!(out, "backstory: {}", said.line())
    }
}

/// The message and the values of an event.
#[derive(Default)]
struct Said {
    message: String,
    values: Vec<String>,
}

impl Said {
    fn line(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.values);
        parts.map(String::as_str).collect::<Vec<_>>().join(": ").replace('\n', " ")
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.values.push(format!("{value:?}")),
            name => self.values.push(format!("{name} {value:?}")),
        }
    }
}

//! What the libraries log, as lines like all others on standard error: `backstory: MESSAGE: CAUSE`.

use std::fmt;
use std::io::{IsTerminal, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;

/// From now on warnings are lines; with `BACKSTORY_LOG`, what that asks for, in the logger's own form.
pub(crate) fn start() {
    let started = match EnvFilter::try_from_env("BACKSTORY_LOG") {
        Ok(filter) => {
            let all = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time();
            all.with_env_filter(filter).with_ansi(std::io::stderr().is_terminal()).try_init().is_ok()
        }
        Err(_) => tracing::subscriber::set_global_default(Lines).is_ok(),
    };
    debug_assert!(started, "this is called once");
}

/// Warnings as lines. There is no more to it, as the logger's own preparations take longer than to record a short program.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let _ = writeln!(std::io::stderr(), "backstory: {}", said.line());
    }

    // Where it was said is not told.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
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

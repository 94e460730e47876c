//! `monitor` commands.

use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd};
use guest::When;

use crate::session::{Session, SessionError, Shown};

/// The command after which another thread may be the one that runs next.
const GOTO: &str = "goto";

const HELP: &str = "\
monitor when         where we are: the moment, the task, the share of the recording
monitor goto MOMENT  go to @123456789, @50%, @start, @end, @exit or @signal
monitor ps           the processes of the recording, and from when to when they ran; go to a moment of one to look at it
monitor maps         the mappings of the process
monitor help         this
";

impl MonitorCmd for Session {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), SessionError> {
        let command = String::from_utf8_lossy(command);
        let shown = self.shown;
        out.write_raw(self.answer(command.trim())?.as_bytes());
        let exe = self.program().map(|program| program.exe.clone()).filter(|_| self.shown != shown);
        let thread = self.thread_pointer().filter(|_| command.trim().starts_with(GOTO));
        match (&mut self.news, exe, thread) {
            (Some(news), Some(exe), _) => (news.0)(Shown::Process(&exe)),
            (Some(news), None, Some(thread)) => (news.0)(Shown::Thread(thread)),
            (Some(news), None, None) => (news.0)(Shown::Same),
            (None, Some(exe), _) => {
                let said = format!("another process runs here: `file target:{exe}` loads its symbols\n");
                out.write_raw(said.as_bytes());
            }
            (None, None, _) => {}
        }
        Ok(())
    }
}

impl Session {
    fn answer(&mut self, command: &str) -> Result<String, SessionError> {
        let (verb, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (verb, argument.trim()) {
            ("when", "") => Ok(self.when()),
            ("ps", "") => Ok(self.processes()),
            ("maps", "") => Ok(self.maps()?),
            (GOTO, argument) => self.goto_text(argument),
            ("help" | "", _) => Ok(HELP.to_owned()),
            _ => Ok(format!("no command `{command}`: `monitor help` lists them\n")),
        }
    }

    fn when(&self) -> String {
        let (here, end) = (self.moment(), self.end());
        let share = u128::from(here.0) * 1000 / u128::from(end.0.max(1));
        let program = self.program().map_or("?", |program| &program.exe);
        let who = self.current_tid().map_or("no task".to_owned(), |tid| format!("task {tid}"));
        format!("{here} of {end} ({}.{}%), {who} of {program}\n", share / 10, share % 10)
    }

    fn goto_text(&mut self, argument: &str) -> Result<String, SessionError> {
        let when = match argument.parse::<When>() {
            Ok(when) => when,
            Err(error) => return Ok(format!("{error}\n")),
        };
        match self.goto(when) {
            Ok(_) => {}
            Err(SessionError::Timeline(timeline::TimelineError::When(error))) => {
                return Ok(format!("{error}\n"));
            }
            Err(error) => return Err(error),
        }
        Ok(self.when())
    }
}

//! `gdb`: a server for the recording, and real gdb connected to it.
//!
//! The server is a process of its own in a process group of its own, so that Ctrl-C in the terminal reaches gdb alone and
//! gdb decides what to interrupt.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use ::gdb::{News, Parting, Session, SessionError, Shown, Sysroot, make_sysroot, path_in, serve};
use anyhow::Context;
use guest::When;
use timeline::TimelineError;
use trace::Trace;

use crate::args;
use crate::exit::{Class, Classify, Failure};
use crate::foreground::Foreground;
use crate::{replay, scratch::Scratch, signals, traces};

/// `backstory gdb`
pub(crate) fn gdb(args: &args::Gdb) -> anyhow::Result<ExitCode> {
    let gdb = find_gdb()?;
    let trace = traces::open(args.which.named())?;
    traces::say_if_cut(&trace, None);
    let scratch = Scratch::new("gdb")?;
    let foreground = Foreground::new(&scratch).context("cannot handle signals")?;
    let socket = scratch.path().join("socket");
    let when = args.at.unwrap_or(When::Start);
    let mut server = start_server(trace.dir(), when, scratch.path(), &socket)?;
    let sysroot = make_sysroot(&trace, scratch.path()).context("cannot link the kept files for gdb")?;
    if let Some(code) = wait_until_ready(&mut server)? {
        return Ok(code);
    }
    let script = write_script(scratch.path(), &sysroot)?;
    signals::leave_interrupts_to_children();
    let mut command = Command::new(gdb);
    command.args(gdb_arguments(&script, &socket, &trace, &args.gdb_args));
    let status = foreground.run(&mut command).context("cannot run gdb");
    if let Some(signo) = foreground.ended() {
        drop((server, scratch));
        signals::die_of(signo);
    }
    Ok(exit_code(status?))
}

/// The hidden `backstory gdb-server`: says `ready` on standard output, serves one connection, or one after the other as gdb
/// moves from process to process, and leaves.
pub(crate) fn server(args: &args::GdbServer) -> anyhow::Result<ExitCode> {
    signals::end_with_parent();
    let trace = traces::open(args.which.trace.as_deref())?;
    let mut session = Session::open(&trace, args.at).class_by(class_of)?;
    let bound = UnixListener::bind(&args.socket);
    let listener = bound.with_context(|| format!("cannot listen on {}", args.socket.display()))?;
    writeln!(std::io::stdout(), "ready")?;
    if let Some([after, root]) = args.after.as_deref() {
        session.tell(news(after.clone(), root.clone(), args.socket.clone()));
    }
    loop {
        let (stream, _) = listener.accept().context("cannot accept gdb's connection")?;
        let parting = serve(&mut session, stream).class(Class::Bug)?;
        if parting == Parting::Done || args.after.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Writes for gdb to `after`, which it reads after each of its `monitor` commands, how to see what is shown now: of another process it
/// loads the executable and connects again; another thread of the same one it selects. Nothing where it sees the right one.
fn news(after: PathBuf, root: PathBuf, socket: PathBuf) -> News {
    News(Box::new(move |shown| {
        let commands = match shown {
            Shown::Same => String::new(),
            Shown::Thread(pointer) => SELECT_THREAD.replace("POINTER", &pointer.to_string()),
            Shown::Process(exe) => {
                let exe = path_in(&root, exe);
                format!("disconnect\nfile {}\ntarget remote {}\n", exe.display(), socket.display())
            }
        };
        if let Err(error) = std::fs::write(&after, commands) {
            tracing::error!(%error, "gdb is not told what is shown now");
        }
    }))
}

/// Has gdb select the thread with a thread pointer. It has no other command for that: it would number them itself.
const SELECT_THREAD: &str = "\
set $backstory_pointer = POINTER
set $backstory_thread = $_thread
thread apply all -q -s backstory-note-thread
if $backstory_thread != $_thread
  thread $backstory_thread
  set $backstory_switched = 1
end
";

/// Below the scratch folder: what gdb reads after `monitor` commands.
const AFTER: &str = "after";

fn find_gdb() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("gdb")).find(|file| file.is_file()).ok_or_else(
        || {
            Failure::new(
                Class::NotFound,
                "gdb is not in PATH: install it (for example `apt-get install gdb`)",
            )
            .into()
        },
    )
}

/// The server's process. It ends by itself when gdb goes, and with us in any case.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_server(trace: &Path, when: When, scratch: &Path, socket: &Path) -> anyhow::Result<Server> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(own);
    command.arg("gdb-server").arg("--trace").arg(trace).arg(format!("--at={when}"));
    command.arg("--after").arg(scratch.join(AFTER)).arg(Sysroot::root_below(scratch)).arg(socket);
    let server = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    server.map(Server).context("cannot start the server for gdb")
}

/// Waits for the server to say that it is ready; its exit code if it fails (it has said why).
fn wait_until_ready(Server(server): &mut Server) -> anyhow::Result<Option<ExitCode>> {
    let mut line = String::new();
    if let Some(stdout) = server.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim() == "ready" {
        return Ok(None);
    }
    Ok(Some(exit_code(server.wait()?)))
}

/// What gdb reads first: where files are, what it must not try, and our commands.
fn write_script(folder: &Path, sysroot: &Sysroot) -> anyhow::Result<PathBuf> {
    let (path, after) = (folder.join("commands"), folder.join(AFTER));
    let text = format!(
        "set sysroot {}\nset solib-search-path {}\n{}",
        sysroot.root.display(),
        sysroot.names.display(),
        COMMANDS.replace("AFTER", &after.display().to_string())
    );
    std::fs::write(&after, "").with_context(|| format!("cannot write {}", after.display()))?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Settings and commands for gdb. After a `monitor goto` nothing gdb remembers is true any more. A recording does not
/// change: gdb says so itself, before it asks us. What the CPU's four debug registers cannot watch, gdb watches by stepping.
const COMMANDS: &str = "\
set remotetimeout 3600
set debuginfod enabled off
set remote hardware-watchpoint-limit 4
set remote hardware-watchpoint-length-limit 32
set may-write-registers off
set may-write-memory off
set confirm off
define backstory-note-thread
  if $fs_base == $backstory_pointer
    set $backstory_thread = $_thread
  end
end
define hookpost-monitor
  maintenance flush register-cache
  maintenance flush dcache
  source AFTER
  sharedlibrary
end
define when
  monitor when
end
document when
Say at which moment of the recording we are.
end
define goto
  set $backstory_switched = 0
  monitor goto $arg0
  if $backstory_switched == 0
    frame
  end
end
document goto
Go to a moment of the recording: @123456789, @50%, @start, @end, @exit or @signal.
end
";

/// The arguments for gdb: ours, then the user's.
fn gdb_arguments(script: &Path, socket: &Path, trace: &Trace, user: &[OsString]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["-q".into(), "-ix".into(), script.into()];
    arguments.extend(["-ex".into(), format!("target remote {}", socket.display()).into()]);
    for script in pretty_printers(trace) {
        if let Some(modules) = module_folder(&script) {
            let path = format!("python import sys; sys.path.insert(0, '{modules}')");
            arguments.extend(["-ex".into(), path.into()]);
        }
        arguments.extend(["-ex".into(), format!("source {}", script.display()).into()]);
    }
    arguments.extend(user.iter().cloned());
    arguments
}

/// The scripts that this machine's gdb would load with the recorded libraries, were they where they were.
fn pretty_printers(trace: &Trace) -> Vec<PathBuf> {
    let script = |path: &str| PathBuf::from(format!("/usr/share/gdb/auto-load{path}-gdb.py"));
    let mut all: Vec<PathBuf> = trace.files().iter().map(|file| script(&file.path)).collect();
    all.retain(|path| path.is_file());
    all.dedup();
    all
}

/// Where such a script finds its modules. Loaded by gdb itself, it would look beside its library, which is elsewhere here.
fn module_folder(script: &Path) -> Option<String> {
    let text = std::fs::read_to_string(script).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("pythondir = '"))?;
    line.split_once('\'').map(|(folder, _)| folder.to_owned())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

fn class_of(error: &anyhow::Error) -> Class {
    match error.downcast_ref::<SessionError>() {
        Some(SessionError::Timeline(TimelineError::When(_) | TimelineError::OutOfRange { .. })) => {
            Class::Input
        }
        Some(SessionError::Read(_)) => Class::Trace,
        _ => replay::class_of(error),
    }
}

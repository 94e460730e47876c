//! The gdbstub target: registers, memory and threads of a session. Nothing can be written: a recording does not change.

use gdbstub::arch::Arch;
use gdbstub::common::Tid;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{MultiThreadBase, MultiThreadResumeOps};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult, ext};
use guest::GuestAddr;

use crate::arch::{Amd64, Register, RegisterFile};
use crate::session::{Session, SessionError};

const ESRCH: u8 = 3;
const EFAULT: u8 = 14;
/// "Read-only file system": what gdb is told when it wants to change something.
pub(crate) const EROFS: u8 = 30;

impl Target for Session {
    type Arch = Amd64;
    type Error = SessionError;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    fn use_fork_stop_reason(&self) -> bool {
        false
    }

    fn use_vfork_stop_reason(&self) -> bool {
        false
    }

    fn use_vforkdone_stop_reason(&self) -> bool {
        false
    }

    fn support_breakpoints(&mut self) -> Option<ext::breakpoints::BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_catch_syscalls(&mut self) -> Option<ext::catch_syscalls::CatchSyscallsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<ext::monitor_cmd::MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_extended_mode(&mut self) -> Option<ext::extended_mode::ExtendedModeOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<ext::target_description_xml_override::TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_host_io(&mut self) -> Option<ext::host_io::HostIoOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<ext::exec_file::ExecFileOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<ext::auxv::AuxvOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Session {
    fn read_registers(&mut self, regs: &mut RegisterFile, tid: Tid) -> TargetResult<(), Self> {
        let task = self.task(tid.get()).ok_or(TargetError::Errno(ESRCH))?;
        *regs = self.registers(task).map_err(fatal)?;
        Ok(())
    }

    fn write_registers(&mut self, _regs: &RegisterFile, _tid: Tid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EROFS))
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _tid: Tid) -> TargetResult<usize, Self> {
        match self.read(GuestAddr(start), data) {
            0 if !data.is_empty() => Err(TargetError::Errno(EFAULT)),
            n => Ok(n),
        }
    }

    fn write_addrs(&mut self, _start: u64, _data: &[u8], _tid: Tid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EROFS))
    }

    fn list_active_threads(&mut self, found: &mut dyn FnMut(Tid)) -> Result<(), Self::Error> {
        // In the order in which they began: gdb numbers new ones as they come.
        let mut tasks = self.tasks();
        tasks.sort_by_key(|task| task.task);
        tasks.into_iter().filter_map(|task| thread(task.tid)).for_each(found);
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<Tid> for Session {
    fn read_register(
        &mut self,
        tid: Tid,
        register: <Self::Arch as Arch>::RegId,
        into: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let task = self.task(tid.get()).ok_or(TargetError::Errno(ESRCH))?;
        let file = self.registers(task).map_err(fatal)?;
        let bytes = file.register(register).ok_or(TargetError::NonFatal)?;
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_register(&mut self, _tid: Tid, _register: Register, _value: &[u8]) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EROFS))
    }
}

impl ThreadExtraInfo for Session {
    fn thread_extra_info(&self, tid: Tid, into: &mut [u8]) -> Result<usize, Self::Error> {
        let program = self.program().map_or("", |program| program.exe.rsplit('/').next().unwrap_or(""));
        let text =
            if self.runs_next(tid.get()) { format!("{program}, runs next") } else { program.to_owned() };
        let n = text.len().min(into.len());
        into[..n].copy_from_slice(&text.as_bytes()[..n]);
        Ok(n)
    }
}

/// A recorded thread id as gdb has it.
pub(crate) fn thread(tid: guest::Tid) -> Option<Tid> {
    usize::try_from(tid.0).ok().and_then(Tid::new)
}

fn fatal(error: timeline::TimelineError) -> TargetError<SessionError> {
    TargetError::Fatal(error.into())
}

//! `qXfer` objects: the target description, the executable's path, the auxiliary vector; and which process this is.

use gdbstub::common::Pid;
use gdbstub::target::ext::auxv::Auxv;
use gdbstub::target::ext::exec_file::ExecFile;
use gdbstub::target::ext::extended_mode::{
    Args, AttachKind, CurrentActivePid, CurrentActivePidOps, ExtendedMode, ShouldTerminate,
};
use gdbstub::target::ext::target_description_xml_override::TargetDescriptionXmlOverride;
use gdbstub::target::{TargetError, TargetResult};

use crate::arch;
use crate::files::part;
use crate::session::{Session, SessionError};
use crate::target::EROFS;

impl TargetDescriptionXmlOverride for Session {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        into: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::NonFatal);
        }
        Ok(part(arch::target_xml().as_bytes(), offset, length, into))
    }
}

impl ExecFile for Session {
    fn get_exec_file(
        &self,
        _pid: Option<Pid>,
        offset: u64,
        length: usize,
        into: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let exe = self.program().map_or("", |program| &program.exe);
        Ok(part(exe.as_bytes(), offset, length, into))
    }
}

impl Auxv for Session {
    fn get_auxv(&self, offset: u64, length: usize, into: &mut [u8]) -> TargetResult<usize, Self> {
        let auxv = self.program().map_or(&[][..], |program| &program.auxv);
        let mut bytes = Vec::with_capacity(16 * (auxv.len() + 1));
        let ended = auxv.last().is_some_and(|(kind, _)| *kind == 0);
        for (kind, value) in auxv.iter().copied().chain((!ended).then_some((0, 0))) {
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        Ok(part(&bytes, offset, length, into))
    }
}

/// Only so that gdb is told the recorded process id: nothing can be run, attached to or killed.
impl ExtendedMode for Session {
    fn run(&mut self, _name: Option<&[u8]>, _args: Args<'_, '_>) -> TargetResult<Pid, Self> {
        Err(TargetError::Errno(EROFS))
    }

    fn attach(&mut self, _pid: Pid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EROFS))
    }

    fn query_if_attached(&mut self, _pid: Pid) -> TargetResult<AttachKind, Self> {
        Ok(AttachKind::Attach)
    }

    /// Ends the session; the recording stays.
    fn kill(&mut self, _pid: Option<Pid>) -> TargetResult<ShouldTerminate, Self> {
        Ok(ShouldTerminate::Yes)
    }

    fn restart(&mut self) -> Result<(), SessionError> {
        self.goto(guest::When::Start).map(drop)
    }

    fn support_current_active_pid(&mut self) -> Option<CurrentActivePidOps<'_, Self>> {
        Some(self)
    }
}

impl CurrentActivePid for Session {
    fn current_active_pid(&mut self) -> Result<Pid, SessionError> {
        Ok(self.pid)
    }
}

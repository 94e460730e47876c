//! Continuing and stepping both ways: what gdb asks for is noted here and done by the server's loop.

use gdbstub::common::{Signal, Tid};
use gdbstub::target::ext::base::multithread::{
    MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::reverse_exec::{ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps};

use crate::session::{Motion, Session, SessionError};

impl MultiThreadResume for Session {
    fn resume(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), SessionError> {
        (self.motion, self.alone) = (Motion::Continue, false);
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _tid: Tid, _signal: Option<Signal>) -> Result<(), SessionError> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for Session {
    fn set_resume_action_step(&mut self, tid: Tid, _signal: Option<Signal>) -> Result<(), SessionError> {
        self.motion = Motion::Step(tid.get());
        Ok(())
    }
}

impl MultiThreadRangeStepping for Session {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), SessionError> {
        self.motion = Motion::StepRange(tid.get(), start, end);
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for Session {
    /// Who runs when was recorded and cannot be changed: a thread that is not next stays where it is.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), SessionError> {
        self.alone = true;
        Ok(())
    }
}

impl ReverseCont<Tid> for Session {
    fn reverse_cont(&mut self) -> Result<(), SessionError> {
        self.motion = Motion::ReverseContinue;
        Ok(())
    }
}

impl ReverseStep<Tid> for Session {
    fn reverse_step(&mut self, tid: Tid) -> Result<(), SessionError> {
        self.motion = Motion::ReverseStep(tid.get());
        Ok(())
    }
}

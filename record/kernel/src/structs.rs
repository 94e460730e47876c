//! Structures of the kernel's interface and their sizes on x86-64, in bytes (include/uapi). Knows no fields but those that
//! effects must read.

use crate::row::Struct;

macro_rules! structs {
    ($($constant:ident $name:literal $size:literal),* $(,)?) => {
        $(pub(crate) const $constant: Struct = Struct { name: $name, size: $size };)*
    };
}

structs! {
    // Scalars.
    BYTE "char" 1, SHORT "short" 2, INT "int" 4, UINT "unsigned int" 4, LONG "long" 8, ULONG "unsigned long" 8,
    LOFF "loff_t" 8, TIME "time_t" 8, SIGSET "sigset_t" 8, POINTER "void *" 8, INT_PAIR "int[2]" 8, ID "id_t" 4,
    TIMER_ID "timer_t" 4,
    // Files.
    STAT "stat" 144, STATX "statx" 256, STATFS "statfs" 120, USTAT "ustat" 32, FLOCK "flock" 32, F_OWNER_EX "f_owner_ex" 8,
    UTIMBUF "utimbuf" 16, CACHESTAT "cachestat" 40, CACHESTAT_RANGE "cachestat_range" 16,
    FSXATTR "fsxattr" 28, FIEMAP "fiemap" 32,
    FIEMAP_EXTENT "fiemap_extent" 56, FICLONE_RANGE "file_clone_range" 32, FSTRIM_RANGE "fstrim_range" 24,
    DQBLK "if_dqblk" 72, DQINFO "if_dqinfo" 24,
    NEXTDQBLK "if_nextdqblk" 72,
    // Time.
    TIMESPEC "timespec" 16, TIMEVAL "timeval" 16, TIMEZONE "timezone" 8, ITIMERVAL "itimerval" 32, ITIMERSPEC "itimerspec" 32,
    TIMEX "timex" 208, TMS "tms" 32, TWO_TIMESPECS "timespec[2]" 32, TWO_TIMEVALS "timeval[2]" 32,
    // Signals.
    SIGACTION "sigaction" 32, SIGINFO "siginfo_t" 128, STACK "stack_t" 24, SIGEVENT "sigevent" 64,
    SIGMASK_ARG "sigset_argpack" 16,
    // Processes.
    RUSAGE "rusage" 144, USER_REGS "user_regs_struct" 216, USER_FPREGS "user_fpregs_struct" 512, RLIMIT "rlimit" 16, SCHED_PARAM "sched_param" 4,
    UTSNAME "utsname" 390, SYSINFO "sysinfo" 112, TASK_NAME "char[16]" 16,
    FUTEX_WAITV "futex_waitv" 24, SOCK_FPROG "sock_fprog" 16, SECCOMP_SIZES "seccomp_notif_sizes" 6,
    // Waiting.
    POLLFD "pollfd" 8, EPOLL_EVENT "epoll_event" 12, EPOLL_PARAMS "epoll_params" 8,
    // System V and POSIX IPC.
    IPC_SHM "shmid_ds" 112, SHMINFO "shminfo" 72, SHM_INFO "shm_info" 48, IPC_SEM "semid_ds" 104, SEMINFO "seminfo" 40,
    IPC_MSG "msqid_ds" 120, MSGINFO "msginfo" 32, SEMBUF "sembuf" 6, MQ_ATTR "mq_attr" 64,
    // Network.
    IFREQ "ifreq" 40, ARPREQ "arpreq" 68, RTENTRY "rtentry" 120,
    // Terminals and devices.
    TERMIOS "termios" 36, TERMIOS2 "termios2" 44, TERMIO "termio" 18, WINSIZE "winsize" 8, SERIAL "serial_struct" 72,
    SERIAL_ICOUNTER "serial_icounter_struct" 80, RS485 "serial_rs485" 32, VT_STAT "vt_stat" 6, VT_MODE "vt_mode" 8,
    GEOMETRY "hd_geometry" 16, LOOP_INFO "loop_info64" 232, KBENTRY "kbentry" 4, LABEL "char[256]" 256,
    FSUUID "fsuuid2" 17, FS_SYSFS_PATH "fs_sysfs_path" 129, TWO_LONGS "long[2]" 16, RTC_TIME "rtc_time" 36, MTGET "mtget" 48,
}

//! The code that makes a recorded program's system calls without a stop, and notes what they did. It is copied into the program.
//!
//! Assembly throughout: it may use no stack of the program's, no register beyond what a `syscall` instruction changes, and nothing
//! but the memory that [`abi::buffer`] lays out. Every register and flag is in the end what the plain instruction leaves. Calls that
//! it may not make, or has no room for, are made by an instruction that the recorder's filter stops.
//!
//! Knows neither the recorder nor which calls may be made: the rows in memory say that.
//!
//! - `undone`: what a task was about to do that stands in the code for good
#![no_std]
#![expect(unsafe_code, reason = "assembly; the bytes between its labels")]

mod undone;

use core::arch::global_asm;

use abi::buffer::{
    ASKS, CLOSES, CODE, FD_COUNT, FDS, FILE, GO, HEAD, LONG, MOST, ORDINARY, READS, RESUME, RING, RING_LEN,
    ROW_COUNT, ROWS, SITE, STACK_POINTER, STACK_TOP, TRIED, VECTOR, WHILE_EMPTY, WHOLE,
};

pub use undone::{Standing, Used, standing};

/// What a call takes in the ring besides what it writes, and the most that a row of fixed size writes.
const LEAST: u64 = 24 + 48 + 16 + 512;

/// Less `read`, which is 0, or `write`, which is 1: what reads or writes a vector, with flags.
const PREADV2: u32 = 327;
const RWF_NOWAIT: u32 = 8;
const MSG_DONTWAIT: u32 = 0x40;
const EAGAIN: u32 = 11;
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const NEWFSTATAT: u32 = 262;
const FSTATFS: u32 = 138;
const IOCTL: u32 = 16;
/// Tells how much is on its way.
const SIOCOUTQ: u32 = 0x5411;
const O_NOFOLLOW: u32 = 0x2_0000;
/// `O_NONBLOCK`, `O_LARGEFILE`, `O_DIRECTORY`, `O_NOATIME`, `O_CLOEXEC`: what may be asked for besides reading.
const READING: u32 = O_NOFOLLOW | 0x800 | 0x8000 | 0x1_0000 | 0x4_0000 | 0x8_0000;
const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
/// Where `struct stat` has the kind of file.
const MODE: u32 = 24;
const S_IFMT: u32 = 0xf000;
const S_IFREG: u32 = 0x8000;
const S_IFDIR: u32 = 0x4000;

global_asm!(
    ".pushsection .text.backstory_buffer, \"ax\", @progbits",
    ".globl backstory_buffer_start",
    ".globl backstory_buffer_call",
    ".globl backstory_buffer_traced",
    ".globl backstory_buffer_stored",
    ".globl backstory_buffer_headed",
    ".globl backstory_buffer_made",
    ".globl backstory_buffer_noted",
    ".globl backstory_buffer_forms",
    ".globl backstory_buffer_left",
    ".globl backstory_buffer_end",
    "backstory_buffer_start:",
    // r11 holds the site's descriptor. Neither it nor rcx survives a call, so both are free.
    "mov [{SITE}], r11",
    "mov [{STACK_POINTER}], rsp",
    "mov esp, {STACK_TOP}",
    "pushfq",
    "push rbx",
    "push rbp",
    "push r12",
    "cmp dword ptr [{GO}], 0",
    "je 9f",
    "cmp rax, {ROW_COUNT}",
    "jae 9f",
    "mov rbp, [rax * 8 + {ROWS}]",
    "test bpl, 1",
    "jz 9f",
    // What the descriptor must be good for.
    "test bpl, 14",
    "jz 1f",
    "cmp edi, {FD_COUNT}",
    "jae 9f",
    "mov ecx, edi",
    "movzx r12d, byte ptr [rcx + {FDS}]",
    "not r12d",
    "mov ecx, ebp",
    "and ecx, 14",
    "test r12d, ecx",
    "jz 1f",
    // It may be good for a try: from here on that is bit 26.
    "shl ecx, {TRIED}",
    "test bpl, 0x10",
    "jz 9f",
    "test r12d, ecx",
    "jnz 9f",
    "or rbp, 0x4000000",
    // The arguments, where they are noted.
    "1:",
    "mov ebx, [{HEAD}]",
    "cmp ebx, {RING_LEN} - {LEAST}",
    "ja 9f",
    "add rbx, {RING}",
    "mov [rbx + 24], rdi",
    "mov [rbx + 32], rsi",
    "mov [rbx + 40], rdx",
    "mov [rbx + 48], r10",
    "mov [rbx + 56], r8",
    "mov [rbx + 64], r9",
    "backstory_buffer_stored:",
    // An argument that must be 0.
    "mov ecx, ebp",
    "shr ecx, 28",
    "jz 2f",
    "cmp qword ptr [rbx + rcx * 8 + 16], 0",
    "jne 9f",
    "2:",
    "test ebp, 0x2000000",
    "jz 3f",
    // Another one; then in r12 how much it may write, for which there must be room.
    "mov rcx, rbp",
    "shr rcx, 56",
    "jz 2f",
    "cmp qword ptr [rbx + rcx * 8 + 16], 0",
    "jne 9f",
    "2:",
    "mov r12, rbp",
    "shr r12, 32",
    "movzx ecx, r12b",
    "shr r12d, 8",
    "movzx r12d, r12w",
    "mov rcx, [rbx + rcx * 8 + 24]",
    "cmp rcx, {MOST}",
    "ja 9f",
    // Much of what is read of files is best kept as theirs, which the recorder does.
    "cmp r12d, 1",
    "jne 2f",
    "test ebp, 0x4000000",
    "jnz 2f",
    "cmp rcx, {LONG}",
    "ja 9f",
    "2:",
    "imul r12d, ecx",
    "cmp r12d, {MOST}",
    "ja 9f",
    "lea rcx, [rbx + r12]",
    "cmp rcx, {RING} + {RING_LEN} - {LEAST}",
    "ja 9f",
    // The head, but for what only the call tells.
    "3:",
    "mov ecx, ebp",
    "shl ecx, 8",
    "and ecx, 0xffff0000",
    "or ecx, eax",
    "mov [rbx], rcx",
    "backstory_buffer_headed:",
    "test ebp, 0x40000e0",
    "jnz 6f",
    "4:",
    "syscall",
    "backstory_buffer_call:",
    "test ebp, 0x40000e0",
    "jnz 8f",
    "5:",
    "backstory_buffer_made:",
    "mov [rbx + 16], rax",
    "mov ecx, [{SITE}]",
    "mov r11, [rcx + 8]",
    "mov [{RESUME}], r11",
    "mov r11, [rcx]",
    "mov [rbx + 8], r11",
    // What it wrote goes behind the arguments.
    "push rdi",
    "push rsi",
    "movzx edi, byte ptr [rbx + 2]",
    "movzx r11d, byte ptr [rbx + 3]",
    "lea rdi, [rbx + rdi * 8 + 24]",
    "test ebp, 0x3000000",
    "jz 3f",
    "cmp rax, -4095",
    "jae 3f",
    "mov rsi, [rbx + r11 * 8 + 24]",
    "test rsi, rsi",
    "jz 3f",
    "mov rcx, rbp",
    "shr rcx, 32",
    "test ebp, 0x2000000",
    "jz 2f",
    "shr ecx, 8",
    "movzx ecx, cx",
    "imul ecx, eax",
    "cmp ecx, r12d",
    "cmova ecx, r12d",
    "2:",
    "mov [rbx + 4], ecx",
    "cld",
    "rep movsb",
    "mov qword ptr [rdi], 0",
    "3:",
    "add edi, 7 - {RING}",
    "and edi, -8",
    "mov ecx, edi",
    "pop rsi",
    "pop rdi",
    // From here on the call is noted.
    "mov [{HEAD}], ecx",
    "backstory_buffer_noted:",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "mov ecx, [{SITE}]",
    "mov rcx, [rcx]",
    "mov r11, [rsp]",
    "popfq",
    "mov rsp, [{STACK_POINTER}]",
    "jmp qword ptr [{RESUME}]",
    // Another form, in which it does not wait. What is written must go there whole or not at all.
    "6:",
    "backstory_buffer_forms:",
    "mov ecx, ebp",
    "and ecx, 0xf0",
    "cmp ecx, 0x20",
    "je 7f",
    "cmp ecx, 0x40",
    "je 11f",
    "cmp ecx, 0x80",
    "je 12f",
    "cmp ecx, 0xc0",
    "je 13f",
    "test bpl, 4",
    "jz 2f",
    "cmp rdx, {WHOLE}",
    "ja 9f",
    // Where it may wait for what was sent before, that is asked for first; then r12 is 1.
    "xor r12d, r12d",
    "mov ecx, edi",
    "test byte ptr [rcx + {FDS}], {WHILE_EMPTY}",
    "jz 2f",
    "inc r12d",
    "mov esi, {SIOCOUTQ}",
    "mov edx, {FILE}",
    "mov eax, {IOCTL}",
    "jmp 4b",
    "2:",
    "18:",
    "mov ecx, ebp",
    "and ecx, 0xf0",
    "cmp ecx, 0x30",
    "je 2f",
    "mov [{VECTOR}], rsi",
    "mov [{VECTOR} + 8], rdx",
    "mov esi, {VECTOR}",
    "mov edx, 1",
    "mov r10, -1",
    "xor r8d, r8d",
    "mov r9d, {RWF_NOWAIT}",
    "add eax, {PREADV2}",
    "jmp 4b",
    "2:",
    "or r10d, {MSG_DONTWAIT}",
    "jmp 4b",
    "7:",
    "xor r10d, r10d",
    "jmp 4b",
    // Opening something else than a regular file or a folder may wait, and so on: what there is is asked first.
    "11:",
    "test edx, {NOT_READING}",
    "jnz 9f",
    "xor r12d, r12d",
    "mov r10d, edx",
    "shr r10d, {TO_NOFOLLOW}",
    "and r10d, {AT_SYMLINK_NOFOLLOW}",
    "mov edx, {FILE}",
    "mov eax, {NEWFSTATAT}",
    "jmp 4b",
    // A number may be another file's at once.
    "12:",
    "cmp edi, {FD_COUNT}",
    "jae 9f",
    "mov ecx, edi",
    "test byte ptr [rcx + {FDS}], {CLOSES}",
    "jz 9f",
    "mov byte ptr [rcx + {FDS}], 0",
    "jmp 4b",
    // The other descriptor, and not for long.
    "13:",
    "cmp esi, {FD_COUNT}",
    "jae 9f",
    "mov ecx, esi",
    "test byte ptr [rcx + {FDS}], {READS}",
    "jz 9f",
    "cmp r10, {MOST}",
    "ja 9f",
    "jmp 4b",
    // The arguments as the program has them; where it would have waited, or that form is not known, the call is made as it is.
    "8:",
    "mov rdi, [rbx + 24]",
    "mov rsi, [rbx + 32]",
    "mov rdx, [rbx + 40]",
    "mov r10, [rbx + 48]",
    "mov r8, [rbx + 56]",
    "mov r9, [rbx + 64]",
    "mov ecx, ebp",
    "and ecx, 0xf0",
    "cmp ecx, 0x20",
    "je 7f",
    "cmp ecx, 0x40",
    "je 14f",
    "cmp ecx, 0x80",
    "je 5b",
    "ja 17f",
    "test bpl, 4",
    "jz 2f",
    "dec r12d",
    "jnz 2f",
    "test rax, rax",
    "jnz 8f",
    "cmp dword ptr [{FILE}], 0",
    "jne 8f",
    "movzx eax, word ptr [rbx]",
    "jmp 18b",
    "2:",
    "cmp rax, -{EAGAIN}",
    "je 8f",
    "cmp rax, -{EINVAL}",
    "je 8f",
    "cmp rax, -{EOPNOTSUPP}",
    "je 8f",
    "jmp 5b",
    "7:",
    "test rax, rax",
    "jnz 5b",
    "test r10d, r10d",
    "jz 5b",
    "8:",
    "movzx eax, word ptr [rbx]",
    "jmp 9f",
    // Where it fails it writes all the same.
    "17:",
    "test rax, rax",
    "jns 5b",
    "jmp 8b",
    // In r12: 0, what there is was asked; 1, it was opened; else the descriptor, plus 2, and its file system was asked.
    "14:",
    "cmp r12d, 1",
    "ja 15f",
    "je 16f",
    "mov r12d, 1",
    "test rax, rax",
    "movzx eax, word ptr [rbx]",
    // What is not there is not waited for.
    "js 4b",
    "mov ecx, [{FILE} + {MODE}]",
    "and ecx, {S_IFMT}",
    "cmp ecx, {S_IFREG}",
    "je 4b",
    "cmp ecx, {S_IFDIR}",
    "je 4b",
    "jmp 9f",
    "16:",
    "cmp rax, {FD_COUNT}",
    "jae 5b",
    "lea r12d, [rax + 2]",
    "mov edi, eax",
    "mov esi, {FILE}",
    "mov eax, {FSTATFS}",
    "jmp 4b",
    "15:",
    "test rax, rax",
    "lea eax, [r12 - 2]",
    "jnz 5b",
    "mov ecx, [{FILE}]",
    "cmp ecx, {ORDINARY_0}",
    "je 16f",
    "cmp ecx, {ORDINARY_1}",
    "je 16f",
    "cmp ecx, {ORDINARY_2}",
    "je 16f",
    "cmp ecx, {ORDINARY_3}",
    "je 16f",
    "cmp ecx, {ORDINARY_4}",
    "je 16f",
    "cmp ecx, {ORDINARY_5}",
    "je 16f",
    "cmp ecx, {ORDINARY_6}",
    "je 16f",
    "cmp ecx, {ORDINARY_7}",
    "je 16f",
    "cmp ecx, {ORDINARY_8}",
    "jne 5b",
    "16:",
    "mov byte ptr [r12 + {FDS} - 2], {OPENED}",
    "jmp 5b",
    // Not here.
    "9:",
    "backstory_buffer_left:",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "popfq",
    "mov rsp, [{STACK_POINTER}]",
    "syscall",
    "backstory_buffer_traced:",
    "ud2",
    "backstory_buffer_end:",
    ".popsection",
    SITE = const SITE,
    STACK_POINTER = const STACK_POINTER,
    STACK_TOP = const STACK_TOP,
    GO = const GO,
    ROW_COUNT = const ROW_COUNT,
    ROWS = const ROWS,
    FD_COUNT = const FD_COUNT,
    FDS = const FDS,
    HEAD = const HEAD,
    RING = const RING,
    RING_LEN = const RING_LEN,
    LEAST = const LEAST,
    MOST = const MOST,
    RESUME = const RESUME,
    TRIED = const TRIED,
    VECTOR = const VECTOR,
    WHOLE = const WHOLE,
    LONG = const LONG,
    PREADV2 = const PREADV2,
    RWF_NOWAIT = const RWF_NOWAIT,
    MSG_DONTWAIT = const MSG_DONTWAIT,
    EAGAIN = const EAGAIN,
    EINVAL = const EINVAL,
    EOPNOTSUPP = const EOPNOTSUPP,
    NOT_READING = const !READING as i32,
    TO_NOFOLLOW = const (O_NOFOLLOW / AT_SYMLINK_NOFOLLOW).ilog2(),
    AT_SYMLINK_NOFOLLOW = const AT_SYMLINK_NOFOLLOW,
    FILE = const FILE,
    NEWFSTATAT = const NEWFSTATAT,
    FSTATFS = const FSTATFS,
    MODE = const MODE,
    WHILE_EMPTY = const WHILE_EMPTY,
    SIOCOUTQ = const SIOCOUTQ,
    IOCTL = const IOCTL,
    S_IFMT = const S_IFMT,
    S_IFREG = const S_IFREG,
    S_IFDIR = const S_IFDIR,
    CLOSES = const CLOSES,
    READS = const READS,
    OPENED = const CLOSES | READS | ASKS,
    ORDINARY_0 = const ORDINARY[0] as i32,
    ORDINARY_1 = const ORDINARY[1] as i32,
    ORDINARY_2 = const ORDINARY[2] as i32,
    ORDINARY_3 = const ORDINARY[3] as i32,
    ORDINARY_4 = const ORDINARY[4] as i32,
    ORDINARY_5 = const ORDINARY[5] as i32,
    ORDINARY_6 = const ORDINARY[6] as i32,
    ORDINARY_7 = const ORDINARY[7] as i32,
    ORDINARY_8 = const ORDINARY[8] as i32,
);

unsafe extern "C" {
    static backstory_buffer_start: u8;
    static backstory_buffer_call: u8;
    static backstory_buffer_traced: u8;
    static backstory_buffer_stored: u8;
    static backstory_buffer_headed: u8;
    static backstory_buffer_made: u8;
    static backstory_buffer_noted: u8;
    static backstory_buffer_forms: u8;
    static backstory_buffer_left: u8;
    static backstory_buffer_end: u8;
}

/// The code, to lie at [`abi::buffer::CODE`].
pub fn code() -> &'static [u8] {
    // SAFETY: the labels delimit bytes of this program's text, which is readable and never changes.
    unsafe {
        core::slice::from_raw_parts(
            &raw const backstory_buffer_start,
            offset(&raw const backstory_buffer_end),
        )
    }
}

fn offset(label: *const u8) -> usize {
    label.addr() - (&raw const backstory_buffer_start).addr()
}

/// The instruction pointer that a call has in the kernel which the code makes itself.
pub fn call_return() -> u64 {
    CODE + offset(&raw const backstory_buffer_call) as u64
}

/// The same of a call that the recorder is to make.
pub fn traced_return() -> u64 {
    CODE + offset(&raw const backstory_buffer_traced) as u64
}

/// Offsets in the code from which on something holds.
struct Steps {
    /// The arguments are where calls are noted.
    stored: u64,
    /// So is the number.
    headed: u64,
    /// The arguments are in their registers again, where they are not on the stack.
    made: u64,
    /// The call is noted.
    noted: u64,
    /// It is not, here.
    forms: u64,
    /// The registers are as at first, but for those that are on the stack.
    left: u64,
    /// No code any more.
    end: u64,
}

fn steps() -> Steps {
    let at = |label: *const u8| offset(label) as u64;
    Steps {
        stored: at(&raw const backstory_buffer_stored),
        headed: at(&raw const backstory_buffer_headed),
        made: at(&raw const backstory_buffer_made),
        noted: at(&raw const backstory_buffer_noted),
        forms: at(&raw const backstory_buffer_forms),
        left: at(&raw const backstory_buffer_left),
        end: at(&raw const backstory_buffer_end),
    }
}

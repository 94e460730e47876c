//! The code that makes a recorded program's system calls without a stop, and notes what they did. It is copied into the program.
//!
//! Assembly throughout: it may use no stack of the program's, no register beyond what a `syscall` instruction changes, and nothing
//! but the memory that [`abi::buffer`] lays out. Every register and flag is in the end what the plain instruction leaves. Calls that
//! it may not make, or has no room for, are made by an instruction that the recorder's filter stops.
//!
//! Knows neither the recorder nor which calls may be made: the rows in memory say that.
#![no_std]
#![expect(unsafe_code, reason = "assembly; the bytes between its labels")]

use core::arch::global_asm;

use abi::buffer::{
    CODE, FD_COUNT, FDS, GO, HEAD, MOST, RESUME, RING, RING_LEN, ROW_COUNT, ROWS, SITE, STACK_POINTER,
    STACK_TOP,
};

/// What a call takes in the ring besides what it writes, and the most that a row of fixed size writes.
const LEAST: u64 = 24 + 48 + 16 + 512;

global_asm!(
    ".pushsection .text.backstory_buffer, \"ax\", @progbits",
    ".globl backstory_buffer_start",
    ".globl backstory_buffer_call",
    ".globl backstory_buffer_traced",
    ".globl backstory_buffer_end",
    "backstory_buffer_start:",
    // r11 holds the site's descriptor. Neither it nor rcx survives a call, so both are free.
    "mov [{SITE}], r11",
    "mov [{STACK_POINTER}], rsp",
    "mov esp, {STACK_TOP}",
    "pushfq",
    "push rbx",
    "push rbp",
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
    "movzx ecx, byte ptr [rcx + {FDS}]",
    "not ecx",
    "and ecx, ebp",
    "test cl, 14",
    "jnz 9f",
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
    // An argument that must be 0.
    "mov ecx, ebp",
    "shr ecx, 28",
    "jz 2f",
    "cmp qword ptr [rbx + rcx * 8 + 16], 0",
    "jne 9f",
    // Room for what it may write, as an argument says.
    "2:",
    "test ebp, 0x2000000",
    "jz 3f",
    "mov rcx, rbp",
    "shr rcx, 32",
    "mov rcx, [rbx + rcx * 8 + 24]",
    "cmp rcx, {MOST}",
    "ja 9f",
    "add rcx, rbx",
    "cmp rcx, {RING} + {RING_LEN} - {LEAST}",
    "ja 9f",
    // The head, but for what only the call tells.
    "3:",
    "mov ecx, ebp",
    "shl ecx, 8",
    "and ecx, 0xffff0000",
    "or ecx, eax",
    "mov [rbx], rcx",
    "syscall",
    "backstory_buffer_call:",
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
    "test ebp, 0x3000000",
    "jz 6f",
    "cmp rax, -4095",
    "jae 6f",
    "mov rsi, [rbx + r11 * 8 + 24]",
    "test rsi, rsi",
    "jz 6f",
    "mov rcx, rbp",
    "shr rcx, 32",
    "test ebp, 0x2000000",
    "cmovnz ecx, eax",
    "lea rdi, [rbx + rdi * 8 + 24]",
    "mov [rbx + 4], ecx",
    "cld",
    "rep movsb",
    "mov qword ptr [rdi], 0",
    "jmp 7f",
    "6:",
    "lea rdi, [rbx + rdi * 8 + 24]",
    "7:",
    "add edi, 7 - {RING}",
    "and edi, -8",
    "pop rsi",
    "mov rcx, rdi",
    "pop rdi",
    // From here on the call is noted.
    "mov [{HEAD}], ecx",
    "pop rbp",
    "pop rbx",
    "mov ecx, [{SITE}]",
    "mov rcx, [rcx]",
    "mov r11, [rsp]",
    "popfq",
    "mov rsp, [{STACK_POINTER}]",
    "jmp qword ptr [{RESUME}]",
    // Not here.
    "9:",
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
);

unsafe extern "C" {
    static backstory_buffer_start: u8;
    static backstory_buffer_call: u8;
    static backstory_buffer_traced: u8;
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

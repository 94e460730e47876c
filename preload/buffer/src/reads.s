    // Behind `code.s`, and as there: the end of the code.
    .globl backstory_buffer_reads
    .globl backstory_buffer_reads_both
    .globl backstory_buffer_told
    .globl backstory_buffer_cannot_tell
    .globl backstory_buffer_end
    // The time stamp counter is read, alone or with the processor's number: reckoned of a clock that the kernel is asked for. The site's
    // descriptor is known already. On the stack, behind the flags, is which of both it is.
backstory_buffer_reads:
    mov [{STACK_POINTER}], rsp
    mov esp, {STACK_TOP}
    pushfq
    push 0
    jmp .Lreads
backstory_buffer_reads_both:
    mov [{STACK_POINTER}], rsp
    mov esp, {STACK_TOP}
    pushfq
    push 1
.Lreads:
    push rcx
    push rax
    push rdx
    push rsi
    push rdi
    push r11
    push rbp
    cmp dword ptr [{GO}], 0
    je .Lcannot_tell
    cmp dword ptr [{HEAD}], {RING_LEN} - {LEAST}
    ja .Lcannot_tell
    // No row of a call's has this, of which the first bit leads back here.
    mov ebp, {CLOCK_READ}
    mov edi, {CLOCK_MONOTONIC_RAW}
    mov esi, {CLOCK}
    mov eax, {CLOCK_GETTIME}
    jmp .Lcall
.Lclock_read:
    imul rax, [{CLOCK}], {SECOND}
    add rax, [{CLOCK} + 8]
    sub rax, [{TSC_FROM}]
    jb .Lcannot_tell
    cmp rax, [{TSC_FOR}]
    jae .Lcannot_tell
    imul rax, [{TSC_RATE}]
    shr rax, 32
    add rax, [{TSC_TICKS}]
    // It never stands still.
    mov rcx, [{TSC_TOLD}]
    cmp rax, rcx
    ja 2f
    lea rax, [rcx + 1]
2:
    mov [{TSC_TOLD}], rax
    mov edx, [{HEAD}]
    mov esi, {NOTED_READING}
    mov edi, [{TSC_PROCESSOR}]
    shl rdi, 32
    cmp qword ptr [rsp + 7 * 8], 0
    je 2f
    lea rsi, [rsi + rdi + 1]
2:
    mov [rdx + {RING}], rsi
    mov rcx, [{SITE}]
    mov rsi, [rcx]
    mov [rdx + {RING} + 8], rsi
    mov [rdx + {RING} + 16], rax
    mov rcx, [rcx + 8]
    mov [{RESUME}], rcx
    add rdx, 24
    mov [{HEAD}], rdx
backstory_buffer_told:
    pop rbp
    pop r11
    pop rdi
    pop rsi
    add rsp, 16
    mov rdx, rax
    shr rdx, 32
    mov eax, eax
    pop rcx
    cmp qword ptr [rsp], 0
    je 2f
    mov ecx, [{TSC_PROCESSOR}]
2:
    add rsp, 8
    popfq
    mov rsp, [{STACK_POINTER}]
    jmp qword ptr [{RESUME}]

    // By an instruction that is trapped.
.Lcannot_tell:
backstory_buffer_cannot_tell:
    pop rbp
    pop r11
    pop rdi
    pop rsi
    pop rdx
    pop rax
    pop rcx
    cmp qword ptr [rsp], 0
    lea rsp, [rsp + 8]
    jne 2f
    popfq
    mov rsp, [{STACK_POINTER}]
    rdtsc
    ud2
2:
    popfq
    mov rsp, [{STACK_POINTER}]
    rdtscp
    ud2
backstory_buffer_end:
    .popsection

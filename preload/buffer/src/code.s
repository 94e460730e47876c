    // Assembly throughout: it may use no stack of the program's, no register beyond what a `syscall` instruction changes, and nothing but the
    // memory that `abi::buffer` lays out. Every register and flag is in the end what the plain instruction leaves. Memory of the program's is
    // touched only where the kernel has just shown that it can be: nothing may fault here.
    .pushsection .text.backstory_buffer, "ax", @progbits
    .globl backstory_buffer_start
    .globl backstory_buffer_call
    .globl backstory_buffer_traced
    .globl backstory_buffer_stored
    .globl backstory_buffer_headed
    .globl backstory_buffer_made
    .globl backstory_buffer_noted
    .globl backstory_buffer_forms
    .globl backstory_buffer_left
backstory_buffer_start:
    // r11 holds the site's descriptor. Neither it nor rcx survives a call, so both are free.
    mov [{SITE}], r11
    mov [{STACK_POINTER}], rsp
    mov esp, {STACK_TOP}
    pushfq
    push rbx
    push rbp
    push r12
    mov dword ptr [{IN_VAIN}], 0
    cmp dword ptr [{GO}], 0
    je .Lleave
    cmp rax, {ROW_COUNT}
    jae .Lleave
    mov rbp, [rax * 8 + {ROWS}]
    test bpl, 1
    jz .Lleave
    // Where a request decides, its row is in a list.
    test ebp, {BY_REQUEST}
    jz .Lrow
    mov ecx, esi
    bt ebp, {THIRD}
    cmovc ecx, edx
    shr rbp, 32
    and ecx, [rbp]
    mov r12d, ebp
.Lrequest:
    add r12d, 16
    mov rbp, [r12 + 8]
    test bpl, 1
    jz .Lleave
    cmp ecx, [r12]
    jne .Lrequest
.Lrow:
    // What the descriptor must be good for.
    test bpl, 14
    jz .Lstore
    cmp edi, {FD_COUNT}
    jae .Lleave
    mov ecx, edi
    movzx r12d, byte ptr [rcx + {FDS}]
    not r12d
    mov ecx, ebp
    and ecx, 14
    test r12d, ecx
    jz .Lstore
    // It may be good for a try, in forms of odd numbers: from here on that is bit 26.
    shl ecx, {TRIED}
    test bpl, 0x10
    jz .Lleave
    test r12d, ecx
    jnz .Lleave
    or rbp, 0x4000000
    // The arguments, where they are noted.
.Lstore:
    mov ebx, [{HEAD}]
    cmp ebx, {RING_LEN} - {LEAST}
    ja .Lleave
    add rbx, {RING}
    mov [rbx + 24], rdi
    mov [rbx + 32], rsi
    mov [rbx + 40], rdx
    mov [rbx + 48], r10
    mov [rbx + 56], r8
    mov [rbx + 64], r9
backstory_buffer_stored:
    // Arguments that must be 0.
    mov ecx, ebp
    shr ecx, 28
    jz 2f
    cmp qword ptr [rbx + rcx * 8 + 16], 0
    jne .Lleave
2:
    mov rcx, rbp
    shr rcx, 56
    jz 2f
    cmp qword ptr [rbx + rcx * 8 + 16], 0
    jne .Lleave
2:
    test ebp, 0x2000000
    jz .Lhead
    // In r12 how much it may write, for which there must be room.
    mov r12, rbp
    shr r12, 32
    movzx ecx, r12b
    shr r12d, 8
    movzx r12d, r12w
    mov rcx, [rbx + rcx * 8 + 24]
    cmp rcx, {MOST}
    ja .Lleave
    // Much of what is read of files is best kept as theirs, which the recorder does.
    cmp r12d, 1
    jne 2f
    test ebp, 0x4000000
    jnz 2f
    cmp rcx, {LONG}
    ja .Lleave
2:
    imul r12d, ecx
    cmp r12d, {MOST}
    ja .Lleave
    lea rcx, [rbx + r12]
    cmp rcx, {RING} + {RING_LEN} - {LEAST}
    ja .Lleave
    // The head, but for what only the call tells.
.Lhead:
    mov ecx, ebp
    shl ecx, 8
    and ecx, 0xffff0000
    or ecx, eax
    mov [rbx], rcx
    mov dword ptr [{CALLING}], 1
backstory_buffer_headed:
    test ebp, 0x40000e0
    jnz .Lform
.Lcall:
    syscall
backstory_buffer_call:
    test ebp, 0x40000e0
    jnz .Lcalled
.Lmade:
backstory_buffer_made:
    cmp rax, -{EFAULT}
    je .Lfaulted
.Lnote:
    mov [rbx + 16], rax
    mov ecx, [{SITE}]
    mov r11, [rcx + 8]
    mov [{RESUME}], r11
    mov r11, [rcx]
    mov [rbx + 8], r11
    // What it wrote goes behind the arguments.
    push rdi
    push rsi
    movzx edi, byte ptr [rbx + 2]
    movzx r11d, byte ptr [rbx + 3]
    lea rdi, [rbx + rdi * 8 + 24]
    cmp rax, -4095
    jae .Lend
    cmp r11d, {SEVERAL}
    je .Lpieces
    test ebp, 0x3000000
    jz .Lend
    mov rsi, [rbx + r11 * 8 + 24]
    test rsi, rsi
    jz .Lend
    mov rcx, rbp
    shr rcx, 32
    test ebp, 0x2000000
    jz 2f
    shr ecx, 8
    movzx ecx, cx
    imul ecx, eax
    cmp ecx, r12d
    cmova ecx, r12d
    jmp 3f
2:
    movzx ecx, cx
3:
    mov [rbx + 4], ecx
    cld
    rep movsb
    mov qword ptr [rdi], 0
    jmp .Lend
    // Several places were written. For each the address, the length, and the bytes, filled up to whole words.
.Lpieces:
    cld
    mov ecx, ebp
    and ecx, 0xf0
    cmp ecx, 0x50
    je .Lpolled
    // r12: bytes left.
    mov r12, rax
    mov r11d, {VECTORS}
2:
    cmp r11d, [{VECTORS_END}]
    je 3f
    mov rsi, [r11]
    mov rcx, [r11 + 8]
    add r11d, 16
    cmp rcx, r12
    cmova rcx, r12
    sub r12, rcx
    jrcxz 2b
    mov [rdi], rsi
    mov [rdi + 8], rcx
    add edi, 16
    rep movsb
    mov qword ptr [rdi], 0
    add edi, 7
    and edi, -8
    jmp 2b
3:
    test bpl, 0x80
    jz .Lpieces_end
    // Also in the head of a message: the length of control data, and flags.
    mov rsi, [rbx + 32]
    add rsi, {MESSAGE_CONTROL} + 8
    mov [rdi], rsi
    mov qword ptr [rdi + 8], {MESSAGE_LEN} - 4 - {MESSAGE_CONTROL} - 8
    mov rcx, [rsi]
    mov [rdi + 16], rcx
    mov ecx, [rsi + 8]
    mov [rdi + 24], rcx
    add edi, 32
    jmp .Lpieces_end
    // What was found of each descriptor is in the last two bytes of its entry.
.Lpolled:
    mov rsi, [rbx + 24]
    mov ecx, [rbx + 32]
2:
    lea r11, [rsi + 6]
    mov [rdi], r11
    mov qword ptr [rdi + 8], 2
    movzx r11d, word ptr [rsi + 6]
    mov [rdi + 16], r11
    add rsi, 8
    add edi, 24
    dec ecx
    jnz 2b
.Lpieces_end:
    movzx ecx, byte ptr [rbx + 2]
    lea ecx, [rbx + rcx * 8 + 24]
    mov r11d, edi
    sub r11d, ecx
    mov [rbx + 4], r11d
.Lend:
    add edi, 7 - {RING}
    and edi, -8
    mov ecx, edi
    pop rsi
    pop rdi
    // From here on the call is noted, and none is being made.
    mov [{HEAD}], rcx
backstory_buffer_noted:
    pop r12
    pop rbp
    pop rbx
    mov ecx, [{SITE}]
    mov rcx, [rcx]
    mov r11, [rsp]
    popfq
    mov rsp, [{STACK_POINTER}]
    jmp qword ptr [{RESUME}]

    // Another form, in which it does not wait.
.Lform:
backstory_buffer_forms:
    mov ecx, ebp
    and ecx, 0xf0
    cmp ecx, 0x20
    je .Lno_time
    cmp ecx, 0x30
    jbe .Ltry
    cmp ecx, 0x40
    je .Lopen
    cmp ecx, 0x60
    je .Lno_time_at
    cmp ecx, 0x80
    je .Lclose
    cmp ecx, 0xa0
    je .Lopen_as
    cmp ecx, 0xb0
    je .Lalone
    cmp ecx, 0xc0
    je .Lsend
    cmp ecx, 0xd0
    je .Lcompare
    cmp ecx, 0xe0
    je .Lrange
    ja .Lfresh
    jmp .Lask_first
.Lno_time:
    xor r10d, r10d
    jmp .Lcall
.Lno_time_at:
    mov r10d, {NO_TIME}
    jmp .Lcall
    // Whether it would wait is found out by moving nobody from there to there, if the word is as expected. What the kernel would refuse
    // first is left to it.
.Lcompare:
    mov ecx, esi
    and ecx, {NO_FUTEX_FLAG}
    cmp ecx, {FUTEX_WAIT_BITSET}
    ja .Lleave
    je 2f
    test esi, {FUTEX_CLOCK_REALTIME}
    jnz .Lleave
    jmp 3f
2:
    test r9d, r9d
    jz .Lleave
3:
    and esi, {FUTEX_PRIVATE_FLAG}
    or esi, {FUTEX_CMP_REQUEUE}
    mov r9d, edx
    mov r8, rdi
    xor edx, edx
    xor r10d, r10d
    jmp .Lcall
    // Mappings that are nothing but memory of the program's own.
.Lfresh:
    mov rcx, r10
    and rcx, {NOT_FRESH}
    cmp rcx, {MAP_PRIVATE_ANONYMOUS}
    jne .Lleave
    test r10d, {MAP_FIXED}
    jz .Lprotection
    jmp .Lwhere
    // Advice that gives a forked child other memory is not known here.
.Lrange:
    cmp eax, {MADVISE}
    jne .Lwhere
    cmp edx, {MADV_DONTFORK}
    jne .Lwhere
    mov rax, -{EINVAL}
    jmp .Lmade
.Lwhere:
    mov rcx, rdi
    add rcx, rsi
    jc .Lleave
    mov r12d, {AREAS}
2:
    cmp rcx, [r12]
    jbe 3f
    cmp rdi, [r12 + 8]
    jb .Lleave
    add r12d, 16
    jmp 2b
3:
    cmp eax, {MUNMAP}
    je .Lcall
    ja 4f
.Lprotection:
    test rdx, {NO_PROTECTION}
    jnz .Lleave
    jmp .Lcall
    // What might be dropped later, unseen, is dropped now.
4:
    cmp edx, {MADV_FREE}
    jne .Lcall
    mov edx, {MADV_DONTNEED}
    jmp .Lcall
.Lalone:
    cmp dword ptr [{ALONE}], 0
    je .Lleave
    jmp .Lcall
    // What is written must go there whole or not at all.
.Ltry:
    test bpl, 4
    jz .Ltry_now
    cmp rdx, {WHOLE}
    ja .Lleave
    // Where it may wait for what was sent before, that is asked for first; then r12 is 1.
    xor r12d, r12d
    mov ecx, edi
    test byte ptr [rcx + {FDS}], {WHILE_EMPTY}
    jz .Ltry_now
    inc r12d
.Lask_how_much:
    mov esi, {SIOCOUTQ}
    mov edx, {FILE}
    mov eax, {IOCTL}
    jmp .Lcall
.Ltry_now:
    mov ecx, ebp
    and ecx, 0xf0
    cmp ecx, 0x30
    je 2f
    mov [{VECTOR}], rsi
    mov [{VECTOR} + 8], rdx
    mov esi, {VECTOR}
    mov edx, 1
    add eax, {PREADV2}
.Lnot_waiting:
    mov r10, -1
    xor r8d, r8d
    mov r9d, {RWF_NOWAIT}
    jmp .Lcall
2:
    // All or nothing it would not be then.
    test r10d, {MSG_WAITALL}
    jnz .Lleave
    or r10d, {MSG_DONTWAIT}
    jmp .Lcall
    // Opening something else than a regular file or a folder may wait, and so on: what there is is asked first.
.Lopen_as:
    mov ecx, esi
    test ecx, {NOT_READING}
    jnz .Lleave
    mov rsi, rdi
    mov edi, {AT_FDCWD}
    jmp 2f
.Lopen:
    mov ecx, edx
    test ecx, {NOT_READING}
    jnz .Lleave
2:
    xor r12d, r12d
    mov r10d, ecx
    shr r10d, {TO_NOFOLLOW}
    and r10d, {AT_SYMLINK_NOFOLLOW}
    mov edx, {FILE}
    mov eax, {NEWFSTATAT}
    jmp .Lcall
    // A number may be another file's at once.
.Lclose:
    cmp edi, {FD_COUNT}
    jae .Lleave
    mov ecx, edi
    test byte ptr [rcx + {FDS}], {CLOSES}
    jz .Lleave
    mov byte ptr [rcx + {FDS}], 0
    jmp .Lcall
    // The other descriptor, and not for long.
.Lsend:
    cmp esi, {FD_COUNT}
    jae .Lleave
    mov ecx, esi
    test byte ptr [rcx + {FDS}], {READS}
    jz .Lleave
    cmp r10, {MOST}
    ja .Lleave
    jmp .Lcall

    // What is behind arguments is looked at, of which the kernel is asked first whether it can be read: by a call that reads a word and
    // then does nothing. r12 says which call is made: for the first word of a message's head (0), its last (1), the first word of a vector
    // (2), its last (3); how much is on its way (4), the call itself (5).
.Lask_first:
    // What is as good as it is needs no look, and writes nothing.
    test bpl, 4
    jz 2f
    test ebp, 0x4000000
    jnz 2f
    mov r12d, 5
    jmp .Lcall
2:
    mov r12d, 2
    cmp ecx, 0x70
    jb .Lpoll
    ja .Lmessage
    lea rcx, [rdx - 1]
    cmp rcx, {MOST_VECTORS} - 1
    ja .Lleave
    jmp .Lask_word
.Lpoll:
    lea ecx, [rsi - 1]
    cmp ecx, {MOST_POLLED} - 1
    ja .Lleave
    mov rsi, rdi
    jmp .Lask_word
.Lmessage:
    test edx, {MSG_WAITALL}
    jnz .Lleave
    xor r12d, r12d
.Lask_word:
    mov edi, -1
    xor edx, edx
    mov r10d, 8
    mov eax, {RT_SIGPROCMASK}
    jmp .Lcall

    // A call in another form is made. The arguments as the program has them.
.Lcalled:
    test ebp, {BY_REQUEST}
    jnz .Lclock_read
    mov rdi, [rbx + 24]
    mov rsi, [rbx + 32]
    mov rdx, [rbx + 40]
    mov r10, [rbx + 48]
    mov r8, [rbx + 56]
    mov r9, [rbx + 64]
    mov ecx, ebp
    and ecx, 0xf0
    cmp ecx, 0x20
    je .Lno_time_made
    cmp ecx, 0x30
    jbe .Ltried
    cmp ecx, 0x40
    je .Lopening
    cmp ecx, 0x60
    je .Lno_time_at_made
    cmp ecx, 0x80
    je .Lmade
    cmp ecx, 0xa0
    je .Lopening
    cmp ecx, 0xb0
    je .Lmade
    cmp ecx, 0xc0
    je .Lsent
    cmp ecx, 0xd0
    je .Lcompared
    cmp ecx, 0xe0
    jae .Lchanged
    cmp r12d, 4
    ja .Lasked_and_made
    je .Lasked_how_much
    // A word can be read if the call says that it cannot do what it is told.
    cmp rax, -{EINVAL}
    jne .Lagain
    inc r12d
    cmp r12d, 2
    ja .Lvector
    je .Lhead_of_message
    lea rsi, [rsi + {MESSAGE_LEN} - 8]
    jmp .Lask_word
    // Neither an address nor more than bytes, into and out of not too many places.
.Lhead_of_message:
    cmp qword ptr [rsi], 0
    jne .Lagain
    cmp qword ptr [rsi + {MESSAGE_CONTROL}], 0
    jne .Lagain
    cmp qword ptr [rsi + {MESSAGE_CONTROL} + 8], 0
    jne .Lagain
    mov rcx, [rsi + {MESSAGE_VECTOR} + 8]
    dec rcx
    cmp rcx, {MOST_VECTORS} - 1
    ja .Lagain
    mov rsi, [rsi + {MESSAGE_VECTOR}]
    jmp .Lask_word
    // rsi: the vector; edx: its length in words.
.Lvector:
    cmp ecx, 0x70
    je 2f
    jb 3f
    mov rdx, [rsi + {MESSAGE_VECTOR} + 8]
    mov rsi, [rsi + {MESSAGE_VECTOR}]
2:
    add edx, edx
    jmp 4f
3:
    mov edx, esi
    mov rsi, rdi
4:
    cmp r12d, 4
    je .Lcopy
    lea rsi, [rsi + rdx * 8 - 8]
    jmp .Lask_word
    // As it is now: the call may change it.
.Lcopy:
    mov ecx, edx
    mov edi, {VECTORS}
    cld
    rep movsq
    mov [{VECTORS_END}], edi
    mov ecx, ebp
    and ecx, 0xf0
    cmp ecx, 0x50
    je .Lpoll_now
    xor ecx, ecx
    mov esi, {VECTORS}
2:
    mov rdx, [rsi + 8]
    cmp rdx, {MOST}
    ja .Lnot_here
    add rcx, rdx
    add esi, 16
    cmp esi, edi
    jne 2b
    test bpl, 4
    jz 2f
    cmp rcx, {WHOLE}
    ja .Lnot_here
    mov edi, [rbx + 24]
    test byte ptr [rdi + {FDS}], {WHILE_EMPTY}
    jz .Lvectors_now
    mov r12d, 4
    jmp .Lask_how_much
2:
    test ebp, 0x4000000
    jnz 2f
    cmp rcx, {LONG}
    ja .Lnot_here
2:
    cmp rcx, {MOST}
    ja .Lnot_here
    add rcx, rbx
    cmp rcx, {RING} + {RING_LEN} - {LEAST}
    ja .Lnot_here
.Lvectors_now:
    mov rdi, [rbx + 24]
    mov rsi, [rbx + 32]
    mov rdx, [rbx + 40]
    mov r12d, 5
    movzx eax, word ptr [rbx]
    test bpl, 0x80
    jnz 2f
    mov esi, {VECTORS}
    test ebp, 0x4000000
    jz .Lcall
    add eax, {PREADV2_OF_VECTORS}
    jmp .Lnot_waiting
2:
    or edx, {MSG_DONTWAIT}
    jmp .Lcall
.Lpoll_now:
    mov rdi, [rbx + 24]
    mov rsi, [rbx + 32]
    mov r12d, 5
    movzx eax, word ptr [rbx]
    xor edx, edx
    cmp eax, {POLL}
    je .Lcall
    mov edx, {NO_TIME}
    xor r10d, r10d
    jmp .Lcall
.Lasked_how_much:
    test rax, rax
    jnz .Lagain
    cmp dword ptr [{FILE}], 0
    jne .Lin_vain
    jmp .Lvectors_now
.Lasked_and_made:
    cmp r12d, 5
    jne .Lagain
    cmp ecx, 0x50
    je 2f
    test ebp, 0x4000000
    jz .Lmade
    jmp .Lwould_wait
2:
    test rax, rax
    js .Lagain
    jnz .Lmade
    cmp word ptr [rbx], {POLL}
    jne 2f
    test edx, edx
    jz .Lmade
2:
    // Who waits finds everything as it was.
    mov dword ptr [{IN_VAIN}], 1
    mov ecx, esi
    mov esi, {VECTORS}
    cld
    rep movsq
.Lnot_here:
    mov r12d, 6
    jmp .Lcalled

    // Where it would have waited, or that form is not known, the call is made as it is.
.Ltried:
    test bpl, 4
    jz .Lwould_wait
    dec r12d
    jnz .Lwould_wait
    test rax, rax
    jnz .Lagain
    cmp dword ptr [{FILE}], 0
    jne .Lin_vain
    movzx eax, word ptr [rbx]
    jmp .Ltry_now
.Lwould_wait:
    cmp rax, -{EAGAIN}
    je .Lin_vain
    cmp rax, -{EINVAL}
    je .Lagain
    cmp rax, -{EOPNOTSUPP}
    je .Lagain
    jmp .Lmade
.Lcompared:
    cmp rax, -{EAGAIN}
    je .Lmade
    jmp .Lagain
    // What fails may have done a part.
.Lchanged:
    cmp rax, -4095
    jae .Lagain
    jmp .Lmade
.Lno_time_made:
    test r10d, r10d
    jz .Lmade
.Lno_time_at_made:
    test rax, rax
    jnz .Lmade
.Lin_vain:
    mov dword ptr [{IN_VAIN}], 1
.Lagain:
    movzx eax, word ptr [rbx]
    jmp .Lleave
    // What it wrote before it failed lies where nothing here may look: such a call is stopped at, though it was made.
.Lfaulted:
    cmp byte ptr [rbx + 3], {NOTHING}
    je .Lnote
    mov dword ptr [{FAULTED}], 1
    jmp .Lagain
    // Where it fails it writes all the same.
.Lsent:
    test rax, rax
    jns .Lmade
    jmp .Lagain
    // In r12: 0, what there is was asked; 1, it was opened; else the descriptor, plus 2, and its file system was asked.
.Lopening:
    cmp r12d, 1
    ja .Lordinary
    je .Lopened
    mov r12d, 1
    test rax, rax
    movzx eax, word ptr [rbx]
    // What is not there is not waited for.
    js .Lcall
    mov ecx, [{FILE} + {MODE}]
    and ecx, {S_IFMT}
    cmp ecx, {S_IFREG}
    je .Lcall
    cmp ecx, {S_IFDIR}
    je .Lcall
    jmp .Lleave
.Lopened:
    cmp rax, {FD_COUNT}
    jae .Lmade
    lea r12d, [rax + 2]
    mov edi, eax
    mov esi, {FILE}
    mov eax, {FSTATFS}
    jmp .Lcall
.Lordinary:
    test rax, rax
    lea eax, [r12 - 2]
    jnz .Lmade
    mov ecx, [{FILE}]
    cmp ecx, {ORDINARY_0}
    je 2f
    cmp ecx, {ORDINARY_1}
    je 2f
    cmp ecx, {ORDINARY_2}
    je 2f
    cmp ecx, {ORDINARY_3}
    je 2f
    cmp ecx, {ORDINARY_4}
    je 2f
    cmp ecx, {ORDINARY_5}
    je 2f
    cmp ecx, {ORDINARY_6}
    je 2f
    cmp ecx, {ORDINARY_7}
    je 2f
    cmp ecx, {ORDINARY_8}
    jne .Lmade
2:
    mov byte ptr [r12 + {FDS} - 2], {OPENED}
    jmp .Lmade

    // Not here.
.Lleave:
backstory_buffer_left:
    mov dword ptr [{CALLING}], 0
    pop r12
    pop rbp
    pop rbx
    popfq
    mov rsp, [{STACK_POINTER}]
    syscall
backstory_buffer_traced:
    ud2

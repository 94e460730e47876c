# guest: walk
# at: @exit
# What gdb knows of a recorded process: files, libraries, registers, threads.
info threads
#> walk, runs next
info inferiors
#! walk
info sharedlibrary
#> Yes
#> libc.so
info registers rip rsp eflags fs_base
#> rip
#> fs_base
info registers xmm0 ymm0 mxcsr st0 fctrl
#> v4_float
#> v8_float
#> 0x1f80
#> 0x37f
print $orig_rax
info auxv
#> AT_ENTRY
info proc
#> process
#> cmdline
#> exe = '
info proc mappings
#> Start Addr
#> r-xp
monitor maps
#! r-xp
monitor ps
#! walk
print total
#> = 299

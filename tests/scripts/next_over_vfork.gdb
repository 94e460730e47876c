# guest: family
# A child that borrows its parent's memory is a process of its own: it meets no breakpoint of the parent's, and is no thread.
break 28
break 29
continue
continue
#> Breakpoint 1, main ()
#> vfork()
monitor ps
#! /true
next
#> wait(&status);
info threads
#> family, runs next
info breakpoints
#> breakpoint already hit 1 time
#> in main at
continue
#> SIGSEGV

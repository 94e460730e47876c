# guest: orphan
# Going to a moment of another process shows that process: its id, its program, its threads.
break main
continue
#> Breakpoint 1, main ()
goto @end
info threads
#> (true, runs next)
info inferiors
#> /true
print (long)$pc != 0
#> = 1
info sharedlibrary
#> libc.so
goto @start
info threads
#> (orphan, runs next)
info inferiors
#> /orphan
# gdb disables what it does not find in a program.
enable 1
continue
#> Breakpoint 1, main ()
monitor maps
#! /orphan
#! [stack]
goto @end
# Back over the exec, to the child as it was.
reverse-continue
#> is executing new program
#> /orphan
info symbol child
#> child in section .text

# guest: replaced
# A process that executes another program goes on as that one, and backwards as the one before.
break main
continue
#> Breakpoint 1, main ()
catch exec
continue
#> is executing new program: 
#> Catchpoint 2 (exec'd 
#> /true
info sharedlibrary
#> ld-linux
continue
#> No more reverse-execution history
#! backstory: the process ends here, with exit status 0
reverse-continue
#> is executing new program: 
#> /replaced
#> Catchpoint 2 (exec'd 
# gdb disables what it does not find in a program.
enable 1
reverse-continue
#> Breakpoint 1, main ()
reverse-continue
#! backstory: the process begins here
#> No more reverse-execution history
monitor ps
#! /true
#! /replaced

# guest: family
# Signals stop where they strike.
continue
#> received signal SIGUSR1
break on_usr1
continue
#> Breakpoint 1, on_usr1 (signo=10)
backtrace
#> <signal handler called>
#> main ()
next
finish
continue
#> received signal SIGSEGV
#> *nowhere = shared;
print shared
#> = 7
continue
#> No more reverse-execution history
#> *nowhere = shared;
reverse-continue
#> received signal SIGSEGV
reverse-continue
#> Breakpoint 1, on_usr1 (signo=10)
reverse-continue
#> received signal SIGUSR1

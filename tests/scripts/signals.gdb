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
print $_siginfo.si_signo
#> = 11
print $_siginfo._sifields._sigfault.si_addr
#> = (void *) 0x8
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

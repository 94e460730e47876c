# guest: walk
# Both ends of a recording are ends, and moments are places.
when
#! @0 of
continue
#! backstory: the process ends here, with exit status 3
#> No more reverse-execution history
#> _exit
when
#! (100.0%), task
stepi
#> No more reverse-execution history
reverse-stepi
reverse-continue
#! backstory: the process begins here
#> No more reverse-execution history
#> _start
reverse-stepi
#> No more reverse-execution history
monitor goto @end
backtrace
#> _exit
#> main
goto @start
#> _start
goto @exit
#> _exit
monitor goto @999999999999
#! is out of range
monitor goto noon
#! `noon` is not a moment
monitor goto @signal
#! there is no @signal
monitor nonsense
#! no command `nonsense`
monitor help
#! monitor goto MOMENT

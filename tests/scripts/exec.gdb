# guest: replaced
# A process that executes another program ends as the one it was, and goes on as the other.
break main
continue
#> Breakpoint 1, main ()
continue
#! backstory: the process executes
#> No more reverse-execution history
monitor ps
#! /true
#! /replaced

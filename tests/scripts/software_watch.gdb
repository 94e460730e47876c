# guest: walk
# A watchpoint that gdb itself looks after, by stepping.
set can-use-hw-watchpoints 0
break sum
continue
watch total
#> Watchpoint 2: total
continue
#> Old value = 0
#> New value = 1
continue
#> Old value = 1
#> New value = 5
#> square (x=2)

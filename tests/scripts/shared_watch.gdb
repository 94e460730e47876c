# guest: sharing
# A watchpoint does not see what another process does to shared memory, and says so, once.
break main
continue
next
watch *shared
continue
#! is shared memory: what other processes do to it
#> New value = 1
continue
#> Old value = 1
#> New value = 23
# Back from behind, memory holds what the child wrote.
reverse-continue
#> New value = 22

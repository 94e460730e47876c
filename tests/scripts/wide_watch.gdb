# guest: walk
# What does not fit into the CPU's debug registers is watched by stepping.
break printf
continue
finish
watch *it
#> Hardware watchpoint 2: *it
delete 2
watch page
#> Watchpoint 3: page
continue
#> Old value = '\000' <repeats 255 times>
#> New value = '\000' <repeats 100 times>, "x"
#> free(it);

# guest: walk
# Hardware watchpoints, both ways.
break sum
continue
watch total
continue
#> Hardware watchpoint 2: total
#> Old value = 0
#> New value = 1
#> square (x=1)
continue
#> Old value = 1
#> New value = 5
reverse-continue
#> Old value = 5
#> New value = 1
#> square (x=2)
reverse-continue
#> Old value = 1
#> New value = 0
delete 2
continue
#> Breakpoint 1, sum (n=4)
awatch total
continue
#> Hardware access (read/write) watchpoint 3: total
#> Value = 285

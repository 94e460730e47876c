# guest: walk
# Steps and continues backwards.
break sum if n == 4
continue
#> sum (n=4)
delete
set $before = $pc
reverse-stepi
stepi
print $pc == $before
#> = 1
next
next
step
#> square (x=0)
reverse-step
#> s += square(i);
reverse-finish
#> int b = sum(4);
reverse-next
reverse-next
#> int a = sum(10);
print total
#> = 0
next
#> int b = sum(4);
print total
#> = 285
break main
reverse-continue
#> Breakpoint 2, main
reverse-continue
#> No more reverse-execution history
#> _start
continue
#> Breakpoint 2, main

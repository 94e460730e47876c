# guest: walk
# Breakpoints, steps, finish and data, forwards.
break main
continue
#> Breakpoint 1, main (argc=1
#> struct item *it = malloc
next
#> it->id = argc;
next
next
#> strcpy(it->name, "widget");
print *it
#> {id = 1, weight = 3.5, name =
next
#> int a = sum(10);
step
#> sum (n=10)
#> int s = 0;
backtrace
#> #0  sum (n=10)
#> #1
#> in main (argc=1
info locals
#> s =
finish
#> Value returned is $2 = 285
tbreak square if x == 3
continue
#> square (x=3)
stepi
next
#> total += r;
print r
#> = 9
x/2xb &r
#> 0x09	0x00
until
up
#> sum (n=4)
print i
#> = 3

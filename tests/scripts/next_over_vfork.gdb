# guest: family
# A child that borrows its parent's memory is a thread of it until it executes something.
break 28
continue
continue
#> Breakpoint 1, main ()
#> vfork()
next
#> wait(&status);
info threads
#> family, runs next

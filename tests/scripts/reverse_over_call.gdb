# guest: family
# Back over a call that ends in a jump to another function, and over a child's whole life.
break 28
continue
continue
#> Breakpoint 1, main ()
#> vfork()
reverse-next
#> waitpid(pid, &status, 0);
reverse-next
#> shared = 7;
print shared
#> = 1
reverse-next
reverse-next
#> pid_t pid = fork();
next
next
next
#> waitpid(pid, &status, 0);
next
#> vfork()

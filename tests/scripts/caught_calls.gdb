# guest: calls
# Where calls begin and return, both ways; of the process shown only.
set pagination off
catch syscall getppid wait4
continue
#> (call to syscall getppid)
print $rax
#> = 110
x/i $pc
#> syscall
continue
#> (returned from syscall getppid)
x/i $pc
continue
#> (call to syscall wait4)
print $rax
#> = 61
continue
#> (returned from syscall wait4)
continue
#> (call to syscall getppid)
stepi
#> (returned from syscall getppid)
reverse-continue
#> (call to syscall getppid)
reverse-continue
#> (returned from syscall wait4)
reverse-continue
#> (call to syscall wait4)
delete
catch syscall getuid
continue
#> (call to syscall getuid)
delete
reverse-continue
#> No more reverse-execution history

# guest: family
# at: @signal
# A recording opened at its crash.
backtrace
#> #0
#> in main ()
x/i $pc
#> mov
print nowhere
#> 0x8
reverse-next
reverse-next
#> volatile int *nowhere
watch shared
reverse-continue
#> Old value = 7
#> New value = 1
#> main ()

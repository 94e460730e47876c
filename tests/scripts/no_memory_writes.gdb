# guest: walk
# fails
print total
#> = 0
set var total = 5
#! Writing to memory is not allowed

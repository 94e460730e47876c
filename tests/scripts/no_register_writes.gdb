# guest: walk
# fails
set var $rax = 5
#! Writing to registers is not allowed

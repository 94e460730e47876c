# guest: walk
# fails
break main
continue
print square(4)
#! is not allowed

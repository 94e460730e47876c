# guest: wide
# needs: avx512f
# Opmasks and the last sixteen vector registers, whole and in part.
set pagination off
break look
continue
p/x $k3
#> = 0xfffb
p/x $k4
#> = 0x0
p/x $zmm31.v8_int64[7]
#> = 0xffffffffffffffff
p/x $zmm5.v16_int32[15]
#> = 0x12345678
p/x $ymm20.v8_int32[7]
#> = 0x23456789
p/x $xmm20.v4_int32[3]
#> = 0x23456789
p/x $zmm20.v16_int32[15]
#> = 0x23456789
p/x $zmm21.v8_int64[0]
#> = 0x0

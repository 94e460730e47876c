# guest: counting
# What interrupts gdb while it looks at condition after condition stops it, both ways.
python
import os, signal, threading
class Soon(gdb.Function):
    """False; interrupts soon after it is first asked."""
    def invoke(self):
        if not self.asked:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        self.asked = True
        return False
soon = Soon("soon")
end
break main
continue
#> Breakpoint 1, main
watch counter if $soon()
python soon.asked = False
continue
#> SIGINT
goto @end
python soon.asked = False
reverse-continue
#> SIGINT

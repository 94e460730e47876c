# guest: threads
# Threads: who they are, where each is, breakpoints in any of them, steps across switches, signals both ways.
break take_turn
continue
#> Thread 2 hit Breakpoint 1, take_turn (who=0)
continue
#> Thread 3 hit Breakpoint 1, take_turn (who=1)
info threads
#> 1    Thread
#> 2    Thread
#> * 3    Thread
#> runs next
#> take_turn (who=1)
thread apply all bt
#> Thread 3 (
#> take_turn (who=1)
#> worker (arg=0x1)
#> Thread 2 (
#> worker (arg=0x0)
#> Thread 1 (
#> main ()
thread 2
#> Switching to thread 2
frame function worker
print who
#> = 0
thread 3
print who
#> = 1
continue
#> Thread 2 hit Breakpoint 1, take_turn (who=0)
print steps
#> = 2
reverse-continue
#> Thread 3 hit Breakpoint 1, take_turn (who=1)
reverse-continue
#> Thread 2 hit Breakpoint 1, take_turn (who=0)
delete
next
print steps
#> = 1
next
#> worker (arg=0x0)
next
#> for (int i
next
#> sem_wait
next
#> take_turn(who);
print steps
#> = 2
watch steps
continue
#> Old value = 2
#> New value = 3
#> take_turn (who=0)
continue
#> hit Hardware watchpoint
#> New value = 4
#> take_turn (who=1)
delete
continue
#> received signal SIGUSR1
print steps
#> = 6
continue
#> No more reverse-execution history
reverse-continue
#> received signal SIGUSR1
reverse-continue
#> No more reverse-execution history
# Where another thread runs, that one is shown, and steps.
break take_turn
continue
continue
#> take_turn (who=1)
stepi
monitor when
#! task
python moment = gdb.execute("monitor when", to_string=True).split()[0]
goto @start
#> _start
python gdb.execute("goto " + moment)
#> Switching to thread
#> take_turn (who=1)
print who
#> = 1
stepi
#> steps++;
